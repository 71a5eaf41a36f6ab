package qemu_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/qemu"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// fakeQEMU creates a program that acts as QEMU: it prints a version if asked, and otherwise runs
// script.
func fakeQEMU(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "qemu")
	text := "#!/bin/sh\n[ \"$1\" = --version ] && echo 'QEMU emulator version 10.0.2' && exit\n" + script + "\n"
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func driver(t *testing.T, config qemu.Config) *qemu.Driver {
	t.Helper()
	d, err := qemu.New(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func spec(t *testing.T) vmm.Spec {
	t.Helper()
	dir := t.TempDir()
	kernel, disk := filepath.Join(t.TempDir(), "kernel"), filepath.Join(t.TempDir(), "disk")
	for path, data := range map[string]string{kernel: "\x7fELF", disk: "disk"} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return vmm.Spec{ID: "m1", Dir: dir, VCPUs: 1, MemoryMiB: 16, Kernel: kernel, Disks: []vmm.Disk{{Path: disk}}}
}

// nothingLeft checks the state after a failed start.
func nothingLeft(t *testing.T, s vmm.Spec) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(s.Dir, "*"))
	if err != nil || len(left) != 0 {
		t.Errorf("got leftover files %v, %v; want none", left, err)
	}
	ids, err := proc.Find("PANDASTACK_MONITOR=" + s.Dir)
	if err != nil || len(ids) != 0 {
		t.Errorf("got leftover processes %v, %v; want none", ids, err)
	}
}

func TestNoQEMU(t *testing.T) {
	_, err := qemu.New(t.Context(), qemu.Config{Binary: "/nonexistent/qemu"})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "pandastack setup") {
		t.Errorf("New() = %v, want an error with the remedy", err)
	}
	old := filepath.Join(t.TempDir(), "qemu")
	if err := os.WriteFile(old, []byte("#!/bin/sh\necho 'QEMU emulator version 5.2.0'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := qemu.New(t.Context(), qemu.Config{Binary: old}); err == nil ||
		!strings.Contains(err.Error(), "too old") {
		t.Errorf("New() = %v, want an error that QEMU is too old", err)
	}
}

func TestMonitorEndsAtOnce(t *testing.T) {
	d := driver(t, qemu.Config{Binary: fakeQEMU(t, "echo 'cannot set up guest memory' >&2; exit 1")})
	s := spec(t)
	_, err := d.Boot(t.Context(), s)
	if !errors.Is(err, vmm.ErrGone) || !strings.Contains(err.Error(), "status 1") ||
		!strings.Contains(err.Error(), "cannot set up") {
		t.Errorf("Boot() = %v, want the monitor's exit status and message", err)
	}
	nothingLeft(t, s)
}

func TestMonitorNeverAnswers(t *testing.T) {
	d := driver(t, qemu.Config{Binary: fakeQEMU(t, "exec sleep 1000"), Limit: 200 * time.Millisecond})
	s := spec(t)
	_, err := d.Boot(t.Context(), s)
	if err == nil || !strings.Contains(err.Error(), "took over") {
		t.Errorf("Boot() = %v, want a timeout", err)
	}
	nothingLeft(t, s)
}

func TestCallerGivesUp(t *testing.T) {
	d := driver(t, qemu.Config{Binary: fakeQEMU(t, "exec sleep 1000")})
	s := spec(t)
	why := errors.New("caller gave up")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, why)
	defer cancel()
	if _, err := d.Boot(ctx, s); !errors.Is(err, why) {
		t.Errorf("Boot() = %v, want the cause of the context", err)
	}
	nothingLeft(t, s)
}

func TestMissingFiles(t *testing.T) {
	d := driver(t, qemu.Config{Binary: fakeQEMU(t, "exec sleep 1000")})
	for name, change := range map[string]func(*vmm.Spec){
		"kernel":    func(s *vmm.Spec) { s.Kernel = "/nonexistent" },
		"initramfs": func(s *vmm.Spec) { s.Initramfs = "/nonexistent" },
		"disk":      func(s *vmm.Spec) { s.Disks[0].Path = "/nonexistent" },
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(t)
			change(&s)
			if _, err := d.Boot(t.Context(), s); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("Boot() = %v, want not exist", err)
			}
			nothingLeft(t, s)
		})
	}
}

func TestConfineFails(t *testing.T) {
	d := driver(t, qemu.Config{Binary: fakeQEMU(t, "exec sleep 1000")})
	s := spec(t)
	boom := errors.New("boom")
	s.Confine.Enter = func(int) error { return boom }
	if _, err := d.Boot(t.Context(), s); !errors.Is(err, boom) {
		t.Errorf("Boot() = %v, want the error of Enter", err)
	}
	nothingLeft(t, s)
}

func TestBadSpec(t *testing.T) {
	d := driver(t, qemu.Config{Binary: fakeQEMU(t, "exec sleep 1000")})
	for name, change := range map[string]func(*vmm.Spec){
		"no_id":       func(s *vmm.Spec) { s.ID = "" },
		"comma_in_id": func(s *vmm.Spec) { s.ID = "a,process=b" },
		"no_memory":   func(s *vmm.Spec) { s.MemoryMiB = 0 },
		"no_cpu":      func(s *vmm.Spec) { s.VCPUs = 0 },
		"no_tap":      func(s *vmm.Spec) { s.NIC = &vmm.NIC{} },
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(t)
			change(&s)
			if _, err := d.Boot(t.Context(), s); err == nil {
				t.Error("Boot succeeded, want an error")
			}
			nothingLeft(t, s)
		})
	}
}

// TestKillOfUnrecordedMonitor kills a monitor whose starter died before it wrote the record. The
// monitor is found by its marker.
func TestKillOfUnrecordedMonitor(t *testing.T) {
	s := spec(t)
	p := vmmtest.StartUnrecorded(t, s.Dir)
	defer p.Release()
	d := driver(t, qemu.Config{Binary: fakeQEMU(t, "exec sleep 1000")})
	if err := d.Kill(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		t.Fatal("the monitor still runs after a minute, want it killed")
	}
	nothingLeft(t, s)
	if err := d.Kill(t.Context(), s); err != nil {
		t.Error(err)
	}
}
