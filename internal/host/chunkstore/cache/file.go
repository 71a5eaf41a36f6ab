package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math/bits"
	"os"
	"syscall"
)

// A file has space for the largest object, and after it a mark for each frame: 4 bytes of markMagic, and a
// CRC-32C of the frame's position, size and content.
const (
	fileBytes = maxObject + 8*maxFrames
	markMagic = 0x50534631
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frameMark returns the mark of a frame that is present.
func frameMark(i int, data []byte) [8]byte {
	var w [8]byte
	binary.LittleEndian.PutUint32(w[:], markMagic)
	binary.LittleEndian.PutUint32(w[4:], uint32(i)<<20|uint32(len(data)))
	sum := crc32.Update(crc32.Checksum(w[:], castagnoli), castagnoli, data)
	binary.LittleEndian.PutUint32(w[4:], sum)
	return w
}

// allocatedBytes returns about how many bytes of frames a file holds.
func allocatedBytes(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return min(st.Blocks*512, maxObject)
	}
	return maxObject
}

// handle returns an entry's file, open and with its marks read. The caller is a user of the entry. It returns
// fs.ErrNotExist if there is no file yet, or the entry was removed. After any other error the file cannot be
// used.
func (c *Cache) handle(e *entry, create bool) (*os.File, error) {
	e.io.Lock()
	defer e.io.Unlock()
	c.mu.Lock()
	file, gone, filled := e.file, e.removed, e.marked != 0
	c.mu.Unlock()
	if file != nil {
		return file, nil
	}
	if gone {
		return nil, fs.ErrNotExist
	}
	flags := os.O_RDWR
	if create {
		flags |= os.O_CREATE
	}
	file, err := os.OpenFile(e.path, flags|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrNotExist) && filled {
		return nil, errFileRemoved
	}
	if err != nil {
		return nil, err
	}
	claim, err := readMarks(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.removed {
		return nil, errors.Join(fs.ErrNotExist, file.Close())
	}
	e.file, e.openElem = file, c.opened.PushFront(e)
	// Frames verified before the file was closed may have changed since.
	e.loaded, e.marked, e.verified = true, claim, 0
	size := int64(bits.OnesCount64(claim)) * Frame
	c.bytes += size - e.bytes
	e.bytes = size
	return file, nil
}

// readMarks returns the frames that are marked as present in a file. It gives a new file its size.
func readMarks(file *os.File) (claim uint64, err error) {
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	if info.Size() == 0 {
		return 0, file.Truncate(fileBytes)
	}
	if info.Size() != fileBytes || !info.Mode().IsRegular() {
		return 0, errFileSize
	}
	var words [8 * maxFrames]byte
	if _, err := file.ReadAt(words[:], maxObject); err != nil {
		return 0, err
	}
	for i := range maxFrames {
		if binary.LittleEndian.Uint32(words[8*i:]) == markMagic {
			claim |= 1 << i
		}
	}
	return claim, nil
}

// errFileRemoved reports that another process removed a file that held frames. It is detected while e.io is
// held, so that it cannot be confused with a file that does not exist yet: when the caller sees the error,
// another user may have made a new file.
var errFileRemoved = errors.New("cache file was removed")

// errFileSize reports that another process changed the size of a file.
var errFileSize = fmt.Errorf("cache file does not have %d bytes", fileBytes)

// errChecksum reports that a frame is not what was written.
var errChecksum = errors.New("content does not match its checksum")

// verify reads a frame that is marked as present and compares it with its checksum.
func verify(file *os.File, o Object, i int) ([]byte, error) {
	data := make([]byte, o.frame(i))
	var got [8]byte
	if _, err := file.ReadAt(data, int64(i)*Frame); err != nil {
		return nil, err
	}
	if _, err := file.ReadAt(got[:], maxObject+8*int64(i)); err != nil {
		return nil, err
	}
	if got != frameMark(i, data) {
		return nil, errChecksum
	}
	return data, nil
}

// storeFrames writes fetched frames into an entry's file. It writes the checksums last.
func (c *Cache) storeFrames(e *entry, o Object, first, count int, data []byte) error {
	file, err := c.handle(e, true)
	if err != nil {
		return err
	}
	// A truncated file would grow again, with zeros in frames that were verified before.
	if info, err := file.Stat(); err != nil || info.Size() != fileBytes {
		c.discard(e, errFileSize)
		return errFileSize
	}
	if _, err := file.WriteAt(data, int64(first)*Frame); err != nil {
		return err
	}
	var words []byte
	rest := data
	for i := first; i < first+count; i++ {
		w := frameMark(i, rest[:o.frame(i)])
		words = append(words, w[:]...)
		rest = rest[o.frame(i):]
	}
	if _, err := file.WriteAt(words, maxObject+8*int64(first)); err != nil {
		return err
	}
	mask := uint64(1)<<count - 1
	mask <<= first
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.removed {
		return fs.ErrNotExist
	}
	size := int64(bits.OnesCount64(mask&^(e.marked|e.verified))) * Frame
	e.verified |= mask
	e.marked |= mask
	e.bytes += size
	c.bytes += size
	return nil
}

// storeInMemory keeps frames in memory that the directory could not store.
func (c *Cache) storeInMemory(o Object, first, count int, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := first; i < first+count; i++ {
		key := frameKey{o.ID, i}
		h := &memoryFrame{key: key, data: data[:o.frame(i)]}
		data = data[o.frame(i):]
		if at := c.memory[key]; at != nil {
			c.memoryLRU.Remove(at)
		}
		c.memory[key] = c.memoryLRU.PushFront(h)
	}
	for c.memoryLRU.Len() > maxMemoryFrames {
		if h, ok := c.memoryLRU.Remove(c.memoryLRU.Back()).(*memoryFrame); ok {
			delete(c.memory, h.key)
		}
	}
}

// readFromMemory copies from a frame in memory.
func (c *Cache) readFromMemory(o Object, i, at int, p []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	place := c.memory[frameKey{o.ID, i}]
	if place == nil {
		return false
	}
	c.memoryLRU.MoveToFront(place)
	h, ok := place.Value.(*memoryFrame)
	return ok && copy(p, h.data[at:]) == len(p)
}
