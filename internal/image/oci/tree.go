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
	layer  int    // whose file holds the content
	offset int64  // of the content
	first  string // the name it was written under, "" before
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

// tree is a file system made of layers. It holds headers, no contents.
type tree struct {
	root *node
	left int // names that may yet be put into it
}

// newTree is an empty tree for at most limit names, counting those that a later layer replaces.
func newTree(limit int) *tree {
	return &tree{root: &node{inode: &inode{header: directory()}, children: map[string]*node{}}, left: limit}
}

// directory is the header of one that no layer describes.
func directory() *tar.Header {
	return &tar.Header{Typeflag: tar.TypeDir, Mode: 0o755, Format: tar.FormatPAX}
}

// maxDepth bounds how deep a name lies below the root.
const maxDepth = 512

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
	reserved = ".wh..wh." // names of the file system that the format comes from
)

var errEscape = errors.New("leaves the image")

// apply puts a layer on the tree: first what it takes away of the layers below, then what it brings.
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
			return fmt.Errorf("%w: %.100q %w", ErrCorrupt, r.header.Name, err)
		}
		if t.left < 0 {
			return fmt.Errorf("%w: it has too many entries", ErrTooLarge)
		}
	}
	return nil
}

// split cleans a name and takes it apart. The base of the root is "".
func split(name string) (dir, base string, err error) {
	parts := strings.Split(name, "/")
	if slices.Contains(parts, "..") {
		return "", "", errEscape
	}
	if len(parts) > maxDepth {
		return "", "", errors.New("lies too deep")
	}
	for _, p := range parts {
		if len(p) > 255 {
			return "", "", errors.New("has an element longer than 255 bytes")
		}
	}
	dir, base = path.Split(path.Clean("/" + name))
	return dir, base, nil
}

// whiteout removes what a whiteout names.
func (t *tree) whiteout(dir, base string) error {
	at, err := t.find(dir)
	if err != nil || at == nil || !at.isDir() {
		return err // there is nothing to take away
	}
	switch {
	case base == opaque:
		at.children = map[string]*node{}
	case strings.HasPrefix(base, reserved):
	default:
		name := strings.TrimPrefix(base, whiteout)
		if name == "" || name == "." || name == ".." {
			return errors.New("is a whiteout of nothing")
		}
		delete(at.children, name)
	}
	return nil
}

// find gives the node at dir, symbolic links followed inside of the tree; nil if it is not there.
func (t *tree) find(dir string) (*node, error) { return t.resolve(t.root, dir, false, new(int)) }

// resolve goes from a node along a path. Symbolic links are followed as a process would whose root the tree is.
// With create missing directories are made and files in the way replaced by directories.
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
				return nil, errors.New("goes through too many symbolic links")
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
				return nil, errors.New("lies too deep")
			}
			next = t.put(at, part, &inode{header: directory()})
		}
		at = next
	}
	return at, nil
}

// put makes name in at mean ino.
func (t *tree) put(at *node, name string, ino *inode) *node {
	n := &node{parent: at, depth: at.depth + 1, inode: ino}
	if n.isDir() {
		n.children = map[string]*node{}
	}
	t.left--
	at.children[name] = n
	return n
}

// add puts one entry of a layer into the tree.
func (t *tree) add(layer int, dir, base string, r record) error {
	h := r.header
	if base == "" {
		if h.Typeflag != tar.TypeDir {
			return errors.New("is the root, but no directory")
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

// target finds what a hard link means: a name in the tree as it is now, the last element not followed.
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
		return nil, fmt.Errorf("is a hard link to %.100q, which is no file before it", name)
	}
	return at.children[base].inode, nil
}

// visit calls do with every node but the root, directories before what they hold, names sorted.
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
