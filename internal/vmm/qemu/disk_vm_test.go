//go:build vm

package qemu_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/qemu"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// testFlushes checks that flushes of a disk reach the medium unless it is volatile, whatever the disks of the machine
// were that its monitor was made from.
func testFlushes(t *testing.T, h *vmmtest.Host, checkpoints bool) {
	made := h.WithVolatile(true)
	wantFlushes(t, made.Restore(t), false)
	if checkpoints {
		made = made.WithCheckpoint(t)
		wantFlushes(t, made.Restore(t), false)
	}
	m := made.WithVolatile(false).Restore(t)
	wantFlushes(t, m, true)
	const write = "dd if=/dev/zero of=/root/flushed bs=64k count=4 conv=fsync && cat /root/flushed | wc -c"
	if r := m.Run(t, write); r.Exit.Code != 0 {
		t.Errorf("write and flush: got %+v, want exit code 0", r)
	}
	wantFlushes(t, made.WithVolatile(false).Fork(t, m, 1)[0], true)

	// The file behind the disk is another one from now on; it has the same content.
	other := filepath.Join(filepath.Dir(m.Spec.Disks[0].Path), "other.img")
	t.Cleanup(func() { _ = os.Remove(other) })
	if err := errors.Join(m.Link.Freeze(t.Context(), true), m.Pause(t.Context()),
		os.WriteFile(other, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	content, err := os.Open(m.Spec.Disks[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	info, err := content.Stat()
	if err == nil {
		err = os.Truncate(other, info.Size())
	}
	if err != nil {
		t.Fatal(err)
	}
	h.Lab.Clone(t, content, other)
	disk := vmm.Disk{Path: other, Volatile: true}
	if err := m.Machine.(vmm.DiskSwapper).SwapDisk(t.Context(), 0, disk); err != nil {
		t.Fatal(err)
	}
	wantFlushes(t, m, false)
	original := m.Spec.Disks[0]
	if slices.Contains(openFiles(t, m.PID()), original.Path) {
		t.Errorf("the monitor has %s open, which was taken from it", original.Path)
	}
	if err := m.Machine.(vmm.DiskSwapper).SwapDisk(t.Context(), 0, original); err != nil {
		t.Fatal(err)
	}
	if slices.Contains(openFiles(t, m.PID()), other) {
		t.Errorf("the monitor has %s open, which was taken from it", other)
	}
	if err := m.Machine.(vmm.DiskSwapper).SwapDisk(t.Context(), 0, disk); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.Resume(t.Context()), m.Link.Thaw(t.Context())); err != nil {
		t.Fatal(err)
	}
	if r := m.Run(t, write); r.Exit.Code != 0 {
		t.Errorf("write to the other disk: got %+v, want exit code 0", r)
	}
	if err := m.Machine.(vmm.DiskSwapper).SwapDisk(t.Context(), 1, disk); err == nil {
		t.Error("swap of a disk that does not exist: got no error")
	}
}

func wantFlushes(t *testing.T, m *vmmtest.Machine, want bool) {
	t.Helper()
	got, err := qemu.Flushes(t.Context(), m.Machine)
	if err != nil || slices.Contains(got, !want) || len(got) == 0 {
		t.Errorf("Flushes() = %v, %v; want %v", got, err, want)
	}
}

// openFiles returns the files that a process has open.
func openFiles(t *testing.T, pid int) (paths []string) {
	t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if path, err := os.Readlink(link); err == nil { // one that is gone was closed meanwhile
			paths = append(paths, path)
		}
	}
	return paths
}
