package ext4

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// node is a name in the tree. Several nodes may have one inode.
type node struct {
	name     string
	ino      *inode
	children map[string]*node
}

// readRoot reads the directories that mke2fs made, which are written again at the end.
func (f *fsys) readRoot() error {
	load := func(number uint32, mode uint16) (*node, error) {
		b := make([]byte, inodeSize)
		if _, err := f.dev.ReadAt(b, f.inodeAt(number)); err != nil {
			return nil, err
		}
		ino := &inode{number: number, mode: modeDir | mode, mtime: time.Unix(int64(le.Uint32(b[0x10:])), 0)}
		entries := int(le.Uint16(b[0x2a:]))
		if le.Uint16(b[0x28:]) != extentMagic || le.Uint16(b[0x2e:]) != 0 || entries > perRoot {
			return nil, fmt.Errorf("inode %d is not a directory with extents", number)
		}
		for n := range entries {
			e := b[0x28+12+12*n:]
			x := extent{
				length:   uint32(le.Uint16(e[4:])),
				physical: uint64(le.Uint32(e[8:])) | uint64(le.Uint16(e[6:]))<<32,
			}
			if x.length > maxExtent || x.physical+uint64(x.length) > f.blocks {
				return nil, fmt.Errorf("inode %d has blocks beyond the end", number)
			}
			f.release(x)
		}
		return &node{ino: ino, children: map[string]*node{}}, nil
	}
	var err error
	if f.root, err = load(rootInode, 0o755); err != nil {
		return err
	}
	if f.lost, err = load(firstInode, 0o700); err != nil {
		return err
	}
	f.lost.name = "lost+found"
	f.root.children[f.lost.name] = f.lost
	f.root.ino.links++
	return nil
}

func (f *fsys) inodeAt(number uint32) int64 {
	g := f.groups[int(number-1)/f.inodesPerGroup]
	return int64(g.inodeTable)*blockSize + int64(int(number-1)%f.inodesPerGroup)*inodeSize
}

// find returns the node of a name; nil if it does not exist.
func (f *fsys) find(name []string) (*node, error) {
	at := f.root
	for i, part := range name {
		next := at.children[part]
		if next == nil {
			return nil, nil
		}
		if !next.ino.isDir() && i < len(name)-1 {
			return nil, fmt.Errorf("%w: %.100q is not a directory", ErrStream, part)
		}
		at = next
	}
	return at, nil
}

// parentOf returns the parent directory of a name, and makes it if it is missing.
func (f *fsys) parentOf(name []string) (*node, error) {
	at := f.root
	for _, part := range name[:len(name)-1] {
		next := at.children[part]
		if next == nil {
			ino := &inode{mode: modeDir | 0o755, mtime: time.Unix(0, 0)}
			if err := f.add(at, part, ino); err != nil {
				return nil, err
			}
			next = at.children[part]
		}
		if !next.ino.isDir() {
			return nil, fmt.Errorf("%w: below %.100q, which is not a directory", ErrStream, part)
		}
		at = next
	}
	return at, nil
}

// add adds a new inode to a directory, under an unused name.
func (f *fsys) add(at *node, name string, ino *inode) error {
	number, err := f.allocateInode(ino.isDir())
	if err != nil {
		return err
	}
	ino.number = number
	n := &node{name: name, ino: ino}
	if ino.isDir() {
		n.children = map[string]*node{}
		at.ino.links++
	} else {
		ino.links = 1
	}
	at.children[name] = n
	return nil
}

// place puts ino at a name. An existing directory takes over the attributes of a new one; anything else is replaced.
// place returns nil if ino needs no further work.
func (f *fsys) place(name []string, ino *inode) (*node, error) {
	at, err := f.parentOf(name)
	if err != nil {
		return nil, err
	}
	base := name[len(name)-1]
	if old := at.children[base]; old != nil {
		if old.ino.isDir() && ino.isDir() {
			return nil, f.updateStat(old.ino, ino)
		}
		if err := f.remove(at, old); err != nil {
			return nil, err
		}
	}
	if err := f.add(at, base, ino); err != nil {
		return nil, err
	}
	return at.children[base], nil
}

// setRoot sets the attributes of the root to those of the stream.
func (f *fsys) setRoot(ino *inode) error { return f.updateStat(f.root.ino, ino) }

// updateStat sets owner, mode, time and attributes of a directory to those of another inode.
func (f *fsys) updateStat(old, ino *inode) error {
	if old.acl != 0 {
		f.release(extent{length: 1, physical: old.acl})
	}
	old.mode, old.uid, old.gid, old.mtime = ino.mode, ino.uid, ino.gid, ino.mtime
	old.inline, old.acl = ino.inline, ino.acl
	return nil
}

// remove removes a name from a directory, with everything below it.
func (f *fsys) remove(at, n *node) error {
	if n == f.lost {
		return fmt.Errorf("%w: lost+found must be a directory", ErrStream)
	}
	for _, child := range n.children {
		if err := f.remove(n, child); err != nil {
			return err
		}
	}
	delete(at.children, n.name)
	ino := n.ino
	if ino.isDir() {
		at.ino.links--
	} else if ino.links--; ino.links > 0 {
		return nil
	}
	for _, e := range ino.extents {
		f.release(e)
	}
	if ino.acl != 0 {
		f.release(extent{length: 1, physical: ino.acl})
	}
	f.releaseInode(ino.number, ino.isDir())
	return nil
}

// link makes a name a hard link to the file of n.
func (f *fsys) link(name []string, n *node) error {
	at, err := f.parentOf(name)
	if err != nil {
		return err
	}
	base := name[len(name)-1]
	old := at.children[base]
	if old != nil && old.ino == n.ino {
		return nil
	}
	if n.ino.links >= maxLinks {
		return fmt.Errorf("%w: a file has more than %d names", ErrStream, maxLinks)
	}
	n.ino.links++
	if old != nil {
		if err := f.remove(at, old); err != nil {
			return err
		}
	}
	at.children[base] = &node{name: base, ino: n.ino}
	return nil
}

// sorted returns the children of a directory in the order of their inodes, which is the order of reads.
func (n *node) sorted() []*node {
	all := make([]*node, 0, len(n.children))
	for _, child := range n.children {
		all = append(all, child)
	}
	slices.SortFunc(all, func(a, b *node) int {
		return cmp.Or(cmp.Compare(a.ino.number, b.ino.number), cmp.Compare(a.name, b.name))
	})
	return all
}

// finish writes directories, inodes and tables, and completes the report.
func (f *fsys) finish(ctx context.Context, report *Report) error {
	var inodes []*inode
	seen := map[*inode]bool{}
	var walk func(n, parent *node) error
	walk = func(n, parent *node) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if n.ino.links > 1 && !n.ino.isDir() {
			if seen[n.ino] {
				report.Files++
				return nil
			}
			seen[n.ino] = true
		}
		inodes = append(inodes, n.ino)
		if !n.ino.isDir() {
			report.Files++
			if n.ino.mode&modeKind == modeFile {
				report.Bytes += n.ino.size
			}
			return nil
		}
		report.Dirs++
		children := n.sorted()
		if err := f.writeDir(n, parent, children); err != nil {
			return err
		}
		for _, child := range children {
			if err := walk(child, n); err != nil {
				return err
			}
		}
		return nil
	}
	if err := walk(f.root, f.root); err != nil {
		return err
	}
	slices.SortFunc(inodes, func(a, b *inode) int { return cmp.Compare(a.number, b.number) })
	if err := f.writeInodes(inodes); err != nil {
		return err
	}
	report.Free = int64(f.freeBlocks) * blockSize
	report.Used = int64(f.blocks-f.freeBlocks) * blockSize
	return f.flushGroups()
}

// writeInodes writes inodes in the order of their numbers. It writes the blocks of their extents first, so the inodes
// are collected before.
func (f *fsys) writeInodes(inodes []*inode) error {
	encoded := make([]byte, 0, 1<<20)
	start := int64(0)
	put := func() error {
		err := errors.Join(f.out.flush(), f.out.write(encoded, start), f.out.flush())
		encoded = encoded[:0]
		return err
	}
	for _, ino := range inodes {
		b, err := f.encode(ino)
		if err != nil {
			return err
		}
		at := f.inodeAt(ino.number)
		if len(encoded) > 0 && (at != start+int64(len(encoded)) || len(encoded) == cap(encoded)) {
			if err := put(); err != nil {
				return err
			}
		}
		if len(encoded) == 0 {
			start = at
		}
		encoded = append(encoded, b...)
	}
	return put()
}

// writeDir writes the blocks of a directory.
func (f *fsys) writeDir(n, parent *node, children []*node) error {
	d := &dirWriter{block: make([]byte, 0, blockSize)}
	d.entry(n.ino.number, ".", modeDir)
	d.entry(parent.ino.number, "..", modeDir)
	for _, child := range children {
		d.entry(child.ino.number, child.name, child.ino.mode)
	}
	d.end()
	n.ino.size = int64(len(d.done))
	return f.append(n.ino, 0, d.done)
}

// dirWriter makes the blocks of a directory.
type dirWriter struct {
	done  []byte
	block []byte
	last  int // where the last entry of block begins
}

func (d *dirWriter) entry(number uint32, name string, mode uint16) {
	size := (8 + len(name) + 3) &^ 3
	if len(d.block)+size > blockSize {
		d.end()
	}
	d.last = len(d.block)
	d.block = d.block[:d.last+size]
	e := d.block[d.last:]
	clear(e)
	le.PutUint32(e[0:], number)
	le.PutUint16(e[4:], uint16(size))
	e[6], e[7] = byte(len(name)), dirKinds[mode&modeKind]
	copy(e[8:], name)
}

// end extends the last entry to the end of the block.
func (d *dirWriter) end() {
	le.PutUint16(d.block[d.last+4:], uint16(blockSize-d.last))
	n := len(d.block)
	d.block = d.block[:blockSize]
	clear(d.block[n:])
	d.done = append(d.done, d.block...)
	d.block, d.last = d.block[:0], 0
}

var dirKinds = map[uint16]byte{modeFile: 1, modeDir: 2, modeChar: 3, modeBlock: 4, modeFifo: 5, modeLink: 7}
