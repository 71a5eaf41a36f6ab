package dockerfile

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/patternmatcher"
)

// Selection is the set of files of a context that a Copy names.
type Selection struct {
	// Digest has 64 hexadecimal digits. It depends on all names, kinds, permissions and contents, and not on the times
	// and owners in the context.
	Digest    string
	Files     int   // number of files, directories and links
	Bytes     int64 // size of the files, with archives packed
	Directory bool  // Copy.Dest must be a directory; names in the stream are below it

	c     *Context
	copy  Copy
	items []item
}

// item is one entry to write.
type item struct {
	name    string // relative to the destination
	entry   *entry // nil: data
	data    string
	archive bool // an archive that is unpacked
}

// Owner splits Chown into user and group, each a name, a number or "". Without a group it is that of the user.
func (c Copy) Owner() (user, group string) {
	user, group, _ = strings.Cut(c.Chown, ":")
	return user, group
}

// mode returns the mode of Chmod, or -1 without one.
func (c Copy) mode() int64 {
	mode, err := strconv.ParseInt(c.Chmod, 8, 32)
	if err != nil || mode > 0o7777 {
		return -1
	}
	return mode
}

// Select finds the files of c that cp names. A pattern may match nothing if another source matches.
func (c *Context) Select(cp Copy) (*Selection, error) {
	exclude, err := patternmatcher.New(cp.Exclude)
	if err != nil {
		return nil, contextErrorf("--exclude: %v", err)
	}
	s := &Selection{c: c, copy: cp, Directory: strings.HasSuffix(cp.Dest, "/") || cp.Parents}
	f := &finder{s: s, exclude: exclude, seen: map[string]int{}}
	for _, src := range cp.Sources {
		if err := checkSource(src); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrContext, err)
		}
		if err := f.addSource(src); err != nil {
			return nil, err
		}
	}
	for _, file := range cp.Files {
		f.addItem(item{name: file.Name, data: file.Data})
	}
	if !f.found && len(cp.Files) == 0 {
		return nil, contextErrorf("nothing matches %s", truncate(strings.Join(cp.Sources, " "), 200))
	}
	if f.sources > 1 {
		s.Directory = true
	}
	return s, s.digest()
}

// finder collects the items of a Selection.
type finder struct {
	s       *Selection
	exclude *patternmatcher.PatternMatcher
	seen    map[string]int // index of the item by name; a later item replaces it
	found   bool
	sources int // number of files and directories that sources name
}

func (f *finder) addItem(it item) {
	if i, ok := f.seen[it.name]; ok && !it.archive {
		f.s.items[i] = it
		return
	}
	if !it.archive {
		f.seen[it.name] = len(f.s.items)
	}
	f.s.items = append(f.s.items, it)
}

// addSource adds the files that one source names.
func (f *finder) addSource(src string) error {
	base := "" // prefix of the path that --parents drops
	pattern := strings.TrimLeft(src, "/")
	if f.s.copy.Parents {
		if before, after, ok := strings.Cut(pattern, "/./"); ok {
			base, pattern = path.Clean(before), before+"/"+after
		}
	}
	pattern = path.Clean(pattern)
	c := f.s.c
	if !strings.ContainsAny(pattern, `*?[\`) {
		e, err := c.lookup(".", pattern, 40)
		if err != nil {
			return err
		}
		if e == nil || e.ignored {
			return contextErrorf("%s does not exist%s", truncate(src, 200), c.ignoreHint(e))
		}
		return f.addMatch(e, pattern, base)
	}
	names := []string{"."}
	for _, part := range strings.Split(pattern, "/") {
		var next []string
		for _, dir := range names {
			if err := c.spend(len(c.entries[dir].children)); err != nil {
				return err
			}
			for _, child := range c.entries[dir].children {
				ok, err := path.Match(part, path.Base(child))
				if err != nil {
					return contextErrorf("%s: %v", truncate(src, 200), err)
				}
				if ok && !c.entries[child].ignored {
					next = append(next, child)
				}
			}
		}
		names = next
	}
	for _, name := range names {
		if err := f.addMatch(c.entries[name], name, base); err != nil {
			return err
		}
	}
	return nil
}

func (c *Context) ignoreHint(e *entry) string {
	if e != nil {
		return ": " + ignoreName + " excludes it"
	}
	if c.entries[ignoreName] != nil {
		return " (check whether " + ignoreName + " excludes it)"
	}
	return ""
}

// addMatch adds a file under its base name, or the content of a directory.
func (f *finder) addMatch(e *entry, name, base string) error {
	f.found = true
	f.sources++
	if f.s.copy.KeepLinks && e.isLink() && path.IsAbs(e.link) {
		return f.addFile(e, path.Base(name))
	}
	full, err := f.s.c.resolve(e)
	if err != nil {
		return err
	}
	if f.s.copy.Parents {
		rel := strings.TrimPrefix(strings.TrimPrefix(name, base), "/")
		for i, r := range rel {
			if r == '/' {
				if dir := f.s.c.entries[path.Join(base, rel[:i])]; dir != nil && dir.isDir() {
					f.addItem(item{name: rel[:i], entry: dir})
				}
			}
		}
		if full.isDir() && rel != "." && rel != "" {
			f.addItem(item{name: rel, entry: full})
		}
		if full.isDir() {
			return f.addChildren(full, rel, full.name)
		}
		return f.addFile(full, rel)
	}
	if full.isDir() {
		f.s.Directory = true
		return f.addChildren(full, "", full.name)
	}
	return f.addFile(full, path.Base(name))
}

// addFile adds a file that a source names.
func (f *finder) addFile(e *entry, name string) error {
	if out, err := f.excluded(path.Base(name)); out || err != nil {
		return err
	}
	it := item{name: name, entry: e}
	if f.s.copy.Unpack && e.mode.IsRegular() {
		kind, err := f.s.c.archiveKind(e)
		if err != nil {
			return err
		}
		if it.archive = kind != notArchive; it.archive {
			f.s.Directory = true
		}
	}
	f.addItem(it)
	return nil
}

func (f *finder) excluded(name string) (bool, error) {
	if len(f.s.copy.Exclude) == 0 {
		return false, nil
	}
	if err := f.s.c.spend(len(f.s.copy.Exclude) * (1 + strings.Count(name, "/"))); err != nil {
		return false, err
	}
	out, err := f.exclude.MatchesOrParentMatches(name)
	if err != nil {
		return false, contextErrorf("--exclude: %v", err)
	}
	return out, nil
}

// addChildren adds the content of the directory dir. Patterns of --exclude are relative to root, the directory that the
// source names.
func (f *finder) addChildren(dir *entry, under, root string) error {
	if err := f.s.c.spend(len(dir.children)); err != nil {
		return err
	}
	for _, child := range dir.children {
		e := f.s.c.entries[child]
		if e.ignored {
			continue
		}
		rel := strings.TrimPrefix(strings.TrimPrefix(child, root), "/")
		if root == "." {
			rel = child
		}
		out, err := f.excluded(rel)
		if err != nil {
			return err
		}
		name := path.Join(under, path.Base(child))
		if !out {
			f.addItem(item{name: name, entry: e})
		}
		if e.isDir() && (!out || f.exclude.Exclusions()) {
			if err := f.addChildren(e, name, root); err != nil {
				return err
			}
		}
	}
	return nil
}

// digest sorts the items by name, counts and hashes them.
func (s *Selection) digest() error {
	slices.SortStableFunc(s.items, func(a, b item) int { return strings.Compare(a.name, b.name) })
	k := keyer{sha256.New()}
	k.str("selection 1", fmt.Sprint(s.Directory))
	for _, it := range s.items {
		s.Files++
		if it.entry == nil {
			s.Bytes += int64(len(it.data))
			k.str(it.name, "data", it.data)
			continue
		}
		e := it.entry
		s.Bytes += e.size
		k.str(it.name, fmt.Sprintf("%o %t", uint32(e.mode), it.archive), e.link)
		if e.mode.IsRegular() {
			sum, err := s.c.sum(e)
			if err != nil {
				return err
			}
			k.str(string(sum[:]))
		}
	}
	s.Digest = hex.EncodeToString(k.h.Sum(nil))
	return nil
}

// sum returns the SHA-256 of a file, which it computes once.
func (c *Context) sum(e *entry) ([32]byte, error) {
	e.once.Do(func() {
		r, err := c.open(e)
		if err != nil {
			e.err = fmt.Errorf("read build context: %w", err)
			return
		}
		h := sha256.New()
		n, err := io.Copy(h, io.LimitReader(r, e.size))
		if err = errors.Join(err, r.Close()); err != nil {
			e.err = fmt.Errorf("read build context: %w", err)
		} else if n != e.size {
			e.err = contextErrorf("%s became smaller while it was read", truncate(e.name, 200))
		}
		h.Sum(e.sum[:0])
	})
	return e.sum, e.err
}

// WriteTar writes the files as a tar stream, directories before their content. Files of the context belong to uid and
// gid; entries of an archive keep their owners unless Copy.Chown is set. If Directory is set, the first entry is "./",
// the destination, which the reader makes if it does not exist.
func (s *Selection) WriteTar(ctx context.Context, w io.Writer, uid, gid int) error {
	out := tar.NewWriter(w)
	u := &unpacker{s: s, out: out, files: s.Files, bytes: s.Bytes, uid: uid, gid: gid}
	if s.Directory {
		top := &tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755, Uid: uid, Gid: gid, Format: tar.FormatPAX}
		if err := out.WriteHeader(top); err != nil {
			return fmt.Errorf("write tar stream: %w", err)
		}
	}
	for _, it := range s.items {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("write files of the build context: %w", err)
		}
		var err error
		switch {
		case it.archive:
			err = u.unpack(ctx, it.entry)
		case it.entry == nil:
			err = writeData(out, it, uid, gid, s.copy.mode())
		default:
			err = s.c.writeEntry(out, it.entry, it.name, overrides{uid, gid, s.copy.mode()})
		}
		if err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("write tar stream: %w", err)
	}
	return nil
}

// writeData writes a here-document.
func writeData(out *tar.Writer, it item, uid, gid int, mode int64) error {
	if mode < 0 {
		mode = 0o644
	}
	h := &tar.Header{
		Typeflag: tar.TypeReg,
		Name:     it.name,
		Size:     int64(len(it.data)),
		Mode:     mode,
		Uid:      uid,
		Gid:      gid,
		Format:   tar.FormatPAX,
	}
	err := out.WriteHeader(h)
	if err == nil {
		_, err = io.WriteString(out, it.data)
	}
	if err != nil {
		return fmt.Errorf("write tar stream: %w", err)
	}
	return nil
}
