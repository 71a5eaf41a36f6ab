//go:build vm

package qemu_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/qemu"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// testAdoptedBase captures a machine that an earlier driver restored, and whose image has been removed since. The
// monitor must be dumped with the base that it was restored from: without one it would have to run system calls, and
// would be killed if this process died meanwhile.
func testAdoptedBase(t *testing.T, h *vmmtest.Host) {
	origin := h.Restore(t)
	if err := errors.Join(origin.Link.Freeze(t.Context(), true), origin.Pause(t.Context())); err != nil {
		t.Fatal(err)
	}
	image, disk := h.Save(t, origin)
	m := h.RestoreFrom(t, image, disk)
	m.Put(t, "/root/kept", []byte("kept"))
	want := qemu.Base(m.Machine)
	if want == nil {
		t.Fatal("the restored monitor has no base")
	}
	if err := os.RemoveAll(filepath.Join(image.Dir, "process")); err != nil {
		t.Fatal(err)
	}
	if err := m.Link.Freeze(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	_ = m.Link.Close()
	h.Lab.Abandon(t, h.Driver)
	h.Driver = h.Lab.Open(t)
	adopted, err := h.Driver.Adopt(t.Context(), m.Spec)
	if err != nil {
		t.Fatal(err)
	}
	n := &vmmtest.Machine{Machine: adopted, Spec: m.Spec, Image: m.Image}
	if err := n.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := qemu.Base(n.Machine); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the adopted monitor has base %t, want the one that it was restored from", got != nil)
	}
	image, disk = h.Save(t, n)
	if known, err := h.Driver.(vmm.CheckpointStatus).HasCheckpoint(image); err != nil || !known {
		t.Errorf("HasCheckpoint() = %v, %v; want true, nil", known, err)
	}
	if err := n.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(n.Spec.Dir, "base.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the link to the base after the machine was killed: %v, want none", err)
	}
	h.RestoreFrom(t, image, disk).WantFile(t, "/root/kept", []byte("kept"))
}
