package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/pandastack/pandastack/internal/lib/durable"
)

// Names below the root and in a snapshot's directory.
const (
	draftsDir    = "drafts"
	metaFile     = "snapshot.json"
	removedFile  = "removed"
	originFile   = "partial" // of remote-backed snapshots: their origin
	consumedFile = "spent"   // of anonymous snapshots: one byte, written in place
	imageDir     = "image"
	diskFile     = "disk.img"
)

// Measure returns the size of a file and how many of its bytes on disk no other file shares.
type Measure func(path string) (apparent, own int64, err error)

// Store is the set of snapshots below one directory.
type Store struct {
	root     string
	areas    []string
	measure  Measure
	released chan struct{} // see Released; has room for one

	mu        sync.Mutex
	entries   map[Ref]*entry
	gcEnabled bool // GC was called: files are removed with the last reference
}

type entry struct {
	snap    Snapshot
	dir     string
	refs    int
	removed bool
	err     error // why the snapshot cannot be returned: it is damaged, or being made
}

// Open reads the snapshots in the given areas of root and removes drafts that an earlier process left. A
// snapshot whose description cannot be read is kept; Get returns a *DamagedError for it, and it can be
// deleted. measure may be nil: sizes then count all blocks, shared or not.
func Open(root string, measure Measure, areas ...string) (*Store, error) {
	if measure == nil {
		measure = allocatedBytes
	}
	s := &Store{root: root, areas: areas, measure: measure, released: make(chan struct{}, 1), entries: map[Ref]*entry{}}
	drafts := filepath.Join(root, draftsDir)
	if err := os.RemoveAll(drafts); err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	if err := os.MkdirAll(drafts, 0o711); err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	for _, area := range areas {
		dir := filepath.Join(root, area)
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, fmt.Errorf("open snapshots: %w", err)
		}
		if err := s.scan(dir); err != nil {
			return nil, fmt.Errorf("open snapshots: %w", err)
		}
	}
	return s, nil
}

// scan finds snapshots below dir at any depth. It ignores everything else: other packages keep files there.
func (s *Store) scan(dir string) error {
	if err := durable.Sweep(dir); err != nil {
		return err
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		if !e.IsDir() {
			continue
		}
		sub := filepath.Join(dir, e.Name())
		rel, err := filepath.Rel(s.root, sub)
		if err != nil {
			return err
		}
		ref := Ref(filepath.ToSlash(rel))
		snap, err := read(sub, ref)
		if errors.Is(err, fs.ErrNotExist) {
			if err := s.scan(sub); err != nil {
				return err
			}
			continue
		}
		_, marked := os.Lstat(filepath.Join(sub, removedFile))
		s.entries[ref] = &entry{snap: snap, dir: sub, removed: marked == nil, err: err}
	}
	return nil
}

func read(dir string, ref Ref) (Snapshot, error) {
	var snap Snapshot
	err := durable.ReadJSON(filepath.Join(dir, metaFile), &snap)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Snapshot{}, err
	case err != nil:
		return Snapshot{}, &DamagedError{Ref: ref, File: metaFile, Problem: err.Error()}
	case snap.Version != Version:
		return Snapshot{}, &DamagedError{Ref: ref, File: metaFile,
			Problem: fmt.Sprintf("format version %d is not %d of this program", snap.Version, Version)}
	case snap.Ref != ref:
		return Snapshot{}, &DamagedError{Ref: ref, File: metaFile, Problem: fmt.Sprintf("names itself %s", snap.Ref)}
	}
	snap.dir = dir
	origin, err := os.ReadFile(filepath.Join(dir, originFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Snapshot{}, &DamagedError{Ref: ref, File: originFile, Problem: err.Error()}
	}
	snap.origin = origin
	if snap.Anonymous {
		mark, err := os.ReadFile(filepath.Join(dir, consumedFile))
		if err != nil || len(mark) != 1 {
			return Snapshot{}, &DamagedError{
				Ref:     ref,
				File:    consumedFile,
				Problem: fmt.Sprintf("%d bytes, %v", len(mark), err),
			}
		}
		snap.consumed = mark[0] != notConsumed
	}
	return snap, nil
}

// Get returns a snapshot. It returns ErrNotFound if the snapshot does not exist or is deleted.
func (s *Store) Get(ref Ref) (Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[ref]
	if e == nil || e.removed {
		return Snapshot{}, fmt.Errorf("%s: %w", ref, ErrNotFound)
	}
	return e.snap, e.err
}

// List returns the snapshots of an area that are neither deleted nor anonymous, oldest first.
func (s *Store) List(area string) []Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Snapshot
	for ref, e := range s.entries {
		if !e.removed && e.err == nil && !e.snap.Anonymous && strings.HasPrefix(string(ref), area+"/") {
			out = append(out, e.snap)
		}
	}
	slices.SortFunc(out, func(a, b Snapshot) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Ref, b.Ref))
	})
	return out
}

// Acquire returns a snapshot, deleted or not, and keeps its files until a matching Release.
func (s *Store) Acquire(ref Ref) (Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[ref]
	if e == nil {
		return Snapshot{}, fmt.Errorf("%s: %w", ref, ErrNotFound)
	}
	if e.err != nil {
		return Snapshot{}, e.err
	}
	e.refs++
	return e.snap, nil
}

// Release gives up a reference. With the last one the files of a deleted or anonymous snapshot are removed.
func (s *Store) Release(ref Ref) error {
	s.mu.Lock()
	e := s.entries[ref]
	if e == nil || e.refs == 0 {
		s.mu.Unlock()
		return fmt.Errorf("release snapshot %s: it is not acquired", ref)
	}
	e.refs--
	s.notifyReleased(e)
	unused := s.dropIfUnused(ref, e)
	s.mu.Unlock()
	return s.removeFiles(unused)
}

// Delete durably removes a snapshot from the list. Its files are removed with the last reference. It returns
// ErrNotFound if the snapshot does not exist or is deleted already.
func (s *Store) Delete(ref Ref) error {
	s.mu.Lock()
	e := s.entries[ref]
	if e == nil || e.removed || errors.Is(e.err, ErrNotFound) {
		s.mu.Unlock()
		return fmt.Errorf("%s: %w", ref, ErrNotFound)
	}
	if e.refs > 0 || !s.gcEnabled {
		if err := markDeleted(e.dir); err != nil {
			s.mu.Unlock()
			return fmt.Errorf("delete snapshot %s: %w", ref, err)
		}
	}
	e.removed = true
	s.notifyReleased(e)
	unused := s.dropIfUnused(ref, e)
	s.mu.Unlock()
	return s.removeFiles(unused)
}

// markDeleted durably records in a snapshot's directory that the snapshot is deleted. The mark is a hard link
// to an existing file: it takes no block, since the disk may be full when a user deletes snapshots to make
// room.
func markDeleted(dir string) error {
	err := os.Link(filepath.Join(dir, metaFile), filepath.Join(dir, removedFile))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return durable.SyncDir(dir)
}

// Released receives a value when a deleted snapshot loses a reference or a referenced one is deleted. A
// component that holds references only on behalf of others then calls InUse. The channel is for one reader.
func (s *Store) Released() <-chan struct{} { return s.released }

// notifyReleased wakes the reader of Released. The caller holds s.mu.
func (s *Store) notifyReleased(e *entry) {
	if !e.removed || e.refs == 0 {
		return
	}
	select {
	case s.released <- struct{}{}:
	default: // the reader has a value waiting
	}
}

// InUse reports whether a snapshot exists and is not deleted, or has more references than refs.
func (s *Store) InUse(ref Ref, refs int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[ref]
	return e != nil && (!e.removed || e.refs > refs)
}

// GC removes the files of all unreferenced snapshots that are deleted or anonymous. From then on such files
// are removed at once. Call it when everything in use is acquired.
func (s *Store) GC() error {
	s.mu.Lock()
	s.gcEnabled = true
	var unused []string
	for ref, e := range s.entries {
		unused = append(unused, s.dropIfUnused(ref, e)...)
	}
	s.mu.Unlock()
	return s.removeFiles(unused)
}

// dropIfUnused removes an entry whose files may go and returns their directories. The caller holds s.mu.
func (s *Store) dropIfUnused(ref Ref, e *entry) []string {
	if !s.gcEnabled || e.refs > 0 || !e.removed && !e.snap.Anonymous {
		return nil
	}
	delete(s.entries, ref)
	return []string{e.dir}
}

// UpdateSize measures again how much of the host's disk is the snapshot's own, and stores it durably. Blocks
// that the snapshot shared with a machine that has ended are now its own. The result is at least least bytes,
// for blocks that it shares with files kept on its behalf. UpdateSize returns ErrNotFound if the snapshot
// does not exist or is deleted.
func (s *Store) UpdateSize(ref Ref, least int64) error {
	snap, err := s.Get(ref)
	if err != nil {
		return err
	}
	bytes, err := s.ownBytes(snap.dir)
	snap.Bytes = max(bytes, least)
	if err == nil {
		err = durable.WriteJSON(filepath.Join(snap.dir, metaFile), snap)
	}
	if err != nil {
		return fmt.Errorf("update size of snapshot %s: %w", ref, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[ref]; e != nil && e.err == nil {
		e.snap.Bytes = snap.Bytes
	}
	return nil
}

// ownBytes returns how many bytes of the files below a directory no other file shares.
func (s *Store) ownBytes(dir string) (bytes int64, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		_, own, err := s.measure(path)
		bytes += own
		return err
	})
	return bytes, err
}

func (s *Store) removeFiles(dirs []string) error {
	var all error
	for _, dir := range dirs {
		all = errors.Join(all, durable.RemoveAll(dir))
	}
	return all
}
