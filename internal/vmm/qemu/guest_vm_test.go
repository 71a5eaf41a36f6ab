//go:build vm

package qemu_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// testGuestExit ends the guest with a SysRq key and checks the reported reason.
func testGuestExit(t *testing.T, h *vmmtest.Host, key, want string) {
	m := h.Restore(t)
	if _, err := m.Link.Start(t.Context(), guestapi.ProcessSpec{Shell: "echo " + key +
		" > /proc/sysrq-trigger"}); err != nil {
		t.Logf("the guest ended before it responded: %v", err)
	}
	select {
	case <-m.Done():
	case <-time.After(vmmtest.Timeout):
		t.Fatal("the machine still runs, want it ended")
	}
	if err := m.Err(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Err() = %v, want an error with %q", err, want)
	}
}

// testConsole checks that a guest which prints forever uses bounded memory, and that its last
// output is available.
func testConsole(t *testing.T, h *vmmtest.Host) {
	m := h.Restore(t)
	if r := m.Run(t, "seq 1 20000 > /dev/console; echo the end > /dev/console"); r.Exit.Code != 0 {
		t.Fatalf("got %+v, want exit code 0", r)
	}
	text, err := m.Machine.(interface {
		Console(context.Context) ([]byte, error)
	}).Console(t.Context())
	if err != nil || len(text) > 64<<10 || !strings.Contains(string(text), "the end") {
		t.Errorf("got %d bytes of console, %v; want at most 64 KiB with the last line", len(text), err)
	}
	files, err := os.ReadDir(m.Spec.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		i, err := f.Info()
		if err != nil || f.Name() != "disk" && i.Size() > 1<<20 {
			t.Errorf("%s has %d bytes, %v; want at most 1 MiB", f.Name(), i.Size(), err)
		}
	}
}

func testLargerDisk(t *testing.T, h *vmmtest.Host) {
	m := h.Prepare(t, h.Image, h.Disk)
	if err := m.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	larger := m.Spec.Dir + "/larger"
	st, err := os.Stat(h.Disk)
	if err != nil {
		t.Fatal(err)
	}
	size := st.Size() + 512<<20
	f, err := os.Open(h.Disk)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.WriteFile(larger, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(larger, st.Size()); err != nil {
		t.Fatal(err)
	}
	h.Lab.Clone(t, f, larger)
	if err := os.Truncate(larger, size); err != nil {
		t.Fatal(err)
	}
	n := &vmmtest.Machine{Spec: m.Spec, Image: h.Image}
	n.Spec.Disks[0].Path = larger
	if n.Machine, err = h.Driver.Prepare(t.Context(), n.Spec, h.Image); err != nil {
		t.Fatal(err)
	}
	h.Handshake(t, n)
	if err := n.Load(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	h.Ready(t, n)
	if r := n.Run(t, "cat /sys/block/vda/size"); strings.TrimSpace(r.Stdout) != strconv.FormatInt(size/512, 10) {
		t.Errorf("the guest sees %q sectors, want %d", r.Stdout, size/512)
	}
	child := h.Fork(t, n, 1)[0]
	if r := child.Run(t, "cat /sys/block/vda/size"); strings.TrimSpace(r.Stdout) != strconv.FormatInt(size/512, 10) {
		t.Errorf("the child sees %q sectors, want %d", r.Stdout, size/512)
	}
}

// testTruncatedState checks that truncated device state with a valid checksum ends the monitor with
// QEMU's own message.
func testTruncatedState(t *testing.T, h *vmmtest.Host) {
	m := h.Restore(t)
	if err := m.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	image, disk := h.Save(t, m)
	path := image.Dir + "/state"
	state, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	state = state[:len(state)/2]
	if err := errors.Join(os.Remove(path), os.WriteFile(path, state, 0o600)); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(state)
	image.Manifest.Files = slices.Clone(image.Manifest.Files)
	image.Manifest.Files[1].SHA256 = hex.EncodeToString(sum[:])
	n := h.Prepare(t, image, disk)
	err = n.Load(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "QEMU exited") {
		t.Errorf("Load() = %v, want QEMU's message", err)
	}
	select {
	case <-n.Done():
	case <-time.After(vmmtest.Timeout):
		t.Error("the monitor still runs, want it ended")
	}
}

// testNothingLeft checks that this process keeps nothing of a machine that has ended, in whatever
// way.
func testNothingLeft(t *testing.T, h *vmmtest.Host) {
	round := func() {
		m := h.Restore(t)
		child := h.Fork(t, m, 1)[0]
		for _, end := range []*vmmtest.Machine{m, child} {
			if err := end.Link.Close(); err != nil {
				t.Fatal(err)
			}
			if end == m {
				if err := m.Pause(t.Context()); err != nil { // without a capture
					t.Fatal(err)
				}
			}
			if err := end.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		p := h.Prepare(t, h.Image, h.Disk)
		if err := p.Link.Close(); err != nil {
			t.Fatal(err)
		}
		if err := p.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	count := func() (files, routines, maps int) {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return len(all), runtime.NumGoroutine(), strings.Count(string(text), "\n")
	}
	round()
	files, routines, maps := count()
	const rounds = 10
	for range rounds {
		round()
	}
	deadline := time.Now().Add(vmmtest.Timeout)
	for {
		f, r, m := count()
		if f < files+rounds && r < routines+rounds && m < maps+rounds {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf(
				"after %d rounds: files went from %d to %d, goroutines from %d to %d, mappings from %d to %d; want "+
					"no growth",
				rounds,
				files,
				f,
				routines,
				r,
				maps,
				m,
			)
		}
		runtime.Gosched()
	}
}

// testMemDelta checks that a saved machine starts on its base memory file, or on its own file if
// the base was removed, and that forks of both have every byte.
func testMemDelta(t *testing.T, h *vmmtest.Host) {
	m := h.Restore(t)
	first := bytes.Repeat([]byte("first "), 100_000)
	m.Put(t, "/dev/shm/first", first)
	if err := errors.Join(m.Link.Freeze(t.Context(), true), m.Pause(t.Context())); err != nil {
		t.Fatal(err)
	}
	image, disk := h.Save(t, m)
	if _, err := os.Stat(image.Dir + "/layer.json"); err != nil {
		t.Fatalf("the image has no memory delta: %v", err)
	}
	parent := h.RestoreFrom(t, image, disk)
	parent.WantFile(t, "/dev/shm/first", first)
	second := bytes.Repeat([]byte("second"), 100_000)
	parent.Put(t, "/dev/shm/first", second)
	below := h.Image.Dir + "/memory"
	if err := os.Rename(below, below+".hidden"); err != nil {
		t.Fatal(err)
	}
	child := h.Fork(t, parent, 1)[0]
	woken := h.RestoreFrom(t, image, disk)
	grandchild := h.Fork(t, woken, 1)[0]
	if err := os.Rename(below+".hidden", below); err != nil {
		t.Fatal(err)
	}
	child.WantFile(t, "/dev/shm/first", second)
	parent.WantFile(t, "/dev/shm/first", second)
	woken.WantFile(t, "/dev/shm/first", first)
	grandchild.WantFile(t, "/dev/shm/first", first)
	// The base exists again, but this machine runs on its own memory file. A child of it that maps
	// the base gets the memory delta of the image first, and then the pages that the machine has
	// changed.
	woken.Put(t, "/dev/shm/third", second)
	late := h.Fork(t, woken, 1)[0]
	late.WantFile(t, "/dev/shm/first", first)
	late.WantFile(t, "/dev/shm/third", second)
	// A capture of a machine on another image fits neither.
	stranger := h.Prepare(t, image, disk)
	other := h.Boot(t)
	if err := other.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := other.Capture(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := stranger.Load(t.Context(), c); err == nil {
		t.Error("Load of a capture of another image succeeded, want an error")
	}
}
