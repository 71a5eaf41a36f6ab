package snapshot_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/host/snapshot"
)

func TestRemoteBackedSnapshotBecomesLocal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	snap := commit(t, s, snapshot.Snapshot{Ref: "snapshots/snp1", DiskMiB: 1}.WithOrigin([]byte("over there")))
	if !snap.RemoteBacked() {
		t.Error("RemoteBacked() after Commit = false, want true")
	}
	s = open(t, dir) // another process
	snap, err := s.Get("snapshots/snp1")
	if err != nil || !snap.RemoteBacked() || string(snap.Origin()) != "over there" {
		t.Fatalf("snapshot = %+v, %v; want it remote-backed with its origin", snap, err)
	}
	list := s.AcquireRemoteBacked()
	if len(list) != 1 || list[0].Ref != "snapshots/snp1" {
		t.Fatalf("AcquireRemoteBacked() = %v, want snapshots/snp1", list)
	}
	if err := s.MarkLocal("snapshots/snp1"); err != nil {
		t.Fatal(err)
	}
	if err := s.MarkLocal("snapshots/snp1"); err != nil {
		t.Errorf("second MarkLocal: got %v, want nil", err)
	}
	if err := s.MarkLocal("snapshots/snp2"); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("MarkLocal of a missing snapshot: got %v, want ErrNotFound", err)
	}
	if err := s.Release("snapshots/snp1"); err != nil {
		t.Error(err)
	}
	for _, s := range []*snapshot.Store{s, open(t, dir)} {
		if snap, err := s.Get("snapshots/snp1"); err != nil || snap.RemoteBacked() ||
			len(s.AcquireRemoteBacked()) != 0 {
			t.Errorf("snapshot = %+v, %v; want it local", snap, err)
		}
	}
}

// MarkLocal is repeated after a kill between the writing of the description and the removal of the origin.
func TestKilledMarkLocalIsRepeatable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	commit(t, s, snapshot.Snapshot{Ref: "snapshots/snp1", DiskMiB: 1}.WithOrigin([]byte("over there")))
	mark := filepath.Join(dir, "snapshots", "snp1", "partial")
	if err := s.MarkLocal("snapshots/snp1"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mark, []byte("over there"), 0o600); err != nil {
		t.Fatal(err)
	}
	if snap, err := open(t, dir).Get("snapshots/snp1"); err != nil || !snap.RemoteBacked() {
		t.Errorf("snapshot after a killed MarkLocal = %+v, %v; want it remote-backed", snap, err)
	}
}
