package oci

import (
	"archive/tar"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// inode is a file of the merged tree; hard links are several nodes with one inode.
type inode struct {
	header *tar.Header
	layer  int    // index of the layer with the content
	offset int64  // offset of the content in the file of the layer
	first  string // first name that was written; "" before
}

// node is a name in the merged tree.
type node struct {
	parent   *node
	depth    int
	inode    *inode
	children map[string]*node // of directories
}

func (n *node) isDir() bool  { return n.inode.header.Typeflag == tar.TypeDir }
func (n *node) isLink() bool { return n.inode.header.Typeflag == tar.TypeSymlink }

// tree is a file system made of layers. It has headers and no contents.
type tree struct {
	root   *node
	left   int           // number of names that may still be added
	memory *memoryBudget // for directories that no layer describes
}

// newTree returns an empty tree for at most limit names, replaced ones included.
func newTree(limit int, memory *memoryBudget) *tree {
	root := &node{inode: &inode{header: directory()}, children: map[string]*node{}}
	return &tree{root: root, left: limit, memory: memory}
}

// directory returns the header of a directory that no layer describes.
func directory() *tar.Header {
	return &tar.Header{Typeflag: tar.TypeDir, Mode: 0o755, Format: tar.FormatPAX}
}

// maxDepth bounds the depth of a name below the root.
const maxDepth = 512

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
	reserved = ".wh..wh." // internal names of AUFS, from which the format comes
)

var errEscape = errors.New("leaves the image")

// apply applies a layer: first its whiteouts, which remove entries of the layers below, then its entries.
func (t *tree) apply(layer int, records []record) error {
	for _, r := range records {
		dir, base, err := split(r.header.Name)
		if err == nil && strings.HasPrefix(base, whiteout) {
			err = t.whiteout(dir, base)
		}
		if err != nil {
			return fmt.Errorf("%w: %.100q %w", ErrCorrupt, r.header.Name, err)
		}
	}
	for _, r := range records {
		dir, base, err := split(r.header.Name)
		if err == nil && !strings.HasPrefix(base, whiteout) && r.header.Typeflag != tar.TypeXGlobalHeader {
			err = t.add(layer, dir, base, r)
		}
		if err != nil {
			if errors.Is(err, ErrTooLarge) {
				return err
			}
			return fmt.Errorf("%w: %.100q %w", ErrCorrupt, r.header.Name, err)
		}
		if t.left < 0 {
			return fmt.Errorf("%w: too many entries", ErrTooLarge)
		}
		r.header.Name = "" // the tree has it
	}
	return nil
}

// split cleans a name and splits it into directory and base. The base of the root is "".
func split(name string) (dir, base string, err error) {
	parts := strings.Split(name, "/")
	if slices.Contains(parts, "..") {
		return "", "", errEscape
	}
	if len(parts) > maxDepth {
		return "", "", errors.New("is too deep")
	}
	for _, p := range parts {
		if len(p) > 255 {
			return "", "", errors.New("has an element longer than 255 bytes")
		}
	}
	dir, base = path.Split(path.Clean("/" + name))
	return dir, base, nil
}

// whiteout removes the entries that a whiteout names.
func (t *tree) whiteout(dir, base string) error {
	at, err := t.find(dir)
	if err != nil || at == nil || !at.isDir() {
		return err // the layers below have no such directory
	}
	switch {
	case base == opaque:
		at.children = map[string]*node{}
	case strings.HasPrefix(base, reserved):
	default:
		name := strings.TrimPrefix(base, whiteout)
		if name == "" || name == "." || name == ".." {
			return errors.New("is a whiteout without a name")
		}
		delete(at.children, name)
	}
	return nil
}

// find returns the node at dir, or nil if it does not exist. It follows symbolic links inside the tree.
func (t *tree) find(dir string) (*node, error) { return t.resolve(t.root, dir, false, new(int)) }

// resolve follows a path from a node. It follows symbolic links like a process whose root is the tree. If create is set
// it makes missing directories and replaces files on the path by directories.
func (t *tree) resolve(at *node, p string, create bool, links *int) (*node, error) {
	for part := range strings.SplitSeq(p, "/") {
		switch part {
		case "", ".":
			continue
		case "..":
			if at.parent != nil {
				at = at.parent
			}
			continue
		}
		next := at.children[part]
		if next != nil && next.isLink() {
			if *links++; *links > 255 {
				return nil, errors.New("has too many symbolic links on its path")
			}
			from := at
			if strings.HasPrefix(next.inode.header.Linkname, "/") {
				from = t.root
			}
			var err error
			if next, err = t.resolve(from, next.inode.header.Linkname, create, links); err != nil {
				return nil, err
			}
		}
		switch {
		case next != nil && next.isDir():
		case !create:
			return nil, nil
		default:
			if at.depth >= maxDepth {
				return nil, errors.New("is too deep")
			}
			if err := t.memory.take(entryMemory + directoryMemory); err != nil {
				return nil, err
			}
			next = t.put(at, part, &inode{header: directory()})
		}
		at = next
	}
	return at, nil
}

// put adds name to the directory at, with the inode ino.
func (t *tree) put(at *node, name string, ino *inode) *node {
	n := &node{parent: at, depth: at.depth + 1, inode: ino}
	if n.isDir() {
		n.children = map[string]*node{}
	}
	t.left--
	at.children[strings.Clone(name)] = n // name may be a part of a long path
	return n
}

// add adds one entry of a layer to the tree.
func (t *tree) add(layer int, dir, base string, r record) error {
	h := r.header
	if base == "" {
		if h.Typeflag != tar.TypeDir {
			return errors.New("is the root, but not a directory")
		}
		t.root.inode.header = h
		return nil
	}
	at, err := t.resolve(t.root, dir, true, new(int))
	if err != nil {
		return err
	}
	old := at.children[base]
	switch h.Typeflag {
	case tar.TypeDir:
		if old != nil && old.isDir() {
			old.inode.header = h
			return nil
		}
	case tar.TypeLink:
		target, err := t.target(h.Linkname)
		if err != nil {
			return err
		}
		if old == nil || old.inode != target {
			t.put(at, base, target)
		}
		return nil
	}
	t.put(at, base, &inode{header: h, layer: layer, offset: r.offset})
	return nil
}

// target finds the target of a hard link: a name in the current tree, whose last element is not followed.
func (t *tree) target(name string) (*inode, error) {
	dir, base, err := split(name)
	if err != nil {
		return nil, fmt.Errorf("is a hard link to %.100q, which %w", name, err)
	}
	at, err := t.find(dir)
	if err != nil {
		return nil, err
	}
	if at == nil || base == "" || at.children[base] == nil || at.children[base].isDir() {
		return nil, fmt.Errorf("is a hard link to %.100q, which is not an earlier file", name)
	}
	return at.children[base].inode, nil
}

// visit calls do with every node but the root, directories before their entries, names sorted.
func (t *tree) visit(do func(name string, n *node) error) error {
	var below func(string, *node) error
	below = func(prefix string, dir *node) error {
		names := make([]string, 0, len(dir.children))
		for name := range dir.children {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			n := dir.children[name]
			if len(prefix)+len(name) > 4095 {
				return fmt.Errorf("%w: %.100q is longer than 4095 bytes", ErrCorrupt, prefix)
			}
			if err := do(prefix+name, n); err != nil {
				return err
			}
			if n.isDir() {
				if err := below(prefix+name+"/", n); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return below("", t.root)
}
