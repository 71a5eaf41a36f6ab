package ext4

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
)

const (
	blockSize   = 4096
	inodeSize   = 256
	extraSize   = 32 // the fields after the first 128 bytes
	rootInode   = 2
	firstInode  = 11 // lost+found
	superOffset = 1024
)

var le = binary.LittleEndian

// device is the image.
type device interface {
	io.ReaderAt
	io.WriterAt
}

// group is a block group: the positions of its tables, and its bitmaps while files are written.
type group struct {
	desc         []byte // its descriptor, as on disk
	blockBitmap  uint64
	inodeBitmap  uint64
	inodeTable   uint64
	blocks       []byte // bitmap of blocks in use
	inodes       []byte
	inodesWere   int // in use when opened
	dirs         int // directories added since it was opened
	firstBlock   uint64
	blocksInside int
}

// fsys is a file system that files are written into. It is used by one goroutine.
type fsys struct {
	dev            device
	super          []byte // 1024 bytes
	blocks         uint64
	blocksPerGroup uint64
	inodesPerGroup int
	descSize       int
	groups         []group
	root           *node
	lost           *node
	nextBlock      uint64 // where the search for a free block begins
	freeBlocks     uint64
	nextInode      uint32
	freeInodes     int
	out            writer
	chunk          []byte
}

// Features that the writer understands, and must find or may find.
const (
	incompatFiletype, incompatExtents, incompat64, incompatFlex = 0x2, 0x40, 0x80, 0x200
	roSparse, roLarge, roHuge, roDirNlink, roExtraIsize         = 0x1, 0x2, 0x8, 0x20, 0x40
)

// open reads the metadata of the empty file system on dev.
func open(dev device) (*fsys, error) {
	f := &fsys{dev: dev, super: make([]byte, 1024), out: writer{dev: dev}, chunk: make([]byte, chunkSize)}
	if _, err := dev.ReadAt(f.super, superOffset); err != nil {
		return nil, fmt.Errorf("read superblock: %w", err)
	}
	s := f.super
	incompat, ro := le.Uint32(s[0x60:]), le.Uint32(s[0x64:])
	const must, may = incompatFiletype | incompatExtents, incompat64 | incompatFlex
	if le.Uint16(s[0x38:]) != 0xEF53 || le.Uint32(s[0x18:]) != 2 || le.Uint16(s[0x58:]) != inodeSize ||
		le.Uint32(s[0x14:]) != 0 ||
		incompat&must != must || incompat&^(must|may) != 0 ||
		ro&^(roSparse|roLarge|roHuge|roDirNlink|roExtraIsize) != 0 {
		return nil, fmt.Errorf("mke2fs made a file system with unexpected features (%#x, %#x)", incompat, ro)
	}
	f.descSize = 32
	f.blocks = uint64(le.Uint32(s[0x4:]))
	if incompat&incompat64 != 0 {
		f.descSize = int(le.Uint16(s[0xfe:]))
		f.blocks |= uint64(le.Uint32(s[0x150:])) << 32
	}
	f.blocksPerGroup, f.inodesPerGroup = uint64(le.Uint32(s[0x20:])), int(le.Uint32(s[0x28:]))
	if f.blocksPerGroup != 8*blockSize || f.inodesPerGroup <= 0 || f.inodesPerGroup > 8*blockSize || f.descSize < 32 ||
		f.descSize > 64 {
		return nil, fmt.Errorf("mke2fs made groups of %d blocks and %d inodes", f.blocksPerGroup, f.inodesPerGroup)
	}
	if err := f.readGroups(); err != nil {
		return nil, fmt.Errorf("read groups: %w", err)
	}
	if err := f.readRoot(); err != nil {
		return nil, fmt.Errorf("read root: %w", err)
	}
	return f, nil
}

func (f *fsys) readGroups() error {
	n := int((f.blocks + f.blocksPerGroup - 1) / f.blocksPerGroup)
	table := make([]byte, n*f.descSize)
	if _, err := f.dev.ReadAt(table, blockSize); err != nil {
		return err
	}
	f.groups = make([]group, n)
	for i := range f.groups {
		d := table[i*f.descSize : (i+1)*f.descSize]
		g := group{
			desc:        d,
			blockBitmap: f.wide(d, 0, 0x20),
			inodeBitmap: f.wide(d, 4, 0x24),
			inodeTable:  f.wide(d, 8, 0x28),
			blocks:      make([]byte, blockSize),
			inodes:      make([]byte, blockSize),
			firstBlock:  uint64(i) * f.blocksPerGroup,
		}
		g.blocksInside = int(min(f.blocksPerGroup, f.blocks-g.firstBlock))
		if _, err := f.dev.ReadAt(g.blocks, int64(g.blockBitmap)*blockSize); err != nil {
			return err
		}
		if _, err := f.dev.ReadAt(g.inodes, int64(g.inodeBitmap)*blockSize); err != nil {
			return err
		}
		g.inodesWere = count(g.inodes, f.inodesPerGroup)
		f.freeBlocks += uint64(g.blocksInside - count(g.blocks, g.blocksInside))
		f.freeInodes += f.inodesPerGroup - g.inodesWere
		f.groups[i] = g
	}
	return nil
}

// wide returns a number of a descriptor that has a low and, in wide descriptors, a high half.
func (f *fsys) wide(d []byte, low, high int) uint64 {
	v := uint64(le.Uint32(d[low:]))
	if f.descSize >= 64 {
		v |= uint64(le.Uint32(d[high:])) << 32
	}
	return v
}

// count returns the number of set bits among the first n.
func count(bitmap []byte, n int) int {
	total := 0
	for i := 0; i+8 <= n; i += 8 {
		total += bits.OnesCount8(bitmap[i/8])
	}
	for i := n &^ 7; i < n; i++ {
		total += int(bitmap[i/8] >> (i % 8) & 1)
	}
	return total
}

// flushGroups writes bitmaps, descriptors and the superblock.
func (f *fsys) flushGroups() error {
	table := make([]byte, 0, len(f.groups)*f.descSize)
	for i := range f.groups {
		g := &f.groups[i]
		free := g.blocksInside - count(g.blocks, g.blocksInside)
		inodes := count(g.inodes, f.inodesPerGroup)
		f.setHalves(g.desc, 0xc, 0x2c, free)
		f.setHalves(g.desc, 0xe, 0x2e, f.inodesPerGroup-inodes)
		dirs := int(le.Uint16(g.desc[0x10:]))
		if f.descSize >= 64 {
			dirs |= int(le.Uint16(g.desc[0x30:])) << 16
		}
		f.setHalves(g.desc, 0x10, 0x30, dirs+g.dirs)
		if _, err := f.dev.WriteAt(g.blocks, int64(g.blockBitmap)*blockSize); err != nil {
			return err
		}
		if _, err := f.dev.WriteAt(g.inodes, int64(g.inodeBitmap)*blockSize); err != nil {
			return err
		}
		table = append(table, g.desc...)
	}
	if _, err := f.dev.WriteAt(table, blockSize); err != nil {
		return err
	}
	le.PutUint32(f.super[0xc:], uint32(f.freeBlocks))
	if f.descSize >= 64 {
		le.PutUint32(f.super[0x158:], uint32(f.freeBlocks>>32))
	}
	le.PutUint32(f.super[0x10:], uint32(f.freeInodes))
	_, err := f.dev.WriteAt(f.super, superOffset)
	return err
}

func (f *fsys) setHalves(d []byte, low, high, v int) {
	le.PutUint16(d[low:], uint16(v))
	if f.descSize >= 64 {
		le.PutUint16(d[high:], uint16(v>>16))
	}
}
