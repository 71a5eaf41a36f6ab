package dockerfile

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// OpenTar makes a Context of an uncompressed tar stream of size bytes, which must not change. The stream is untrusted:
// OpenTar refuses names that leave the context, files below symbolic links, devices and sparse files. keep is as in
// OpenDir.
func OpenTar(r io.ReaderAt, size int64, limits Limits, keep ...string) (*Context, error) {
	c := newContext(limits)
	c.open = func(e *entry) (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(r, e.offset, e.size)), nil
	}
	section := io.NewSectionReader(r, 0, size)
	stream := tar.NewReader(section)
	for seen := 0; ; seen++ {
		h, err := stream.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			return nil, fmt.Errorf("%w: read tar stream: %w", ErrContext, err)
		}
		if seen > 2*c.limits.MaxFiles {
			return nil, contextErrorf("more than %d files", c.limits.MaxFiles)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		e, err := c.fromTar(h)
		if err != nil || e == nil {
			if err != nil {
				return nil, err
			}
			continue
		}
		if e.mode.IsRegular() && h.Typeflag != tar.TypeLink {
			// The reader has read exactly the headers, so the content begins here.
			if e.offset, err = section.Seek(0, io.SeekCurrent); err != nil {
				return nil, fmt.Errorf("read build context: %w", err)
			}
			if e.size > size-e.offset {
				return nil, contextErrorf("%s: the tar stream is truncated", truncate(e.name, 200))
			}
		}
		if err := c.add(e); err != nil {
			return nil, err
		}
	}
	if err := c.applyIgnore(keep); err != nil {
		return nil, err
	}
	return c, c.finish()
}

// fromTar returns the entry of a header, or nil for the root of the context.
func (c *Context) fromTar(h *tar.Header) (*entry, error) {
	name, err := cleanName(h.Name)
	if err != nil {
		return nil, err
	}
	if name == "." {
		return nil, nil
	}
	e := &entry{name: name, mode: h.FileInfo().Mode(), modified: h.ModTime}
	switch h.Typeflag {
	case tar.TypeReg:
		if sparse(h) {
			return nil, contextErrorf("%s is a sparse file", truncate(name, 200))
		}
		e.size = h.Size
	case tar.TypeDir:
	case tar.TypeSymlink:
		e.link = h.Linkname
	case tar.TypeLink:
		target, err := cleanName(h.Linkname)
		if err != nil {
			return nil, err
		}
		old := c.entries[target]
		if old == nil || old.isDir() {
			return nil, contextErrorf(
				"%s is a hard link to %s, which is not an earlier file",
				truncate(name, 200),
				truncate(target, 200),
			)
		}
		e.mode, e.size, e.link, e.offset, e.modified = old.mode, old.size, old.link, old.offset, old.modified
	default:
		return nil, contextErrorf("%s is neither file, directory nor link", truncate(name, 200))
	}
	return e, nil
}

func sparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// cleanName returns the clean form of a name in a tar stream. It refuses names that leave the root.
func cleanName(name string) (string, error) {
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "", contextErrorf("%s leaves the context", truncate(name, 200))
	}
	if strings.Contains(name, "\x00") {
		return "", contextErrorf("a file name has a zero byte")
	}
	return path.Clean("./" + strings.TrimLeft(name, "/")), nil
}

// applyIgnore removes the entries that .dockerignore excludes, and hides those that are excluded and kept.
func (c *Context) applyIgnore(keep []string) error {
	var text []byte
	if e := c.entries[ignoreName]; e != nil && e.mode.IsRegular() {
		var err error
		if text, err = c.ReadFile(ignoreName, 1<<20); err != nil {
			return err
		}
	}
	ig, err := newIgnore(text, keep)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(c.entries))
	for name := range c.entries {
		names = append(names, name)
	}
	slices.Sort(names) // a directory comes before its entries
	needed := map[string]bool{}
	for _, name := range names {
		if name == "." {
			continue
		}
		if err := c.spend(ig.patterns); err != nil {
			return err
		}
		out, _, err := ig.match(name, c.entries[name].isDir())
		if err != nil {
			return err
		}
		c.entries[name].ignored = out
		if !out || ig.keep[name] {
			for dir := path.Dir(name); dir != "." && !needed[dir]; dir = path.Dir(dir) {
				needed[dir] = true
			}
		}
	}
	for _, name := range slices.Backward(names) {
		e := c.entries[name]
		switch {
		case name == "." || !e.ignored:
			if dir := c.entries[path.Dir(name)]; dir != nil {
				dir.ignored = false // an entry needs the directories above it
			}
		case !needed[name] && !ig.keep[name]:
			delete(c.entries, name)
			c.bytes -= e.size
		}
	}
	return nil
}

// Pack writes all files, including kept ones, as a tar stream for OpenTar.
func (c *Context) Pack(w io.Writer) error {
	out := tar.NewWriter(w)
	var walk func(string) error
	walk = func(name string) error {
		e := c.entries[name]
		if name != "." {
			if err := c.writeEntry(out, e, name, overrides{mode: -1}); err != nil {
				return err
			}
		}
		for _, child := range e.children {
			if err := walk(child); err != nil {
				return err
			}
		}
		return nil
	}
	if err := walk("."); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("write tar stream: %w", err)
	}
	return nil
}

// overrides are the owner and mode of a written file.
type overrides struct {
	uid, gid int
	mode     int64 // -1: the mode in the context
}

// writeEntry writes e under name.
func (c *Context) writeEntry(out *tar.Writer, e *entry, name string, with overrides) (err error) {
	h := &tar.Header{
		Name:    name,
		Uid:     with.uid,
		Gid:     with.gid,
		ModTime: e.modified,
		Mode:    int64(unixMode(e.mode)),
		Format:  tar.FormatPAX,
	}
	if with.mode >= 0 && !e.isLink() {
		h.Mode = with.mode
	}
	switch {
	case e.isDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case e.isLink():
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
	default:
		h.Typeflag, h.Size = tar.TypeReg, e.size
	}
	if err := out.WriteHeader(h); err != nil {
		return fmt.Errorf("write tar stream: %w", err)
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	r, err := c.open(e)
	if err != nil {
		return fmt.Errorf("read build context: %w", err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if n, err := io.Copy(out, io.LimitReader(r, e.size)); err != nil {
		return fmt.Errorf("copy %s of the build context: %w", truncate(e.name, 200), err)
	} else if n < e.size {
		return contextErrorf("%s shrank while it was read", truncate(e.name, 200))
	}
	return nil
}

// unixMode returns the permission bits with setuid, setgid and sticky.
func unixMode(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	for flag, bit := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&flag != 0 {
			bits |= bit
		}
	}
	return bits
}
