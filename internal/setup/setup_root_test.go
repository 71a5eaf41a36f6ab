//go:build root

package setup_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/os/disk/disktest"
	"github.com/pandastack/pandastack/internal/setup"
)

// TestDataDirectory makes the data directory, finds it again after the machine lost its mounts, and removes it. It
// omits the other steps, which change the machine.
func TestDataDirectory(t *testing.T) {
	dir := filepath.Join(disktest.MountDir(t), "data")
	c := setup.Config{DataDir: dir, ImageGiB: 1}
	if err := setup.Apply(t.Context(), c, []setup.Step{{Kind: setup.MakeImage}}, setup.Report{}); err != nil {
		t.Fatal(err)
	}
	defer disk.RemoveDataDir(dir)
	f, err := setup.Inspect(t.Context(), c)
	if err != nil || !f.Image || !f.Mounted || !f.Reflink {
		t.Errorf("after Apply: got %+v, %v", f, err)
	}
	if err := disk.Unmount(dir); err != nil {
		t.Fatal(err)
	}
	f, err = setup.Inspect(t.Context(), c)
	if err != nil || !f.Image || f.Mounted {
		t.Errorf("after losing the mount: got %+v, %v", f, err)
	}
	if err := setup.Apply(t.Context(), c, []setup.Step{{Kind: setup.MountImage}}, setup.Report{}); err != nil {
		t.Fatal(err)
	}
	if err := disk.RemoveDataDir(dir); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir, disk.ImagePath(dir)} {
		if _, err := os.Stat(p); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s exists after Remove: %v", p, err)
		}
	}
}
