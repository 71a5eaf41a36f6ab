package nodebackup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/os/disk"
)

// excluded are the parts of a data directory that no backup has: caches, work that a start of the node does again or
// throws away, what belongs to processes that run, and the database, which is copied in another way.
var excluded = []string{
	"ballast", "bake", "bench", "cache", "captures", "chunks", "conformance", "drafts", "images", "jail", "lost+found",
	"qemu", "registry", "run", "stream", "volumes-bases", workDir, markerFile, databaseFile, databaseFile + "-wal",
	databaseFile + "-shm", databaseFile + "-journal", "apps/spool", "functions/spool",
}

// Names in a data directory.
const (
	databaseFile = "control.db"
	hostFile     = "host.id"
	keyFile      = "objects.key"
	machinesDir  = "machines"
	volumesDir   = "volumes"
	machineFile  = "machine.json"
	volumeFile   = "volume.json"
	snapshotFile = "snapshot.json"
	consumedFile = "spent"
	snapshotsDir = "snapshots"
	templatesDir = "templates"
	preMountDir  = "grounds"
	monitorDir   = "vm" // in the directory of a machine: files of the process that runs it
)

// stage is a copy of a data directory that shares its blocks: what is pushed, while the node goes on.
type stage struct {
	source  string
	dir     string // below source
	entries []entry
	known   map[string]bool // paths of entries
	copies  int
	schema  int64
	onCopy  func(path string) // for tests; may be nil
}

// steps are what staging consists of, in order. What a row of the database names was made before the row, so the
// database comes first. Machines come before snapshots: those that they need are copied with them.
func (s *stage) steps(keyPath string) []step {
	return []step{
		{"copy database", s.database},
		{"copy machines", func(ctx context.Context) error { return s.units(ctx, machinesDir, machineFile) }},
		{"copy volumes", func(ctx context.Context) error { return s.units(ctx, volumesDir, volumeFile) }},
		{"copy snapshots", func(ctx context.Context) error {
			for _, dir := range []string{snapshotsDir, templatesDir, preMountDir} {
				if err := s.snapshots(ctx, dir); err != nil {
					return err
				}
			}
			return nil
		}},
		{"copy files", func(ctx context.Context) error {
			return s.add(ctx, ".", machinesDir, volumesDir, snapshotsDir, templatesDir, preMountDir)
		}},
		{"copy keys", func(context.Context) error { return s.objectsKey(keyPath) }},
	}
}

// add copies everything below a path of the data directory except skip, and the directories above it. What disappears
// meanwhile is left out.
func (s *stage) add(ctx context.Context, name string, skip ...string) error {
	for _, above := range parents(name) {
		if err := s.addOne(above); err != nil {
			return err
		}
	}
	return filepath.WalkDir(filepath.Join(s.source, name), func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		rel, err := filepath.Rel(s.source, path)
		if err != nil || rel == "." {
			return err
		}
		if slices.Contains(excluded, rel) || slices.Contains(skip, rel) || isMonitorDir(rel) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		return s.addOne(rel)
	})
}

// parents returns the directories above a path, outermost first.
func parents(name string) (all []string) {
	for dir := filepath.Dir(name); dir != "." && dir != "/"; dir = filepath.Dir(dir) {
		all = append(all, dir)
	}
	slices.Reverse(all)
	return all
}

// isMonitorDir reports whether a path is the directory of a machine's monitor.
func isMonitorDir(rel string) bool {
	parts := strings.Split(rel, "/")
	return len(parts) == 3 && parts[0] == machinesDir && parts[2] == monitorDir
}

// addOne copies one file, link or directory, without what is in it.
func (s *stage) addOne(rel string) error {
	if s.known[rel] {
		return nil
	}
	path := filepath.Join(s.source, rel)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	e := entry{Path: rel, Mode: uint32(info.Mode().Perm()), Modified: info.ModTime().UTC()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		e.UID, e.GID = int(st.Uid), int(st.Gid)
	}
	switch {
	case info.IsDir():
		e.Kind = kindDir
	case info.Mode()&fs.ModeSymlink != 0:
		e.Kind = kindLink
		if e.Target, err = os.Readlink(path); err != nil {
			return ignoreMissing(err)
		}
	case info.Mode().IsRegular():
		e.Kind = kindFile
		if err := s.copy(&e, path); err != nil {
			return ignoreMissing(err)
		}
	default: // sockets and devices belong to processes
		return nil
	}
	s.known[rel] = true
	s.entries = append(s.entries, e)
	if s.onCopy != nil {
		s.onCopy(rel)
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// copy makes the copy of a file that is pushed.
func (s *stage) copy(e *entry, path string) error {
	s.copies++
	e.staged = filepath.Join(s.dir, fmt.Sprintf("f%d", s.copies))
	if err := disk.Clone(path, e.staged); err != nil {
		return err
	}
	return e.measure()
}

// measure sets the size of an entry from its copy.
func (e *entry) measure() error {
	info, err := os.Stat(e.staged)
	if err != nil {
		return err
	}
	e.Bytes = info.Size()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		e.blocks = st.Blocks * 512
	}
	return nil
}

// forget removes the copies of everything below a path.
func (s *stage) forget(rel string) error {
	var all error
	s.entries = slices.DeleteFunc(s.entries, func(e entry) bool {
		if e.Path != rel && !strings.HasPrefix(e.Path, rel+"/") {
			return false
		}
		delete(s.known, e.Path)
		if e.staged != "" {
			all = errors.Join(all, os.Remove(e.staged))
		}
		return true
	})
	return all
}

// database copies the database, as of this moment.
func (s *stage) database(ctx context.Context) (err error) {
	e := entry{Path: databaseFile, Kind: kindFile, Mode: 0o600, staged: filepath.Join(s.dir, databaseFile)}
	if s.schema, err = copyDatabase(ctx, filepath.Join(s.source, databaseFile), e.staged); err != nil {
		return err
	}
	s.known[e.Path] = true
	if err := e.measure(); err != nil {
		return err
	}
	s.entries = append(s.entries, e)
	return nil
}

// objectsKey copies the master key of the object store from a file outside of the data directory to where a restored
// node looks for it.
func (s *stage) objectsKey(path string) error {
	if path == "" || s.known[keyFile] {
		return nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	e := entry{Path: keyFile, Kind: kindFile, Mode: 0o600, staged: filepath.Join(s.dir, keyFile)}
	if err := durable.Replace(e.staged, data, 0o600); err != nil {
		return err
	}
	if err := e.measure(); err != nil {
		return err
	}
	s.known[keyFile] = true
	s.entries = append(s.entries, e)
	return nil
}

// attempts is how often something that changes while it is copied is copied again.
const attempts = 100

// units copies the directories below dir, each as of one moment: the record in it is the same before and after.
func (s *stage) units(ctx context.Context, dir, recordName string) error {
	list, err := os.ReadDir(filepath.Join(s.source, dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range list {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if err := s.unit(ctx, filepath.Join(dir, e.Name()), recordName); err != nil {
			return err
		}
	}
	return nil
}

// unit copies one directory and, with the record of a hibernated machine, the image that it names.
func (s *stage) unit(ctx context.Context, rel, recordName string) error {
	path := filepath.Join(s.source, rel, recordName)
	for attempt := range attempts {
		if err := s.forget(rel); err != nil {
			return err
		}
		before, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it is being made or removed
		}
		if err != nil {
			return err
		}
		if err := s.add(ctx, rel); err != nil {
			return err
		}
		usable, err := s.image(ctx, before, attempt == attempts-1)
		if err != nil {
			return err
		}
		after, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return s.forget(rel)
		}
		if err != nil {
			return err
		}
		if usable && bytes.Equal(before, after) {
			return nil
		}
	}
	return fmt.Errorf("%s changed %d times while it was copied; make the backup again", rel, attempts)
}

// image copies the image of a hibernated machine. It reports false if the image was used, so that the record is about
// to change. With last the image is copied as it is: the recovery of the machine knows what to do.
func (s *stage) image(ctx context.Context, record []byte, last bool) (usable bool, err error) {
	var in struct {
		State string `json:"state"`
		Base  string `json:"base"`
	}
	if json.Unmarshal(record, &in) != nil || in.State != "hibernated" || !fs.ValidPath(in.Base) {
		return true, nil
	}
	if err := s.snapshot(ctx, in.Base); err != nil {
		return false, err
	}
	i := slices.IndexFunc(s.entries, func(e entry) bool { return e.Path == filepath.Join(in.Base, consumedFile) })
	if i < 0 { // the image is missing, and was before: recovery of the machine says so
		return true, nil
	}
	mark, err := os.ReadFile(s.entries[i].staged)
	if err != nil {
		return false, err
	}
	if string(mark) == "0" || last {
		return true, nil
	}
	return false, s.forget(in.Base)
}

// snapshot copies one snapshot, unless it is copied already.
func (s *stage) snapshot(ctx context.Context, ref string) error {
	if s.known[filepath.Join(ref, snapshotFile)] {
		return nil
	}
	if err := s.add(ctx, ref); err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(s.source, ref, snapshotFile)); errors.Is(err, fs.ErrNotExist) {
		return s.forget(ref) // it was removed meanwhile
	} else if err != nil {
		return err
	}
	return nil
}

// snapshots copies all snapshots below an area, at any depth.
func (s *stage) snapshots(ctx context.Context, area string) error {
	list, err := os.ReadDir(filepath.Join(s.source, area))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.addOne(area); err != nil {
		return err
	}
	for _, e := range list {
		rel := filepath.Join(area, e.Name())
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if _, err := os.Lstat(filepath.Join(s.source, rel, snapshotFile)); err == nil {
			err = s.snapshot(ctx, rel)
			if err != nil {
				return err
			}
			continue
		}
		if err := s.snapshots(ctx, rel); err != nil {
			return err
		}
	}
	return nil
}
