package ext4

import (
	"bytes"
	"fmt"
	"io"
	"time"
)

// Kinds of files in the mode of an inode.
const (
	modeFifo  = 0x1000
	modeChar  = 0x2000
	modeDir   = 0x4000
	modeBlock = 0x6000
	modeFile  = 0x8000
	modeLink  = 0xa000
	modeKind  = 0xf000
)

const (
	flagExtents = 0x80000
	maxLinks    = 65000
)

// inode is a file while the file system is being filled.
type inode struct {
	number   uint32
	mode     uint16
	links    uint32 // of a directory: those of its subdirectories, without its own
	uid, gid uint32
	size     int64
	mtime    time.Time
	extents  []extent
	data     []byte // content in the inode itself: a short target, the number of a device
	inline   []byte // extended attributes in the inode
	acl      uint64 // block of extended attributes
}

func (i *inode) isDir() bool { return i.mode&modeKind == modeDir }

// setDevice sets the number of a device, in the 32-bit encoding.
func (i *inode) setDevice(major, minor uint32) {
	i.data = make([]byte, 8)
	le.PutUint32(i.data[4:], minor&0xff|major<<8|(minor&^0xff)<<12)
}

// setTarget makes i a symbolic link to target.
func (f *fsys) setTarget(i *inode, target string) error {
	if target == "" || len(target) > 4095 || bytes.IndexByte([]byte(target), 0) >= 0 {
		return fmt.Errorf("%w: a symbolic link to %.100q", ErrStream, target)
	}
	if len(target) < 60 {
		i.data, i.size = []byte(target), int64(len(target))
		return nil
	}
	return f.writeContent(i, bytes.NewReader([]byte(target)), int64(len(target)))
}

// chunkSize is the granularity of holes. Smaller holes would make more extents than they save.
const chunkSize = 64 << 10

var zeroChunk [chunkSize]byte

// writeContent sets the content of i to size bytes of r. Chunks of zeros become holes.
func (f *fsys) writeContent(i *inode, r io.Reader, size int64) error {
	i.size = size
	for at := int64(0); at < size; at += chunkSize {
		n := int(min(chunkSize, size-at))
		if _, err := io.ReadFull(r, f.chunk[:n]); err == io.EOF {
			return streamError(io.ErrUnexpectedEOF)
		} else if err != nil {
			return streamError(err)
		}
		if bytes.Equal(f.chunk[:n], zeroChunk[:n]) {
			continue
		}
		full := (n + blockSize - 1) &^ (blockSize - 1)
		clear(f.chunk[n:full])
		if err := f.append(i, uint32(at/blockSize), f.chunk[:full]); err != nil {
			return err
		}
	}
	return nil
}

// append adds blocks of data to i, starting with its logical block logical.
func (f *fsys) append(i *inode, logical uint32, data []byte) error {
	for len(data) > 0 {
		first, length, err := f.allocate(uint32(len(data) / blockSize))
		if err != nil {
			return err
		}
		i.addExtent(extent{logical, length, first})
		n := int(length) * blockSize
		if err := f.out.write(data[:n], int64(first)*blockSize); err != nil {
			return err
		}
		logical, data = logical+length, data[n:]
	}
	return nil
}

// addExtent adds e. If e continues the last extent, it extends that one.
func (i *inode) addExtent(e extent) {
	if n := len(i.extents); n > 0 {
		last := &i.extents[n-1]
		if last.logical+last.length == e.logical && last.physical+uint64(last.length) == e.physical &&
			last.length+e.length <= maxExtent {
			last.length += e.length
			return
		}
	}
	i.extents = append(i.extents, e)
}

const (
	extentMagic = 0xf30a
	perRoot     = 4   // entries in an inode
	perBlock    = 340 // in a block
)

// extentTree returns the 60 bytes of an inode that hold the root of its extent tree, and how many blocks the rest of
// the tree uses.
func (f *fsys) extentTree(i *inode) (root []byte, blocks uint64, err error) {
	entries := make([][12]byte, len(i.extents))
	firsts := make([]uint32, len(i.extents))
	for n, e := range i.extents {
		le.PutUint32(entries[n][0:], e.logical)
		le.PutUint16(entries[n][4:], uint16(e.length))
		le.PutUint16(entries[n][6:], uint16(e.physical>>32))
		le.PutUint32(entries[n][8:], uint32(e.physical))
		firsts[n] = e.logical
	}
	depth := 0
	for len(entries) > perRoot {
		var above [][12]byte
		var aboveFirsts []uint32
		for len(entries) > 0 {
			n := min(perBlock, len(entries))
			block, _, err := f.allocate(1)
			if err != nil {
				return nil, 0, err
			}
			blocks++
			node := extentNode(make([]byte, blockSize), entries[:n], perBlock, depth)
			if err := f.out.write(node, int64(block)*blockSize); err != nil {
				return nil, 0, err
			}
			var index [12]byte
			le.PutUint32(index[0:], firsts[0])
			le.PutUint32(index[4:], uint32(block))
			le.PutUint16(index[8:], uint16(block>>32))
			above, aboveFirsts = append(above, index), append(aboveFirsts, firsts[0])
			entries, firsts = entries[n:], firsts[n:]
		}
		entries, firsts = above, aboveFirsts
		depth++
	}
	return extentNode(make([]byte, 60), entries, perRoot, depth), blocks, nil
}

func extentNode(b []byte, entries [][12]byte, room, depth int) []byte {
	le.PutUint16(b[0:], extentMagic)
	le.PutUint16(b[2:], uint16(len(entries)))
	le.PutUint16(b[4:], uint16(room))
	le.PutUint16(b[6:], uint16(depth))
	for n, e := range entries {
		copy(b[12+12*n:], e[:])
	}
	return b
}

// encode returns the inode as it is on disk. Its blocks must have been allocated.
func (f *fsys) encode(i *inode) ([]byte, error) {
	b := make([]byte, inodeSize)
	var blocks, flags = uint64(0), uint32(0)
	for _, e := range i.extents {
		blocks += uint64(e.length)
	}
	switch kind := i.mode & modeKind; {
	case i.data != nil:
		copy(b[0x28:], i.data)
	case kind == modeFile || kind == modeDir || kind == modeLink:
		tree, more, err := f.extentTree(i)
		if err != nil {
			return nil, err
		}
		copy(b[0x28:], tree)
		blocks += more
		flags = flagExtents
	}
	if i.acl != 0 {
		blocks++
	}
	sectors := blocks * (blockSize / 512)
	le.PutUint16(b[0x0:], i.mode)
	le.PutUint16(b[0x2:], uint16(i.uid))
	le.PutUint32(b[0x4:], uint32(i.size))
	le.PutUint16(b[0x18:], uint16(i.gid))
	le.PutUint16(b[0x1a:], uint16(i.linkCount()))
	le.PutUint32(b[0x1c:], uint32(sectors))
	le.PutUint32(b[0x20:], flags)
	le.PutUint32(b[0x68:], uint32(i.acl))
	le.PutUint32(b[0x6c:], uint32(i.size>>32))
	le.PutUint16(b[0x74:], uint16(sectors>>32))
	le.PutUint16(b[0x76:], uint16(i.acl>>32))
	le.PutUint16(b[0x78:], uint16(i.uid>>16))
	le.PutUint16(b[0x7a:], uint16(i.gid>>16))
	le.PutUint16(b[0x80:], extraSize)
	seconds, extra := encodeTime(i.mtime)
	// Access, change, modification, creation.
	for _, at := range [][2]int{{0x8, 0x8c}, {0xc, 0x84}, {0x10, 0x88}, {0x90, 0x94}} {
		le.PutUint32(b[at[0]:], seconds)
		le.PutUint32(b[at[1]:], extra)
	}
	copy(b[128+extraSize:], i.inline)
	return b, nil
}

// linkCount returns the number of links on disk. It is 1 for a directory with too many subdirectories.
func (i *inode) linkCount() uint32 {
	if !i.isDir() {
		return i.links
	}
	if i.links+2 >= maxLinks {
		return 1
	}
	return i.links + 2
}

// encodeTime returns the seconds and the word with their two high bits and the nanoseconds.
func encodeTime(t time.Time) (seconds, extra uint32) {
	s := min(max(t.Unix(), -1<<31), 1<<34-1<<31-1)
	return uint32(s), uint32((s-int64(int32(s)))>>32&3) | uint32(t.Nanosecond())<<2
}
