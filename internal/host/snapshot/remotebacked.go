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

// MarkLocal says that all content of a partial snapshot is in its files now, durably; they must not be
// written to any more. One that is whole is fine. ErrNotFound when there is no such snapshot.
func (s *Store) MarkLocal(ref Ref) error {
	s.mu.Lock()
	e := s.entries[ref]
	if e == nil || e.err != nil {
		s.mu.Unlock()
		return fmt.Errorf("complete %s: %w", ref, ErrNotFound)
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
		return fmt.Errorf("complete %s: %w", ref, err)
	}
	data, err := json.MarshalIndent(snap, "", "  ")
	if err != nil {
		return fmt.Errorf("complete %s: %w", ref, err)
	}
	if err := durable.WriteFile(filepath.Join(dir, metaFile), data, 0o600); err != nil {
		return fmt.Errorf("complete %s: %w", ref, err)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, originFile)), durable.SyncDir(dir)); err != nil {
		return fmt.Errorf("complete %s: %w", ref, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.snap.origin, e.snap.Bytes = nil, snap.Bytes
	return nil
}

// AcquireRemoteBacked gives the partial snapshots that are held or not deleted, in no order. Each is held once for the
// caller, who releases it.
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
