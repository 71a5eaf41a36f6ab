package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/lib/durable"
)

// Content of an anonymous snapshot's mark. Anything but notConsumed means consumed.
const (
	notConsumed = '0'
	isConsumed  = '1'
)

// MarkConsumed durably records that the state of an anonymous snapshot must not be restored again. Its memory
// still serves the holders of references. MarkConsumed overwrites one byte in place, which costs one write
// and no change of the file system's metadata.
func (s *Store) MarkConsumed(ref Ref) error { return s.setConsumed(ref, isConsumed) }

// UnmarkConsumed durably takes MarkConsumed back. It returns an error if the snapshot has no disks (any more): its
// memory is then older than those of the machine that it was restored for.
func (s *Store) UnmarkConsumed(ref Ref) error {
	snap, err := s.Get(ref)
	if err == nil && !snap.Disk {
		err = fmt.Errorf("it has no disks: %w", ErrInvalid)
	}
	if err == nil {
		err = snap.checkDisks()
	}
	if err != nil {
		return fmt.Errorf("unmark snapshot %s: %w", ref, err)
	}
	return s.setConsumed(ref, notConsumed)
}

func (s *Store) setConsumed(ref Ref, mark byte) error {
	e := s.anonymous(ref)
	if e == nil {
		return fmt.Errorf("mark snapshot %s as consumed: %w", ref, ErrNotFound)
	}
	f, err := os.OpenFile(filepath.Join(e.dir, consumedFile), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("mark snapshot %s as consumed: %w", ref, err)
	}
	_, err = f.WriteAt([]byte{mark}, 0)
	if err := errors.Join(err, unix.Fdatasync(int(f.Fd())), f.Close()); err != nil {
		return fmt.Errorf("mark snapshot %s as consumed: %w", ref, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.snap.consumed = mark != notConsumed
	return nil
}

// anonymous returns the entry of an anonymous snapshot, nil if there is none.
func (s *Store) anonymous(ref Ref) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[ref]; e != nil && e.err == nil && e.snap.Anonymous {
		return e
	}
	return nil
}

// RemoveDisks removes the disks of a consumed anonymous snapshot.
// The memory continues to serve the holders of references. A snapshot that does not exist any more is no error.
func (s *Store) RemoveDisks(ref Ref) error {
	e := s.anonymous(ref)
	if e == nil {
		return nil
	}
	s.mu.Lock()
	consumed := e.snap.consumed
	s.mu.Unlock()
	if !consumed {
		return fmt.Errorf("remove the disks of snapshot %s: it is not consumed: %w", ref, ErrInvalid)
	}
	for _, path := range DiskPaths(e.dir, e.snap.Data) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the disks of snapshot %s: %w", ref, err)
		}
	}
	return nil
}

// AddDisks durably adds disks to an anonymous snapshot that has none, and returns the result.
// clone makes the file of each, in the order of the snapshot's disks. A failure, or a kill, leaves a snapshot without
// disks.
func (s *Store) AddDisks(ref Ref, clone func(disk int, path string) error) (Snapshot, error) {
	e := s.anonymous(ref)
	if e == nil {
		return Snapshot{}, fmt.Errorf("add disks to snapshot %s: %w", ref, ErrNotFound)
	}
	s.mu.Lock()
	snap := e.snap
	s.mu.Unlock()
	if snap.Disk || snap.consumed {
		return Snapshot{}, fmt.Errorf("add disks to snapshot %s: it has disks or is consumed: %w", ref, ErrInvalid)
	}
	for i, path := range DiskPaths(e.dir, snap.Data) {
		err := os.Remove(path) // of an attempt that was killed
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = clone(i, path)
		}
		if err == nil {
			err = syncFile(path)
		}
		if err != nil {
			return Snapshot{}, fmt.Errorf("add disks to snapshot %s: %w", ref, err)
		}
	}
	snap.Disk = true
	if err := snap.checkDisks(); err != nil {
		return Snapshot{}, err
	}
	if err := durable.WriteJSON(filepath.Join(e.dir, metaFile), snap); err != nil {
		return Snapshot{}, fmt.Errorf("add disks to snapshot %s: %w", ref, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.snap.Disk = true
	return e.snap, nil
}
