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

// A file has room for the largest object, and behind it a word for each frame: 4 bytes that say that
// there is one, and a CRC-32C of its place, size and content.
const (
	fileBytes = maxObject + 8*maxFrames
	present   = 0x50534631
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// word is what stands in the file for a frame that is there.
func word(i int, data []byte) [8]byte {
	var w [8]byte
	binary.LittleEndian.PutUint32(w[:], present)
	binary.LittleEndian.PutUint32(w[4:], uint32(i)<<20|uint32(len(data)))
	sum := crc32.Update(crc32.Checksum(w[:], castagnoli), castagnoli, data)
	binary.LittleEndian.PutUint32(w[4:], sum)
	return w
}

// kept is about how many bytes of frames a file holds.
func kept(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return min(st.Blocks*512, maxObject)
	}
	return maxObject
}

// handle gives an entry's file, opened and looked through. The caller uses the entry. fs.ErrNotExist: there is no
// file yet, or the entry is in the cache no more. Any other error says that the file cannot be used.
func (c *Cache) handle(e *entry, create bool) (*os.File, error) {
	e.io.Lock()
	defer e.io.Unlock()
	c.mu.Lock()
	file, gone, filled := e.file, e.gone, e.claim != 0
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
		return nil, errVanished
	}
	if err != nil {
		return nil, err
	}
	claim, err := look(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.gone {
		return nil, errors.Join(fs.ErrNotExist, file.Close())
	}
	e.file, e.openAt = file, c.opened.PushFront(e)
	// What was checked before it was closed may have changed since.
	e.loaded, e.claim, e.have = true, claim, 0
	size := int64(bits.OnesCount64(claim)) * Frame
	c.bytes += size - e.bytes
	e.bytes = size
	return file, nil
}

// look tells which frames a file says it has; a new file is given its size.
func look(file *os.File) (claim uint64, err error) {
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	if info.Size() == 0 {
		return 0, file.Truncate(fileBytes)
	}
	if info.Size() != fileBytes || !info.Mode().IsRegular() {
		return 0, errCut
	}
	var words [8 * maxFrames]byte
	if _, err := file.ReadAt(words[:], maxObject); err != nil {
		return 0, err
	}
	for i := range maxFrames {
		if binary.LittleEndian.Uint32(words[8*i:]) == present {
			claim |= 1 << i
		}
	}
	return claim, nil
}

// errVanished says that somebody removed a file that held frames. It is told from a file that is not there yet while
// nobody can make one: by the time that the caller hears of it there may be one, with frames of somebody else.
var errVanished = errors.New("file of the cache was removed")

// errCut says that somebody changed the size of a file.
var errCut = fmt.Errorf("file of the cache does not have %d bytes", fileBytes)

// errUnfit says that a frame is not what was written.
var errUnfit = errors.New("it does not fit its checksum")

// verify reads a frame that its file claims to have and holds it against its checksum.
func verify(file *os.File, o Object, i int) ([]byte, error) {
	data := make([]byte, o.frame(i))
	var got [8]byte
	if _, err := file.ReadAt(data, int64(i)*Frame); err != nil {
		return nil, err
	}
	if _, err := file.ReadAt(got[:], maxObject+8*int64(i)); err != nil {
		return nil, err
	}
	if got != word(i, data) {
		return nil, errUnfit
	}
	return data, nil
}

// keep writes frames that were fetched, from first on, into an entry's file. The checksums come last.
func (c *Cache) keep(e *entry, o Object, first, count int, data []byte) error {
	file, err := c.handle(e, true)
	if err != nil {
		return err
	}
	// One that was cut would grow again, with zeros where frames were checked before.
	if info, err := file.Stat(); err != nil || info.Size() != fileBytes {
		c.spoil(e, errCut)
		return errCut
	}
	if _, err := file.WriteAt(data, int64(first)*Frame); err != nil {
		return err
	}
	var words []byte
	rest := data
	for i := first; i < first+count; i++ {
		w := word(i, rest[:o.frame(i)])
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
	if e.gone {
		return fs.ErrNotExist
	}
	size := int64(bits.OnesCount64(mask&^(e.claim|e.have))) * Frame
	e.have |= mask
	e.claim |= mask
	e.bytes += size
	c.bytes += size
	return nil
}

// remember keeps frames in memory that the directory did not take.
func (c *Cache) remember(o Object, first, count int, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := first; i < first+count; i++ {
		key := flightKey{o.ID, i}
		h := &held{key: key, data: data[:o.frame(i)]}
		data = data[o.frame(i):]
		if at := c.memory[key]; at != nil {
			c.recent.Remove(at)
		}
		c.memory[key] = c.recent.PushFront(h)
	}
	for c.recent.Len() > memoryFrames {
		if h, ok := c.recent.Remove(c.recent.Back()).(*held); ok {
			delete(c.memory, h.key)
		}
	}
}

// remembered copies from a frame in memory.
func (c *Cache) remembered(o Object, i, at int, p []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	place := c.memory[flightKey{o.ID, i}]
	if place == nil {
		return false
	}
	c.recent.MoveToFront(place)
	h, ok := place.Value.(*held)
	return ok && copy(p, h.data[at:]) == len(p)
}
