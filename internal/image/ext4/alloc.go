package ext4

import (
	"fmt"
)

// extent is a range of consecutive blocks of a file.
type extent struct {
	logical  uint32
	length   uint32
	physical uint64
}

const maxExtent = 32768 // blocks; longer extents would be marked as uninitialised

// allocate takes up to want consecutive free blocks, searching from the last position.
func (f *fsys) allocate(want uint32) (first uint64, length uint32, err error) {
	if f.freeBlocks == 0 {
		return 0, 0, fmt.Errorf("%w: all of its %d MiB are in use", ErrFull, f.blocks*blockSize>>20)
	}
	for tries := 0; tries <= len(f.groups); tries++ {
		if f.nextBlock >= f.blocks {
			f.nextBlock = 0
		}
		g := &f.groups[f.nextBlock/f.blocksPerGroup]
		for i := int(f.nextBlock - g.firstBlock); i < g.blocksInside; i++ {
			if g.blocks[i/8] == 0xff {
				i |= 7
				continue
			}
			if bit(g.blocks, i) {
				continue
			}
			start := i
			for i < g.blocksInside && uint32(i-start) < want && !bit(g.blocks, i) {
				g.blocks[i/8] |= 1 << (i % 8)
				i++
			}
			length = uint32(i - start)
			f.freeBlocks -= uint64(length)
			f.nextBlock = g.firstBlock + uint64(i)
			return g.firstBlock + uint64(start), length, nil
		}
		f.nextBlock = g.firstBlock + f.blocksPerGroup
	}
	return 0, 0, fmt.Errorf("%w: all of its %d MiB are in use", ErrFull, f.blocks*blockSize>>20)
}

// release frees the blocks of an extent.
func (f *fsys) release(e extent) {
	for b := e.physical; b < e.physical+uint64(e.length); b++ {
		g := &f.groups[b/f.blocksPerGroup]
		i := b - g.firstBlock
		g.blocks[i/8] &^= 1 << (i % 8)
	}
	f.freeBlocks += uint64(e.length)
}

func bit(bitmap []byte, i int) bool { return bitmap[i/8]>>(i%8)&1 != 0 }

// allocateInode takes the next free inode number.
func (f *fsys) allocateInode(dir bool) (uint32, error) {
	for ; f.freeInodes > 0 && int(f.nextInode) < len(f.groups)*f.inodesPerGroup; f.nextInode++ {
		g, i := &f.groups[int(f.nextInode)/f.inodesPerGroup], int(f.nextInode)%f.inodesPerGroup
		if bit(g.inodes, i) {
			continue
		}
		g.inodes[i/8] |= 1 << (i % 8)
		f.freeInodes--
		if dir {
			g.dirs++
		}
		return f.nextInode + 1, nil
	}
	return 0, fmt.Errorf("%w: all %d inodes are in use: make the image larger", ErrFull, len(f.groups)*f.inodesPerGroup)
}

// releaseInode frees an inode number. Its place in the table is empty: tables are written at the end.
func (f *fsys) releaseInode(number uint32, dir bool) {
	g, i := &f.groups[int(number-1)/f.inodesPerGroup], int(number-1)%f.inodesPerGroup
	g.inodes[i/8] &^= 1 << (i % 8)
	f.freeInodes++
	if dir {
		g.dirs--
	}
	f.nextInode = min(f.nextInode, number-1)
}

// writer collects adjacent blocks before it writes them.
type writer struct {
	dev device
	at  int64
	buf []byte
}

const writeSize = 1 << 20

// write writes p at an offset of the device. The order of overlapping writes is kept.
func (w *writer) write(p []byte, at int64) error {
	if len(w.buf) > 0 && (at != w.at+int64(len(w.buf)) || len(w.buf)+len(p) > writeSize) {
		if err := w.flush(); err != nil {
			return err
		}
	}
	if len(w.buf) == 0 {
		w.at = at
	}
	w.buf = append(w.buf, p...)
	return nil
}

func (w *writer) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	_, err := w.dev.WriteAt(w.buf, w.at)
	w.buf = w.buf[:0]
	return err
}
