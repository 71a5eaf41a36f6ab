//go:build root

package firecracker_test

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
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fctest"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// nothingLeft checks the state after a machine has ended and all captures are closed.
func (w *fixture) nothingLeft(t *testing.T, s vmm.Spec) {
	t.Helper()
	left, err := os.ReadDir(s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if e.Name() != "disk" {
			t.Errorf("got leftover file %[2]s of machine %[1]s, want none", s.ID, e.Name())
		}
	}
	ids, err := proc.Find("PANDASTACK_MONITOR=" + s.Dir)
	if err != nil || len(ids) != 0 {
		t.Errorf("got leftover processes %v, %v; want none", ids, err)
	}
	captures, err := os.ReadDir(w.config.Dir)
	if err != nil || len(captures) != 0 {
		t.Errorf("got leftover captures %v, %v; want none", captures, err)
	}
}

// operation is an operation that consists of requests. It works on a machine of its own and returns
// that machine, even after an error.
type operation struct {
	name string
	do   func(t *testing.T, w *fixture, h *vmmtest.Host, s vmm.Spec) (vmm.Machine, error)
}

func boot(t *testing.T, _ *fixture, h *vmmtest.Host, s vmm.Spec) (vmm.Machine, error) {
	return h.Driver.Boot(t.Context(), s)
}

func restore(t *testing.T, _ *fixture, h *vmmtest.Host, s vmm.Spec) (vmm.Machine, error) {
	m, err := h.Driver.Prepare(t.Context(), s, h.Image)
	if err != nil {
		return nil, err
	}
	return m, m.Load(t.Context(), nil)
}

// restoreMore is a restore with every kind of change after the load.
func restoreMore(t *testing.T, w *fixture, h *vmmtest.Host, s vmm.Spec) (vmm.Machine, error) {
	w.addHotplug(t, &s)
	return restore(t, w, h, s)
}

// addHotplug requests a larger disk, a volume, rate limits and memory.
func (w *fixture) addHotplug(t *testing.T, s *vmm.Spec) {
	t.Helper()
	volume := filepath.Join(filepath.Dir(w.config.Dir), s.ID+".volume")
	if err := errors.Join(os.Truncate(s.Disks[0].Path, 2*diskBytes), os.WriteFile(volume, nil, 0o600),
		os.Truncate(volume, diskBytes),
		os.Chown(volume, unprivilegedUID, unprivilegedUID)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(volume) })
	s.Disks = append(s.Disks, vmm.Disk{Path: volume, Rate: vmm.Rate{Bytes: 1 << 20}})
	s.MemoryMiB += 128
}

func capture(t *testing.T, w *fixture, h *vmmtest.Host, s vmm.Spec) (vmm.Machine, error) {
	m, err := restore(t, w, h, s)
	if err == nil {
		err = m.Pause(t.Context())
	}
	if err != nil {
		return m, err
	}
	c, err := m.Capture(t.Context())
	if err != nil {
		return m, err
	}
	return m, errors.Join(c.Close(), m.Resume(t.Context()))
}

// TestRequestFailures makes every request of every operation fail in every way, and checks that
// nothing is left behind.
func TestRequestFailures(t *testing.T) {
	w := newFixture(t, "1.17.0")
	h := vmmtest.Bake(t, w.lab())
	for _, op := range []operation{{"boot", boot}, {"restore", restore}, {"restore_more", restoreMore},
		{"capture", capture}} {
		t.Run(op.name, func(t *testing.T) {
			spec := h.Spec(t, h.Disk)
			m, err := op.do(t, w, h, w.chownFiles(t, spec))
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.nothingLeft(t, spec)
			requests := w.requests(t, spec.ID)
			if len(requests) == 0 {
				t.Fatal("got no requests, want some")
			}
			for _, r := range requests {
				for _, how := range []string{fctest.Refuse, fctest.Die, fctest.Cut} {
					w.fault(t, h, op, r.Op, how)
				}
			}
		})
	}
}

// requests returns the requests of one machine, without the starts of its monitors.
func (w *fixture) requests(t *testing.T, id string) []fctest.Request {
	t.Helper()
	var own []fctest.Request
	for _, r := range w.program.Requests(t) {
		if r.ID == id && r.Op != "start" {
			own = append(own, r)
		}
	}
	return own
}

// chownFiles gives the disk of a new machine to the monitor's user.
func (w *fixture) chownFiles(t *testing.T, s vmm.Spec) vmm.Spec {
	t.Helper()
	if err := os.Chown(s.Disks[0].Path, unprivilegedUID, unprivilegedUID); err != nil {
		t.Fatal(err)
	}
	return s
}

func (w *fixture) fault(t *testing.T, h *vmmtest.Host, op operation, request, how string) {
	t.Helper()
	spec := w.chownFiles(t, h.Spec(t, h.Disk))
	w.program.Fail(t, fctest.Fault{ID: spec.ID, Op: request, Do: how})
	defer w.program.Fail(t)
	m, err := op.do(t, w, h, spec)
	if err == nil {
		t.Errorf("%s: %s succeeded, want an error", request, how)
	}
	if how != fctest.Refuse && !errors.Is(err, vmm.ErrGone) {
		t.Errorf("%s: %s: got error %v, want ErrGone", request, how, err)
	}
	if how == fctest.Die && !strings.Contains(err.Error(), "status 148: a system call") {
		t.Errorf("%s: %s: got error %v, want the exit status", request, how, err)
	}
	if how == fctest.Refuse && !strings.Contains(err.Error(), "refused by the test") {
		t.Errorf("%s: %s: got error %v, want the fault message", request, how, err)
	}
	if m != nil {
		if err := m.Kill(t.Context()); err != nil {
			t.Error(err)
		}
	}
	w.nothingLeft(t, spec)
}

// TestMonitorHangs checks that a monitor which never responds is given up after the limit.
func TestMonitorHangs(t *testing.T) {
	w := newFixture(t, "1.17.0")
	h := vmmtest.Bake(t, w.lab())
	w.config.Limit = 3 * time.Second // also bounds the wait for the monitor's exit
	h.Driver = w.open(t)
	spec := w.chownFiles(t, h.Spec(t, h.Disk))
	w.program.Fail(t, fctest.Fault{ID: spec.ID, Op: "PUT /snapshot/load", Do: fctest.Hang})
	m, err := restore(t, w, h, spec)
	if err == nil || !strings.Contains(err.Error(), "took over") {
		t.Errorf("got error %v, want a timeout", err)
	}
	if err := m.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	w.nothingLeft(t, spec)
	spec = w.chownFiles(t, h.Spec(t, h.Disk))
	w.program.Fail(t, fctest.Fault{ID: spec.ID, Op: "PUT /snapshot/load", Do: fctest.Hang})
	h.Driver = w.slowDriver(t)
	why := errors.New("caller gave up")
	m, err = h.Driver.Prepare(t.Context(), spec, h.Image)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, why)
	defer cancel()
	if err := m.Load(ctx, nil); !errors.Is(err, why) {
		t.Errorf("Load() = %v, want the cause of the context", err)
	}
	if err := m.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	w.nothingLeft(t, spec)
}

// slowDriver returns a driver with the default limit.
func (w *fixture) slowDriver(t *testing.T) vmm.Driver {
	t.Helper()
	w.config.Limit = vmmtest.Timeout
	return w.open(t)
}

// TestCaptureAfterFailure checks that a machine continues after a failed capture and that its next
// capture is complete.
func TestCaptureAfterFailure(t *testing.T) {
	w := newFixture(t, "1.15.1")
	h := vmmtest.Bake(t, w.lab())
	m := h.Restore(t)
	m.Put(t, "/root/before", []byte("before"))
	w.program.Fail(t, fctest.Fault{ID: m.Spec.ID, Op: "PUT /snapshot/create", Do: fctest.Refuse})
	if err := m.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c, err := m.Capture(t.Context()); err == nil {
		t.Error("Capture succeeded, want an error", c.Close())
	}
	w.program.Fail(t)
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.Handshake(t, m)
	h.Ready(t, m)
	child := h.Fork(t, m, 1)[0]
	child.WantFile(t, "/root/before", []byte("before"))
	kinds := ""
	for _, r := range w.requests(t, m.Spec.ID) {
		if r.Op == "PUT /snapshot/create" {
			_, kind, _ := strings.Cut(r.Body, `"snapshot_type":`)
			kinds += kind[:6] + " "
		}
	}
	if kinds != `"Diff" "Full" ` {
		t.Errorf("got snapshots %s, want a diff and a full one", kinds)
	}
}

func TestFakePrograms(t *testing.T) {
	w := newFixture(t, "1.17.0")
	d := w.open(t)
	dir := t.TempDir()
	spec := w.spec
	spec.ID, spec.Dir, spec.Confine = "m1", dir, vmm.Confine{}
	spec.Disks = []vmm.Disk{{Path: filepath.Join(w.dir, "none")}}
	if _, err := d.Boot(t.Context(), spec); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Boot without its disk = %v, want not exist", err)
	}
	w.nothingLeft(t, spec)
	boom := errors.New("boom")
	spec.Disks, spec.Confine.Enter = nil, func(int) error { return boom }
	if _, err := d.Boot(t.Context(), spec); !errors.Is(err, boom) {
		t.Errorf("Boot() = %v, want the error of Enter", err)
	}
	w.nothingLeft(t, spec)
	spec.Confine.Enter, spec.NIC = nil, &vmm.NIC{}
	if _, err := d.Boot(t.Context(), spec); err == nil {
		t.Error("Boot with a network card without tap succeeded, want an error")
	}
	w.nothingLeft(t, spec)
	spec.NIC = nil
	if err := os.WriteFile(spec.Kernel, []byte("no ELF"), 0o644); err != nil {
		t.Fatal(err)
	}
	m, err := d.Boot(t.Context(), spec) // 1.17 accepts other kernels
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	w.nothingLeft(t, spec)
	p := vmmtest.StartUnrecorded(t, dir)
	defer p.Release()
	if err := d.Kill(t.Context(), spec); err != nil { // its record was never written
		t.Fatal(err)
	}
	w.nothingLeft(t, spec)
}
