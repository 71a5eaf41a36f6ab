package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/lib/durable"
)

// Draft is a snapshot being made: a directory to be filled with an image and disks. It ends with Commit or
// Discard. Open removes drafts that a killed process left.
type Draft struct {
	store *Store
	dir   string
}

// Draft starts a new snapshot.
func (s *Store) Draft() (*Draft, error) {
	dir, err := os.MkdirTemp(filepath.Join(s.root, draftsDir), "d")
	if err != nil {
		return nil, fmt.Errorf("create snapshot: %w", err)
	}
	d := &Draft{store: s, dir: dir}
	if err := errors.Join(os.Chmod(dir, 0o711), os.Mkdir(d.ImageDir(), 0o711)); err != nil {
		return nil, errors.Join(fmt.Errorf("create snapshot: %w", err), d.Discard())
	}
	return d, nil
}

// ImageDir returns an empty directory for the driver to save into.
func (d *Draft) ImageDir() string { return filepath.Join(d.dir, imageDir) }

// DiskPath returns the path for the image of the root disk, if the snapshot has one.
func (d *Draft) DiskPath() string { return filepath.Join(d.dir, diskFile) }

// Discard removes the draft. After Commit it does nothing.
func (d *Draft) Discard() error { return os.RemoveAll(d.dir) }

// Commit durably turns the draft into the snapshot that snap describes, and acquires it once. The snapshot is
// invisible until Commit returns nil. Commit returns ErrExists if the name is taken.
func (d *Draft) Commit(snap Snapshot) (Snapshot, error) {
	if err := snap.Ref.check(); err != nil {
		return Snapshot{}, err
	}
	if err := checkNamesAndMounts(snap.Data); err != nil {
		return Snapshot{}, fmt.Errorf("commit snapshot %s: %w", snap.Ref, err)
	}
	s := d.store
	to := filepath.Join(s.root, filepath.FromSlash(string(snap.Ref)))
	snap.Version = Version
	if err := d.finish(&snap); err != nil {
		return Snapshot{}, fmt.Errorf("commit snapshot %s: %w", snap.Ref, err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o711); err != nil {
		return Snapshot{}, fmt.Errorf("commit snapshot %s: %w", snap.Ref, err)
	}
	if err := s.reserve(snap.Ref); err != nil {
		return Snapshot{}, err
	}
	if err := errors.Join(os.Rename(d.dir, to), durable.SyncDir(filepath.Dir(to))); err != nil {
		return Snapshot{}, errors.Join(fmt.Errorf("commit snapshot %s: %w", snap.Ref, err), s.abortCommit(snap.Ref, to))
	}
	snap.dir = to
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries[snap.Ref] = &entry{snap: snap, dir: to, refs: 1}
	return snap, nil
}

// reserve takes a name, so that the slow part of a commit does not need the lock.
func (s *Store) reserve(ref Ref) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries[ref] != nil {
		return fmt.Errorf("%s: %w", ref, ErrExists)
	}
	s.entries[ref] = &entry{err: fmt.Errorf("%s: %w", ref, ErrNotFound), refs: 1}
	return nil
}

// abortCommit ends a commit whose rename failed or could not be made durable.
func (s *Store) abortCommit(ref Ref, dir string) error {
	s.mu.Lock()
	delete(s.entries, ref)
	s.mu.Unlock()
	return durable.RemoveAll(dir)
}

// finish measures the draft, makes its disks durable and writes its description.
func (d *Draft) finish(snap *Snapshot) (err error) {
	if snap.Bytes, err = d.store.ownBytes(d.dir); err != nil {
		return err
	}
	var syncs errgroup.Group // all at once: the file system writes its log once for all of them
	defer func() { err = errors.Join(err, syncs.Wait()) }()
	if err := d.finishDisks(snap, &syncs); err != nil {
		return err
	}
	small := map[string][]byte{}
	if snap.Anonymous {
		small[consumedFile] = []byte{notConsumed}
	}
	if snap.origin != nil {
		small[originFile] = snap.origin
	}
	if small[metaFile], err = json.MarshalIndent(snap, "", "  "); err != nil {
		return err
	}
	for name, data := range small {
		path := filepath.Join(d.dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
		syncs.Go(func() error { return syncFile(path) })
	}
	// The draft becomes visible by a rename later, so its entries are made durable once, all together.
	syncs.Go(func() error { return durable.SyncDir(d.dir) })
	return nil
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// allocatedBytes is the default Measure.
func allocatedBytes(path string) (apparent, own int64, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return info.Size(), info.Size(), nil
	}
	return info.Size(), st.Blocks * 512, nil
}
