package dockerfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// Limits bound a context. A zero field means the default.
type Limits struct {
	MaxFiles int   // number of files, directories and links; default 200,000
	MaxBytes int64 // size of all files, with archives unpacked; default 8 GiB
	MaxWork  int64 // number of files visited and patterns matched by all uses of a Context; default 100 million
}

func (l Limits) withDefaults() Limits {
	if l.MaxFiles == 0 {
		l.MaxFiles = 200_000
	}
	if l.MaxBytes == 0 {
		l.MaxBytes = 8 << 30
	}
	if l.MaxWork == 0 {
		l.MaxWork = 100_000_000
	}
	return l
}

// ErrContext is wrapped by every error about the content of a context. Errors of reading it do not wrap it.
var ErrContext = errors.New("build context")

func contextErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrContext}, args...)...)
}

// entry is a file, directory or symbolic link of a context. Its fields do not change once the Context is made.
type entry struct {
	name     string // clean, relative, "." for the root
	mode     fs.FileMode
	size     int64
	modified time.Time
	link     string // target of a symbolic link
	offset   int64  // of the content in a tar stream
	ignored  bool   // excluded by .dockerignore, kept for ReadFile
	children []string

	once sync.Once // guards sum and err
	sum  [32]byte  // SHA-256 of the content
	err  error
}

func (e *entry) isDir() bool  { return e.mode.IsDir() }
func (e *entry) isLink() bool { return e.mode&fs.ModeSymlink != 0 }

// Context is the set of files that COPY and ADD may name.
//
// It has the files of a directory or of a tar stream without those that its .dockerignore excludes. It may be used by
// several goroutines.
type Context struct {
	limits  Limits
	entries map[string]*entry
	open    func(*entry) (io.ReadCloser, error)
	bytes   int64
	files   int
	work    atomic.Int64 // work so far, as Limits.MaxWork counts it
}

// spend counts work and returns an error beyond the limit.
func (c *Context) spend(n int) error {
	if c.work.Add(int64(n)) > c.limits.MaxWork {
		return contextErrorf("too many patterns for so many files")
	}
	return nil
}

func newContext(limits Limits) *Context {
	c := &Context{limits: limits.withDefaults(), entries: map[string]*entry{}}
	c.entries["."] = &entry{name: ".", mode: fs.ModeDir | 0o755}
	return c
}

// Files returns the number of files, directories and links that are not excluded.
func (c *Context) Files() int { return c.files }

// Bytes returns the size of all files that are not excluded.
func (c *Context) Bytes() int64 { return c.bytes }

// OpenDir makes a Context of a directory. It opens files when they are read, so the directory must not change. An entry
// that is not a file, directory or symbolic link is an error unless it is excluded. For a directory of the host use
// os.OpenRoot and Root.FS, so that no symbolic link leaves it. The files in keep, such as the Dockerfile, are available
// to ReadFile and Pack even if they are excluded.
func OpenDir(fsys fs.FS, limits Limits, keep ...string) (*Context, error) {
	c := newContext(limits)
	c.open = func(e *entry) (io.ReadCloser, error) { return fsys.Open(e.name) }
	text, err := readSmall(fsys, ignoreName)
	if err != nil {
		return nil, err
	}
	ig, err := newIgnore(text, keep)
	if err != nil {
		return nil, err
	}
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("read build context: %w", err)
		}
		if name == "." {
			return nil
		}
		if err := c.spend(ig.patterns); err != nil {
			return err
		}
		out, skip, err := ig.match(name, d.IsDir())
		if err != nil {
			return err
		}
		switch {
		case out && skip:
			return fs.SkipDir
		case out && !ig.keep[name]:
			return nil
		}
		e := &entry{name: name, mode: d.Type(), ignored: out}
		if err := e.fromDir(fsys, d); err != nil {
			return err
		}
		return c.add(e)
	})
	if err != nil {
		return nil, err
	}
	return c, c.finish()
}

func (e *entry) fromDir(fsys fs.FS, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return fmt.Errorf("read build context: %w", err)
	}
	e.mode, e.modified = info.Mode(), info.ModTime()
	switch {
	case e.isDir():
	case e.isLink():
		if e.link, err = fs.ReadLink(fsys, e.name); err != nil {
			return fmt.Errorf("read build context: %w", err)
		}
	case e.mode.IsRegular():
		e.size = info.Size()
	default:
		return contextErrorf("%s is neither file, directory nor symbolic link", truncate(e.name, 200))
	}
	return nil
}

// add adds e and the directories above it.
func (c *Context) add(e *entry) error {
	if len(e.name) > 4096 || strings.Count(e.name, "/") > 255 {
		return contextErrorf("%s: the path is too long", truncate(e.name, 100))
	}
	if err := c.parents(e); err != nil {
		return err
	}
	if old := c.entries[e.name]; old != nil {
		if old.isDir() != e.isDir() {
			return contextErrorf("%s is a directory and something else", truncate(e.name, 200))
		}
		c.files--
		c.bytes -= old.size
	}
	c.entries[e.name] = e
	c.files++
	c.bytes += e.size
	return c.bounded()
}

func (c *Context) bounded() error {
	if c.files > c.limits.MaxFiles {
		return contextErrorf("more than %d files", c.limits.MaxFiles)
	}
	if c.bytes > c.limits.MaxBytes {
		return contextErrorf("larger than %d bytes", c.limits.MaxBytes)
	}
	return nil
}

// parents makes the directories above e.
func (c *Context) parents(e *entry) error {
	for dir := path.Dir(e.name); ; dir = path.Dir(dir) {
		above := c.entries[dir]
		if above != nil && !above.isDir() {
			return contextErrorf("%s is below %s, which is not a directory", truncate(e.name, 200), truncate(dir, 200))
		}
		if above == nil {
			c.entries[dir] = &entry{name: dir, mode: fs.ModeDir | 0o755, modified: e.modified, ignored: e.ignored}
			c.files++
			continue
		}
		above.ignored = above.ignored && e.ignored
		if dir == "." {
			return nil
		}
	}
}

// finish sorts the children of all directories.
func (c *Context) finish() error {
	c.files = 0
	for name, e := range c.entries {
		e.children = nil
		if name != "." && !e.ignored {
			c.files++
		}
	}
	for name := range c.entries {
		if name != "." {
			dir := c.entries[path.Dir(name)]
			dir.children = append(dir.children, name)
		}
	}
	for _, e := range c.entries {
		slices.Sort(e.children)
	}
	return nil
}

// ReadFile reads a file of at most limit bytes, which may be an excluded file that was kept. The error wraps
// fs.ErrNotExist if the file does not exist.
func (c *Context) ReadFile(name string, limit int64) ([]byte, error) {
	e := c.entries[path.Clean(strings.TrimLeft(name, "/"))]
	if e == nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrContext, truncate(name, 200), fs.ErrNotExist)
	}
	e, err := c.resolve(e)
	if err != nil {
		return nil, err
	}
	if !e.mode.IsRegular() || e.size > limit {
		return nil, contextErrorf("%s is not a file of at most %d bytes", truncate(name, 200), limit)
	}
	r, err := c.open(e)
	if err != nil {
		return nil, fmt.Errorf("read build context: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(r, limit))
	return text, errors.Join(err, r.Close())
}

// resolve follows symbolic links from e, inside the context.
func (c *Context) resolve(e *entry) (*entry, error) {
	start := e.name
	for range 40 {
		if !e.isLink() {
			return e, nil
		}
		next, err := c.lookup(path.Dir(e.name), e.link, 40)
		if err != nil {
			return nil, err
		}
		if next == nil {
			return nil, contextErrorf("%s is a symbolic link to nothing in the context", truncate(start, 200))
		}
		e = next
	}
	return nil, contextErrorf("%s: too many symbolic links", truncate(start, 200))
}

// lookup resolves name relative to dir. It follows symbolic links of directories but not of the last element. It
// returns nil if the file does not exist.
func (c *Context) lookup(dir, name string, links int) (*entry, error) {
	if path.IsAbs(name) {
		return nil, contextErrorf("a symbolic link leads to %s, outside of the context", truncate(name, 200))
	}
	parts := strings.Split(name, "/")
	at := dir
	for i, part := range parts {
		switch part {
		case "", ".":
			continue
		case "..":
			if at == "." {
				return nil, contextErrorf("%s leads outside of the context", truncate(name, 200))
			}
			at = path.Dir(at)
			continue
		}
		at = path.Join(at, part)
		e := c.entries[at]
		if e == nil {
			return nil, nil
		}
		if e.isLink() && i < len(parts)-1 {
			if links == 0 {
				return nil, contextErrorf("%s: too many symbolic links", truncate(name, 200))
			}
			next, err := c.lookup(path.Dir(at), e.link+"/.", links-1)
			if next == nil || err != nil {
				return nil, err
			}
			at = next.name
		}
	}
	return c.entries[at], nil
}

const ignoreName = ".dockerignore"

// ignore is the patterns of a .dockerignore.
type ignore struct {
	keep     map[string]bool
	patterns int
	matcher  *patternmatcher.PatternMatcher
	parents  map[string]patternmatcher.MatchInfo // of directories
}

func newIgnore(text []byte, keep []string) (*ignore, error) {
	ig := &ignore{keep: map[string]bool{ignoreName: true}, parents: map[string]patternmatcher.MatchInfo{}}
	for _, name := range keep {
		ig.keep[path.Clean(strings.TrimLeft(name, "/"))] = true
	}
	patterns, err := ignorefile.ReadAll(bytes.NewReader(text))
	if err == nil && len(patterns) > 10_000 {
		err = errors.New("more than 10000 patterns")
	}
	ig.patterns = 1 + len(patterns)
	if err == nil {
		ig.matcher, err = patternmatcher.New(patterns)
	}
	if err != nil {
		return nil, contextErrorf("%s: %v", ignoreName, err)
	}
	return ig, nil
}

// match reports whether name is excluded, and whether everything below it is certainly excluded, too. It must be called
// for a directory before the entries in it.
func (ig *ignore) match(name string, dir bool) (out, skip bool, err error) {
	out, info, err := ig.matcher.MatchesUsingParentResults(name, ig.parents[path.Dir(name)])
	if err != nil {
		return false, false, contextErrorf("%s: %v", ignoreName, err)
	}
	if !dir {
		return out, false, nil
	}
	ig.parents[name] = info
	if !out || ig.matcher.Exclusions() {
		return out, false, nil
	}
	for kept := range ig.keep {
		if strings.HasPrefix(kept, name+"/") {
			return out, false, nil
		}
	}
	return out, true, nil
}

func readSmall(fsys fs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read build context: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read build context: %w", err)
	}
	return text, nil
}
