//go:build root

package firecracker_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fctest"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// findRequest returns the index of the first request with op and part, or -1.
func findRequest(all []fctest.Request, op, part string) int {
	for i, r := range all {
		if r.Op == op && strings.Contains(r.Body, part) {
			return i
		}
	}
	return -1
}

// TestLoadIsOneRequest checks that a plain restore is one request, and that a machine which needs
// more than its image is stopped while it is changed.
func TestLoadIsOneRequest(t *testing.T) {
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			w := newFixture(t, release)
			h := vmmtest.Bake(t, w.lab())
			m := h.Restore(t)
			all := w.requests(t, m.Spec.ID)
			if len(all) != 1 || findRequest(all, "PUT /snapshot/load", `"resume_vm":true`) != 0 {
				t.Errorf("got requests %v of a restore, want one load that resumes", all)
			}
			spec := w.chownFiles(t, h.Spec(t, h.Disk))
			w.addHotplug(t, &spec)
			n, err := h.Driver.Prepare(t.Context(), spec, h.Image)
			if err != nil {
				t.Fatal(err)
			}
			if err := n.Load(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			w.wantHotplug(t, h, spec, n)
		})
	}
}

// wantHotplug checks a machine with hotplugged resources, and its own image.
func (w *fixture) wantHotplug(t *testing.T, h *vmmtest.Host, spec vmm.Spec, n vmm.Machine) {
	t.Helper()
	all := w.requests(t, spec.ID)
	last := -1
	for _, want := range [][2]string{
		{"PUT /snapshot/load", `"resume_vm":false`},
		{"PATCH /drives/disk0", `"path_on_host":"disk0"`},
		{"PATCH /drives/disk1", `"path_on_host":"disk1"`},
		{"PATCH /hotplug/memory", `{"requested_size_mib":128}`},
		{"PATCH /vm", "Resumed"},
	} {
		at := findRequest(all, want[0], want[1])
		if at <= last {
			t.Errorf("%s with %s is at %d of %v, want it after %d", want[0], want[1], at, all, last)
		}
		last = at
	}
	if findRequest(all, "PATCH /drives/disk1", `"bandwidth":{"size":1048576,"refill_time":1000}`) < 0 {
		t.Errorf("got requests %v, want a rate limit of the volume", all)
	}
	if err := n.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	image, _ := h.Save(t, &vmmtest.Machine{Machine: n, Spec: spec})
	if m := image.Manifest; m.MemoryMiB != 192 || m.MaxMemoryMiB != 64+256 || m.Disks != 2 || m.MaxDisks != 3 ||
		m.DiskBytes[1] != diskBytes {
		t.Errorf("got manifest %+v, want the hotplugged memory and disk", m)
	}
	again := spec
	again.ID, again.Dir = spec.ID+"x", spec.Dir+"x"
	if err := os.Mkdir(again.Dir, 0o711); err != nil {
		t.Fatal(err)
	}
	o, err := h.Driver.Prepare(t.Context(), again, image)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = o.Kill(t.Context()) }()
	if err := o.Load(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if got := w.requests(t, again.ID); findRequest(got, "PATCH /hotplug/memory", "") >= 0 ||
		findRequest(got, "PATCH /drives/disk0", "path_on_host") >= 0 ||
		findRequest(got, "PATCH /drives/disk1", "bandwidth") < 0 {
		t.Errorf("got requests %v, want only the rate limits that the image lacks", got)
	}
}

// TestMetadataBeforeLoad checks that a guest with a network card can read its own metadata from its
// first instruction on. The metadata is set before the load and is not part of a snapshot.
func TestMetadataBeforeLoad(t *testing.T) {
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			w := newFixture(t, release)
			w.spec.NIC = &vmm.NIC{Device: "test0", MAC: net.HardwareAddr{6, 0, 0, 0, 0, 1}}
			h := vmmtest.Bake(t, w.lab())
			one := h.Restore(t)
			for _, m := range []*vmmtest.Machine{one, h.Restore(t), h.Fork(t, one, 1)[0]} {
				all := w.requests(t, m.Spec.ID)
				if at := findRequest(all, "PUT /mmds", `{"id":"`+m.Spec.ID+`"}`); at != 0 ||
					findRequest(all, "PUT /snapshot/load", `"resume_vm":true`) != 1 {
					t.Errorf(
						"machine %s: metadata is at %d of %v, want it directly before the load",
						m.Spec.ID,
						at,
						all,
					)
				}
			}
		})
	}
}

func TestHotplugLimits(t *testing.T) {
	w := newFixture(t, "1.17.0")
	h := vmmtest.Bake(t, w.lab())
	for name, change := range map[string]func(*vmm.Spec){
		"memory":      func(s *vmm.Spec) { s.MemoryMiB += 258 },
		"odd_memory":  func(s *vmm.Spec) { s.MemoryMiB++ },
		"less_memory": func(s *vmm.Spec) { s.MemoryMiB -= 2 },
		"disks":       func(s *vmm.Spec) { s.Disks = append(s.Disks, s.Disks[0], s.Disks[0], s.Disks[0]) },
		"read_only":   func(s *vmm.Spec) { s.Disks[0].ReadOnly = true },
	} {
		spec := h.Spec(t, h.Disk)
		change(&spec)
		var mismatch *vmm.MismatchError
		if _, err := h.Driver.Prepare(t.Context(), spec, h.Image); !errors.As(err, &mismatch) {
			t.Errorf("%s: Prepare() = %v, want a MismatchError", name, err)
		}
		w.nothingLeft(t, spec)
	}
	spec := h.Spec(t, h.Disk)
	spec.HugePages = true
	var unsupported *vmm.UnsupportedError
	if _, err := h.Driver.Prepare(t.Context(), spec, h.Image); !errors.As(err, &unsupported) {
		t.Errorf("Prepare with huge pages from a file = %v, want an UnsupportedError", err)
	}
}

func TestRefusedReleases(t *testing.T) {
	for _, release := range []string{"1.12.1", "1.15.0", "1.16.0", "1.16.2"} {
		program := fctest.Install(t, release)
		var faulty *firecracker.RefusedReleaseError
		_, err := firecracker.New(
			t.Context(),
			firecracker.Config{Binary: program.Path, Dir: filepath.Join(t.TempDir(), "c")},
		)
		if !errors.As(err, &faulty) || faulty.Version.String() != release {
			t.Errorf("%s: New() = %v, want a RefusedReleaseError", release, err)
		}
	}
	if _, err := firecracker.New(t.Context(), firecracker.Config{Binary: "/nonexistent/firecracker"}); !errors.Is(
		err,
		os.ErrNotExist,
	) {
		t.Errorf("New() = %v, want not exist", err)
	}
}

// TestReclaim requests memory from a guest.
func TestReclaim(t *testing.T) {
	w := newFixture(t, "1.15.1")
	h := vmmtest.Bake(t, w.lab())
	m := h.Restore(t)
	if err := m.Machine.(vmm.Reclaimer).Reclaim(t.Context(), 16); err != nil {
		t.Error(err)
	}
	if all := w.requests(t, m.Spec.ID); findRequest(all, "PATCH /balloon", `{"amount_mib":16}`) < 0 {
		t.Errorf("got requests %v, want another one", all)
	}
	if err := m.Machine.(vmm.Reclaimer).Reclaim(t.Context(), 1<<20); err == nil {
		t.Error("Reclaim of more than the memory succeeded, want an error")
	}
}

// TestInactiveDevices starts a machine on an image of a guest that was still booting: its balloon is not
// active yet, and memory is plugged as soon as its driver is active.
func TestInactiveDevices(t *testing.T) {
	w := newFixture(t, "1.17.0")
	h := vmmtest.Bake(t, w.lab())
	s := w.emptySpec(t, "booting")
	m, err := h.Driver.Boot(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.(vmm.Reclaimer).Reclaim(t.Context(), 8); !errors.Is(err, vmm.ErrNotActive) {
		t.Errorf("Reclaim of a booting guest = %v, want ErrNotActive", err)
	}
	if err := m.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	image, disk := h.Save(t, &vmmtest.Machine{Machine: m, Spec: s})
	if err := m.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	spec := h.Spec(t, disk)
	spec.Confine = vmm.Confine{}
	spec.MemoryMiB += 128
	n, err := h.Driver.Prepare(t.Context(), spec, image)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Kill(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	channel, err := n.Dial(t.Context()) // the fake's drivers are active once its guest has been reached
	if err != nil {
		t.Fatal(err)
	}
	defer channel.Close()
	if err := n.Load(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	all := w.requests(t, spec.ID)
	resume := findRequest(all, "PATCH /vm", "Resumed")
	if resume < 0 || count(all, "PATCH /hotplug/memory") < 2 || all[len(all)-1].Op != "PATCH /hotplug/memory" {
		t.Errorf("got requests %v, want memory plugged again after the resume", all)
	}
}

// TestCaptureAfterAdopt checks that a capture with unknown outcome is followed by a full one, and
// one with known outcome by a diff snapshot.
func TestCaptureAfterAdopt(t *testing.T) {
	w := newFixture(t, "1.15.1")
	h := vmmtest.Bake(t, w.lab())
	for _, c := range []struct {
		name   string
		before func(dir string) error
		kind   string
		refuse bool
	}{
		{"known", func(string) error { return nil }, "Diff", false},
		{"base_changed", func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "base")),
				os.WriteFile(filepath.Join(dir, "base"), nil, 0o600))
		}, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := h.Restore(t)
			if err := m.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(m.Link.Close(), h.Driver.(*firecracker.Driver).Close(),
				c.before(m.Spec.Dir)); err != nil {
				t.Fatal(err)
			}
			h.Driver = w.open(t)
			n, err := h.Driver.Adopt(t.Context(), m.Spec)
			if c.refuse != (err != nil) {
				t.Fatalf("Capture() = %v, want an error: %v", err, c.refuse)
			}
			if err != nil {
				return
			}
			got, err := n.Capture(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := got.Close(); err != nil {
				t.Error(err)
			}
			if all := w.requests(t, m.Spec.ID); findRequest(all, "PUT /snapshot/create", c.kind) < 0 {
				t.Errorf("got requests %v, want another one", all)
			}
		})
	}
}

// TestRatesAfterAdopt adopts running and paused machines with other rate limits. The limits are
// sent only if they differ.
func TestRatesAfterAdopt(t *testing.T) {
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			w := newFixture(t, release)
			h := vmmtest.Bake(t, w.lab())
			m := h.Restore(t)
			if err := m.Link.Close(); err != nil {
				t.Error(err)
			}
			adopt := func(rate vmm.Rate) vmm.Machine {
				t.Helper()
				spec := m.Spec
				spec.Disks = slices.Clone(spec.Disks)
				spec.Disks[0].Rate = rate
				again, err := h.Driver.Adopt(t.Context(), spec)
				if err != nil {
					t.Fatal(err)
				}
				return again
			}
			const free, bound = `"bandwidth":{"size":0,"refill_time":0}`,
				`"bandwidth":{"size":1048576,"refill_time":1000}`
			adopt(vmm.Rate{})
			if all := w.requests(t, m.Spec.ID); findRequest(all, "PATCH /drives/disk0", "") >= 0 {
				t.Errorf("got requests %v, want none for unchanged rates", all)
			}
			adopt(vmm.Rate{Bytes: 1 << 20})
			all := w.requests(t, m.Spec.ID)
			if findRequest(all, "PATCH /drives/disk0", bound) < 0 {
				t.Errorf("got requests %v, want another one", all)
			}
			adopt(vmm.Rate{Bytes: 1 << 20})
			if more := w.requests(t, m.Spec.ID); count(more, "PATCH /drives/disk0") != 1 {
				t.Errorf("got requests %v, want no second one for unchanged rates", more)
			}
			again := adopt(vmm.Rate{Bytes: 1 << 20})
			if err := again.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			adopt(vmm.Rate{})
			if more := w.requests(t, m.Spec.ID); findRequest(more, "PATCH /drives/disk0", free) < 0 {
				t.Errorf("got requests %v, want one that removes the limit", more)
			}
		})
	}
}

// count returns the number of requests with the given op.
func count(all []fctest.Request, op string) (n int) {
	for _, r := range all {
		if r.Op == op {
			n++
		}
	}
	return n
}

// TestKilledDuringCapture adopts a machine whose host agent was killed during a capture. Its next capture is a full
// one, because it is unknown which dirty pages Firecracker has forgotten.
func TestKilledDuringCapture(t *testing.T) {
	w := newFixture(t, "1.17.0")
	h := vmmtest.Bake(t, w.lab())
	for name, op := range map[string]string{
		"before_the_snapshot": "",
		"in_the_snapshot":     "PUT /snapshot/create",
	} {
		t.Run(name, func(t *testing.T) {
			m := h.Restore(t)
			m.Put(t, "/root/kept", []byte("kept"))
			if err := errors.Join(m.Link.Freeze(t.Context(), true), m.Pause(t.Context())); err != nil {
				t.Fatal(err)
			}
			base := filepath.Join(m.Spec.Dir, "base")
			if op == "" { // the capture ends where it removes the base
				if err := errors.Join(os.Remove(base), os.MkdirAll(filepath.Join(base, "x"), 0o700)); err != nil {
					t.Fatal(err)
				}
			} else {
				w.program.Fail(t, fctest.Fault{ID: m.Spec.ID, Op: op, Do: fctest.Refuse})
			}
			if c, err := m.Capture(t.Context()); err == nil {
				t.Fatal("Capture succeeded, want an error", c.Close())
			}
			w.program.Fail(t)
			if err := errors.Join(os.RemoveAll(base), os.WriteFile(base+".new", nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(m.Link.Close(), h.Driver.(*firecracker.Driver).Close()); err != nil {
				t.Fatal(err)
			}
			h.Driver = w.open(t)
			n, err := h.Driver.Adopt(t.Context(), m.Spec)
			if err != nil {
				t.Fatal(err)
			}
			image, disk := h.Save(t, &vmmtest.Machine{Machine: n, Spec: m.Spec, Image: m.Image})
			if got := kinds(w.requests(t, m.Spec.ID)); !strings.HasSuffix(got, "Full ") {
				t.Errorf("got snapshots %q, want a full one at the end", got)
			}
			h.RestoreFrom(t, image, disk).WantFile(t, "/root/kept", []byte("kept"))
		})
	}
}

// TestCaptureTwice captures a stopped machine twice. There must be only one snapshot. Machines can
// be loaded from both captures, even after the first is closed, and the next capture contains later
// changes.
func TestCaptureTwice(t *testing.T) {
	w := newFixture(t, "1.17.0")
	h := vmmtest.Bake(t, w.lab())
	m := h.Restore(t)
	m.Put(t, "/root/first", []byte("first"))
	if err := errors.Join(m.Link.Freeze(t.Context(), true), m.Pause(t.Context())); err != nil {
		t.Fatal(err)
	}
	one, disk1 := h.Save(t, m)
	two, disk2 := h.Save(t, m)
	if got := kinds(w.requests(t, m.Spec.ID)); got != "Diff " {
		t.Errorf("got snapshots %q, want one", got)
	}
	h.RestoreFrom(t, one, disk1).WantFile(t, "/root/first", []byte("first"))
	h.RestoreFrom(t, two, disk2).WantFile(t, "/root/first", []byte("first"))
	if err := errors.Join(m.Resume(t.Context()), m.Pause(t.Context())); err != nil {
		t.Fatal(err)
	}
	three, disk3 := h.Save(t, m)
	if got := kinds(w.requests(t, m.Spec.ID)); got != "Diff Diff " {
		t.Errorf("got snapshots %q, want a second one after the machine ran", got)
	}
	h.RestoreFrom(t, three, disk3).WantFile(t, "/root/first", []byte("first"))
}
