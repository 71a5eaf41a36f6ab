//go:build vm

package qemu_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// testMappedDelta restores monitors that map what their image's checkpoint adds to its base, and not a copy of it. Each
// can be captured again when the image is gone, by a later driver, too, and is the parent of forks.
func testMappedDelta(t *testing.T, h *vmmtest.Host) {
	m := h.Restore(t)
	p, err := m.Link.Start(t.Context(), guestapi.ProcessSpec{Argv: []string{"/bin/sh", "-c",
		"ls -lR /usr /etc | sort -r | sed 's/a/b/' | grep -c b; cut -d: -f1 /etc/passwd | md5sum; stat /; date; env"}})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := vmmtest.Collect(t.Context(), p); err != nil || r.Exit.Code != 0 {
		t.Fatalf("commands in the guest: %+v, %v", r, err)
	}
	m.Put(t, "/dev/shm/kept", []byte("kept"))
	if err := errors.Join(m.Link.Freeze(t.Context(), true), m.Pause(t.Context())); err != nil {
		t.Fatal(err)
	}
	image, disk := h.Save(t, m)
	first, second := h.RestoreFrom(t, image, disk), h.RestoreFrom(t, image, disk)
	wantMapped(t, first, image)
	first.Put(t, "/dev/shm/first", []byte("first"))
	h.Fork(t, first, 1)[0].WantFile(t, "/dev/shm/first", []byte("first"))
	if err := os.RemoveAll(filepath.Join(image.Dir, "process")); err != nil {
		t.Fatal(err)
	}
	second.WantFile(t, "/dev/shm/kept", []byte("kept"))
	if err := first.Link.Freeze(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	_ = first.Link.Close()
	h.Lab.Abandon(t, h.Driver)
	h.Driver = h.Lab.Open(t)
	adopted, err := h.Driver.Adopt(t.Context(), first.Spec)
	if err != nil {
		t.Fatal(err)
	}
	n := &vmmtest.Machine{Machine: adopted, Spec: first.Spec, Image: first.Image}
	if err := n.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	image, disk = h.Save(t, n)
	if known, err := h.Driver.(vmm.CheckpointStatus).HasCheckpoint(image); err != nil || !known {
		t.Errorf("HasCheckpoint() = %v, %v; want true, nil", known, err)
	}
	if err := n.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := h.RestoreFrom(t, image, disk)
	wantMapped(t, again, image)
	again.WantFile(t, "/dev/shm/kept", []byte("kept"))
	again.WantFile(t, "/dev/shm/first", []byte("first"))
}

// wantMapped checks that a monitor maps the delta of its image's checkpoint.
func wantMapped(t *testing.T, m *vmmtest.Machine, image vmm.Image) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", m.PID()))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(maps), filepath.Base(image.Dir)+"/process/content") {
		t.Errorf("the monitor maps nothing of the checkpoint of %s", image.Dir)
	}
}
