//go:build root

package firecracker_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// TestSwapDisk replaces the disk of a machine that runs, and makes it larger.
func TestSwapDisk(t *testing.T) {
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			w := newFixture(t, release)
			h := vmmtest.Bake(t, w.lab())
			m := h.Restore(t)
			vm := m.Machine.(interface {
				vmm.DiskSwapper
				vmm.DiskResizer
			})
			other := filepath.Join(filepath.Dir(m.Spec.Disks[0].Path), "other.img")
			err := errors.Join(os.WriteFile(other, []byte("other"), 0o600), os.Truncate(other, 2*diskBytes),
				os.Chown(other, m.Spec.Confine.UID, m.Spec.Confine.GID))
			if err != nil {
				t.Fatal(err)
			}
			drive := filepath.Join(m.Spec.Dir, "root", "disk0")
			for range 2 { // the second call finds the file there already
				if err := vm.SwapDisk(t.Context(), 0, vmm.Disk{Path: other}); err != nil {
					t.Fatal(err)
				}
				want, err := os.Stat(other)
				got, err2 := os.Stat(drive)
				if err := errors.Join(err, err2); err != nil || !os.SameFile(got, want) {
					t.Errorf("file of the drive = %v, %v; want that of the other disk", got, err)
				}
				if _, err := os.Stat(drive + ".next"); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("name that was used to replace the drive: got %v, want ErrNotExist", err)
				}
			}
			if err := os.Truncate(other, 3*diskBytes); err != nil {
				t.Fatal(err)
			}
			if err := vm.ResizeDisk(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			all := w.requests(t, m.Spec.ID)
			if n := count(all, "PATCH /drives/disk0"); n != 3 ||
				findRequest(all, "PATCH /drives/disk0", `"path_on_host":"disk0"`) < 0 {
				t.Errorf("got requests %v, want the drive opened again three times", all)
			}
			if vm.SwapDisk(t.Context(), 7, vmm.Disk{Path: other}) == nil || vm.ResizeDisk(t.Context(), 7) == nil {
				t.Error("change of a disk that the machine does not have: got no error")
			}
			if vm.SwapDisk(t.Context(), 0, vmm.Disk{Path: other + "x"}) == nil {
				t.Error("swap with a file that does not exist: got no error")
			}
			if err := m.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			if image, _ := h.Save(t, m); image.Manifest.DiskBytes[0] != 3*diskBytes {
				t.Errorf("sizes of disks in the image = %v, want %d", image.Manifest.DiskBytes, 3*diskBytes)
			}
		})
	}
}
