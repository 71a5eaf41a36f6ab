//go:build root

package integrationtest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/integrationtest"
	"github.com/pandastack/pandastack/internal/os/disk/disktest"
)

// TestFullDataDirectory fills the file system of a data directory to the last byte: what frees space works, keys can be
// made, creates say what is short, and everything works again when there is space.
func TestFullDataDirectory(t *testing.T) {
	dir := disktest.Dir(t, 512<<20)
	w := integrationtest.Open(t, dir, "")
	boxes := w.Client.Sandboxes
	one, other := create(t, w, api.CreateRequest{Persistent: true}), create(t, w, api.CreateRequest{})
	snap, err := boxes.Snapshot(t.Context(), one.ID, api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(dir, "ballast")
	until(t, "the ballast exists", func() bool { _, err := os.Stat(ballast); return err == nil })
	disktest.FillUp(t, dir)
	if got := sh(t, w, other.ID, "echo on"); got != "on" {
		t.Errorf("output on a full disk = %q, want on", got)
	}
	if _, err := w.Client.Tokens.Create(t.Context(), api.TokenRequest{Name: "late"}); err != nil {
		t.Errorf("create of a key on a full disk: %v, want none", err)
	}
	for name, remove := range map[string]func() error{
		"sandbox":            func() error { return boxes.Delete(t.Context(), other.ID) },
		"persistent sandbox": func() error { return boxes.Delete(t.Context(), one.ID) },
		"snapshot":           func() error { return w.Client.Snapshots.Delete(t.Context(), snap.ID) },
	} {
		if err := remove(); err != nil {
			t.Errorf("delete of a %s on a full disk: %v, want none", name, err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "stuff")); err != nil {
		t.Fatal(err)
	}
	until(t, "a sandbox can be created", func() bool {
		_, err := boxes.Create(t.Context(), api.CreateRequest{})
		return err == nil
	})
	until(t, "the ballast is back", func() bool { _, err := os.Stat(ballast); return err == nil })
}
