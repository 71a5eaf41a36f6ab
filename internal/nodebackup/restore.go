package nodebackup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/os/disk"
)

// Names in a data directory while it is restored.
const (
	markerFile = "restore.incomplete" // the first thing made and the last removed; the node does not start with it
	workDir    = ".restore"
)

// replaceable is what 'pandastack setup' leaves in an empty data directory.
var replaceable = []string{"ballast", "cache", "kernel", "lost+found", "run"}

// NotEmptyError says that a directory cannot be restored into.
type NotEmptyError struct{ Dir, Has string }

// Error implements error.
func (e *NotEmptyError) Error() string {
	return fmt.Sprintf("%s is not empty (it has %s): restore into an empty directory, named with --data-dir", e.Dir,
		e.Has)
}

// IncompleteError says that a data directory was not restored completely.
type IncompleteError struct{ Dir string }

// Error implements error.
func (e *IncompleteError) Error() string {
	return fmt.Sprintf("%s holds a part of a backup, because a restore was interrupted: run 'pandastack backup "+
		"restore' again, or remove the directory", e.Dir)
}

// CheckComplete returns *IncompleteError for a data directory whose restore was interrupted.
func CheckComplete(dataDir string) error {
	_, err := os.Lstat(filepath.Join(dataDir, markerFile))
	if err == nil {
		return &IncompleteError{dataDir}
	}
	return ignoreMissing(err)
}

// Target is where a backup is restored.
type Target struct {
	DataDir string // empty; it can clone files, and is locked by the caller
	OnStep  func(step string) error
}

// Restore writes a backup into an empty data directory, or one whose restore was interrupted. After an error nothing is
// left in it.
func (r *Repository) Restore(ctx context.Context, id ID, to Target) (b Backup, err error) {
	dir, err := filepath.Abs(to.DataDir)
	if err != nil {
		return b, err
	}
	if err := checkEmpty(dir); err != nil {
		return b, err
	}
	o, err := r.open(ctx, id)
	if err != nil {
		return b, err
	}
	marker := filepath.Join(dir, markerFile)
	if err := durable.WriteFile(marker, []byte(string(o.id)+"\n"), 0o600); err != nil {
		return b, err
	}
	defer func() {
		if err != nil && !errors.Is(err, ErrAbandon) {
			err = errors.Join(err, clearDir(dir), os.Remove(marker))
		}
	}()
	if err := clearDir(dir); err != nil {
		return b, err
	}
	t := &restorer{r: r, o: o, dir: dir, work: filepath.Join(dir, workDir)}
	if err := run(ctx, t.steps(), to.OnStep); err != nil {
		return b, fmt.Errorf("restore backup %s: %w", o.id, err)
	}
	if err := durable.RemoveAll(marker); err != nil {
		return b, err
	}
	return o.d.backup(o.id), nil
}

// checkEmpty returns an error unless a directory is empty, except for what setup makes, or an interrupted restore has
// left what is in it.
func checkEmpty(dir string) error {
	if _, err := os.Lstat(filepath.Join(dir, markerFile)); err == nil {
		return nil
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		if !slices.Contains(replaceable, e.Name()) {
			return &NotEmptyError{dir, e.Name()}
		}
	}
	return nil
}

// clearDir removes what an interrupted restore has left.
func clearDir(dir string) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var all error
	for _, e := range list {
		if e.Name() != markerFile && !slices.Contains(replaceable, e.Name()) {
			all = errors.Join(all, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return all
}

// restorer is one restore under way.
type restorer struct {
	r         *Repository
	o         *opened
	dir, work string
	stored    map[chunkstore.Name]place // the first place of each chunk that was written
}

// place is where pages of a chunk are on this host.
type place struct {
	path string
	chunkstore.Extent
}

func (t *restorer) steps() []step {
	return []step{
		{"check space", t.checkSpace},
		{"read files", t.read},
		{"arrange files", t.arrange},
		{"sync", func(context.Context) error { return syncFileSystem(t.dir) }},
		{"move into place", t.move},
	}
}

// checkSpace returns an error if the content cannot fit.
func (t *restorer) checkSpace(context.Context) error {
	free, _, err := disk.Free(t.dir)
	if err != nil {
		return err
	}
	need, seen := int64(0), map[chunkstore.Name]bool{}
	for _, m := range t.o.parts {
		for _, c := range m.Chunks {
			if !seen[c.Name] {
				seen[c.Name] = true
				need += int64(c.Pages) * chunkstore.PageSize
			}
		}
	}
	if need > free {
		return fmt.Errorf("the backup needs %d MiB and %s has %d MiB free", need>>20, t.dir, free>>20)
	}
	return nil
}

// read writes the content of all files. Content that is in several files is read once and shared.
func (t *restorer) read(ctx context.Context) (err error) {
	t.stored = map[chunkstore.Name]place{}
	if err := os.Mkdir(t.work, 0o700); err != nil {
		return err
	}
	none, err := cache.Open(cache.Config{Dir: filepath.Join(t.work, "cache")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, none.Close()) }()
	for i, m := range t.o.parts {
		dir := t.partDir(i)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		alone, again := t.split(dir, m)
		if _, err := t.r.chunks.Reader(alone, none).Pull(ctx, dir, nil, nil); err != nil {
			return err
		}
		for _, c := range again {
			if err := c.clone(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *restorer) partDir(i int) string { return filepath.Join(t.work, fmt.Sprintf("part%d", i)) }

// sharing is a run of pages of a file that are elsewhere on this host.
type sharing struct {
	to, from     string
	page, source int64 // in the two files
	count        int
}

func (c sharing) clone() error {
	src, err := os.Open(c.from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(c.to, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	const page = chunkstore.PageSize
	err = disk.CloneRangeTo(dst, c.page*page, src, c.source*page, int64(c.count)*page)
	return errors.Join(err, dst.Close())
}

// split separates what must be read of a manifest from what is elsewhere on this host by then.
func (t *restorer) split(dir string, m *chunkstore.Manifest) (alone *chunkstore.Manifest, again []sharing) {
	only := *m
	only.Files = slices.Clone(m.Files)
	for i, f := range m.Files {
		path := filepath.Join(dir, f.Name)
		full := f.Bytes / chunkstore.PageSize // pages that can be shared
		var read []chunkstore.Extent
		for _, e := range f.Extents {
			name := m.Chunks[e.Chunk].Name
			first, ok := t.stored[name]
			switch {
			case ok && e.At >= first.At && e.At+e.Count <= first.At+first.Count && e.Page+int64(e.Count) <= full:
				again = append(again, sharing{path, first.path, e.Page, first.Page + int64(e.At-first.At), e.Count})
				continue
			case !ok && e.Page+int64(e.Count) <= full:
				t.stored[name] = place{path, e}
			}
			read = append(read, e)
		}
		only.Files[i].Extents = read
	}
	return &only, again
}

// arrange gives every file its name, owner and mode. Links are made after everything that could be written through
// them; directories get their times last.
func (t *restorer) arrange(context.Context) error {
	tree := filepath.Join(t.work, "tree")
	if err := os.Mkdir(tree, 0o700); err != nil {
		return err
	}
	var dirs, links []entry
	for _, e := range t.o.entries {
		path := filepath.Join(tree, filepath.FromSlash(e.Path))
		switch e.Kind {
		case kindDir:
			if err := os.Mkdir(path, 0o700); err != nil {
				return err
			}
			dirs = append(dirs, e)
		case kindLink:
			links = append(links, e)
		case kindFile:
			if err := os.Rename(filepath.Join(t.partDir(e.Part), e.Name), path); err != nil {
				return err
			}
			if err := e.apply(path); err != nil {
				return err
			}
		}
	}
	for _, e := range links {
		path := filepath.Join(tree, filepath.FromSlash(e.Path))
		if err := errors.Join(os.Symlink(e.Target, path), os.Lchown(path, e.UID, e.GID)); err != nil {
			return err
		}
	}
	for _, e := range slices.Backward(dirs) {
		if err := e.apply(filepath.Join(tree, filepath.FromSlash(e.Path))); err != nil {
			return err
		}
	}
	return nil
}

// apply sets owner, mode and time.
func (e entry) apply(path string) error {
	if err := os.Chown(path, e.UID, e.GID); err != nil {
		return err
	}
	if err := os.Chmod(path, fs.FileMode(e.Mode)); err != nil {
		return err
	}
	if e.Modified.IsZero() {
		return nil
	}
	return os.Chtimes(path, time.Time{}, e.Modified)
}

// move moves the files to their places in the data directory, the database last.
func (t *restorer) move(context.Context) error {
	tree := filepath.Join(t.work, "tree")
	list, err := os.ReadDir(tree)
	if err != nil {
		return err
	}
	slices.SortStableFunc(list, func(a, b os.DirEntry) int { // the database sorts last
		return boolInt(a.Name() == databaseFile) - boolInt(b.Name() == databaseFile)
	})
	for _, e := range list {
		to := filepath.Join(t.dir, e.Name())
		if slices.Contains(replaceable, e.Name()) && !strings.HasPrefix(e.Name(), "run") {
			if err := os.RemoveAll(to); err != nil {
				return err
			}
		}
		if err := os.Rename(filepath.Join(tree, e.Name()), to); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(t.work); err != nil {
		return err
	}
	return syncFileSystem(t.dir)
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// syncFileSystem makes everything on the file system of a directory durable.
func syncFileSystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
