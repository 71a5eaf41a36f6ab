package vmmtest

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/pandastack/pandastack/internal/vmm"
)

// testSwapBeforeLoad gives a prepared machine another disk than the one it was prepared with, which is larger.
func testSwapBeforeLoad(t TB, h *Host) {
	m := h.Prepare(t, h.Image, h.Disk)
	vm, ok := m.Machine.(vmm.DiskSwapper)
	if !ok {
		return
	}
	before, other := m.Spec.Disks[0], filepath.Join(filepath.Dir(m.Spec.Disks[0].Path), "other")
	emptyLike(t, h.Disk, other)
	h.cloneOne(t, h.Disk, other)
	st, err := os.Stat(other)
	must(t, err)
	bytes := st.Size() + 1<<20
	must(t, errors.Join(os.Truncate(other, bytes), os.Chown(other, m.Spec.Confine.UID, m.Spec.Confine.GID)))
	after := before
	after.Path = other
	for _, wrong := range []vmm.Disk{{Path: other, ReadOnly: true}, {Path: other + ".none"}} {
		if vm.SwapDisk(t.Context(), 0, wrong) == nil {
			t.Errorf("SwapDisk(0, %+v): got no error", wrong)
		}
	}
	if vm.SwapDisk(t.Context(), len(m.Spec.Disks), after) == nil {
		t.Errorf("swap of a disk that the machine does not have: got no error")
	}
	must(t, vm.SwapDisk(t.Context(), 0, before))
	must(t, vm.SwapDisk(t.Context(), 0, after))
	m.Spec.Disks[0] = after
	must(t, m.Load(t.Context(), nil))
	h.Ready(t, m)
	content := random(77, 300_000)
	m.Put(t, "/root/swapped", content)
	must(t, m.Link.Freeze(t.Context(), true))
	must(t, m.Pause(t.Context()))
	if n := written(t, before.Path); n != 0 {
		t.Errorf("the disk that the machine was prepared with has %d bytes, want none", n)
	}
	image, disk := h.Save(t, m)
	must(t, m.Kill(t.Context()))
	if got := image.Manifest.DiskBytes[0]; got != bytes {
		t.Errorf("size of the disk in the image = %d, want %d", got, bytes)
	}
	again := h.RestoreFrom(t, image, disk)
	again.WantFile(t, "/root/swapped", content)
}

// written returns how many bytes of a file are not 0.
func written(t TB, path string) (n int) {
	t.Helper()
	all, err := os.ReadFile(path)
	must(t, err)
	for _, b := range all {
		if b != 0 {
			n++
		}
	}
	return n
}
