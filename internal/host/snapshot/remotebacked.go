package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pandastack/pandastack/internal/lib/durable"
)

// MarkLocal durably records that the files of a remote-backed snapshot now hold all its content. The files
// must not be written any more. MarkLocal does nothing for a local snapshot. It returns ErrNotFound if the
// snapshot does not exist.
func (s *Store) MarkLocal(ref Ref) error {
	s.mu.Lock()
	e := s.entries[ref]
	if e == nil || e.err != nil {
		s.mu.Unlock()
		return fmt.Errorf("mark snapshot %s as local: %w", ref, ErrNotFound)
	}
	snap, dir := e.snap, e.dir
	s.mu.Unlock()
	if !snap.RemoteBacked() {
		return nil
	}
	snap.origin, snap.Bytes = nil, 0
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		_, own, err := s.measure(path)
		snap.Bytes += own
		return err
	})
	if err != nil {
		return fmt.Errorf("mark snapshot %s as local: %w", ref, err)
	}
	data, err := json.MarshalIndent(snap, "", "  ")
	if err != nil {
		return fmt.Errorf("mark snapshot %s as local: %w", ref, err)
	}
	if err := durable.WriteFile(filepath.Join(dir, metaFile), data, 0o600); err != nil {
		return fmt.Errorf("mark snapshot %s as local: %w", ref, err)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, originFile)), durable.SyncDir(dir)); err != nil {
		return fmt.Errorf("mark snapshot %s as local: %w", ref, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.snap.origin, e.snap.Bytes = nil, snap.Bytes
	return nil
}

// AcquireRemoteBacked returns the remote-backed snapshots that are in use or not deleted, in no order. It
// acquires each of them once; the caller releases them.
func (s *Store) AcquireRemoteBacked() []Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Snapshot
	for _, e := range s.entries {
		if e.err == nil && e.snap.RemoteBacked() && (!e.removed || e.refs > 0) {
			e.refs++
			out = append(out, e.snap)
		}
	}
	return out
}
