//go:build vm

package probe_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/test/vmlab"
)

// TestChooseAccelerator boots real guests, once; the second call uses the kept result.
func TestChooseAccelerator(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(vmlab.Open(t).Data, "kernel"), filepath.Join(dir, "kernel")); err != nil {
		t.Fatal(err)
	}
	c := probe.Config{DataDir: dir}
	first, err := probe.ChooseAccelerator(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", first)
	if _, err := os.Stat(filepath.Join(dir, "run", "accelerator.json")); err != nil {
		t.Errorf("the result was not kept: %v", err)
	}
	again, err := probe.ChooseAccelerator(t.Context(), c)
	if err != nil || again != first {
		t.Errorf("second ChooseAccelerator: got %+v, %v, want %+v", again, err, first)
	}
}
