package vmmtest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestlink"
	"github.com/pandastack/pandastack/internal/vmm"
)

// Case is one promise of package vmm and its test.
type Case struct {
	Name string
	Test func(TB, *Host)
}

// Cases returns all promises. They may share a Host, one after the other.
func Cases() []Case {
	return []Case{
		{"exec", testExec},
		{"pause", testPause},
		{"restore_at_once", testRestoreAtOnce},
		{"live_fork", testLiveFork},
		{"many_children", testManyChildren},
		{"processes_live_on", testProcessesLiveOn},
		{"chain", testChain},
		{"hibernate", testHibernate},
		{"timers", testTimers},
		{"clock", testClock},
		{"kill_in_every_state", testKill},
		{"crash", testCrash},
		{"adopt", testAdopt},
		{"adopt_paused", testAdoptPaused},
		{"adopt_never_loaded", testAdoptNeverLoaded},
		{"mismatch", testMismatch},
		{"damage", testDamage},
		{"wrong_order", testWrongOrder},
		{"usage", testUsage},
		{"two_disks", testTwoDisks},
		{"swap_before_load", testSwapBeforeLoad},
	}
}

// Run tests h's driver against all promises of package vmm, each in a test of its own that sub runs.
func Run(h *Host, sub func(name string, test func(TB))) {
	for _, c := range Cases() {
		sub(c.Name, func(t TB) { c.Test(t, h) })
	}
}

func testExec(t TB, h *Host) {
	m := h.Restore(t)
	if r := m.Run(t, "echo hello; exit 3"); r.Stdout != "hello\n" || r.Exit.Code != 3 {
		t.Errorf("got %+v, want hello and status 3", r)
	}
	m.Put(t, "/root/file", []byte("content"))
	if r := m.Run(t, "cat /root/file"); r.Stdout != "content" {
		t.Errorf("got %+v, want content", r)
	}
}

func testPause(t TB, h *Host) {
	m := h.Restore(t)
	for range 2 {
		must(t, m.Pause(t.Context()))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if s, err := m.Link.Stats(ctx); err == nil {
		t.Errorf("stats of a paused guest = %+v, want a timeout", s)
	}
	for range 2 {
		must(t, m.Resume(t.Context()))
	}
	if r := m.Run(t, "echo on"); r.Stdout != "on\n" {
		t.Errorf("echo after resume: got %+v, want on", r)
	}
}

func testRestoreAtOnce(t TB, h *Host) {
	var all []*Machine
	for range 4 {
		m := h.Prepare(t, h.Image, h.Disk)
		h.clone(t, h.Disk, m.Spec.Disks[0].Path)
		all = append(all, m)
	}
	failed := make(chan error, len(all))
	for _, m := range all {
		go func() { failed <- m.Load(t.Context(), nil) }()
	}
	for range all {
		must(t, <-failed)
	}
	for _, m := range all {
		h.Ready(t, m)
		m.Put(t, "/root/who", []byte(m.Spec.ID))
	}
	for _, m := range all {
		m.WantFile(t, "/root/who", []byte(m.Spec.ID))
	}
}

func testLiveFork(t TB, h *Host) {
	parent := h.Restore(t)
	parent.Put(t, "/root/before", []byte("before"))
	child := h.Fork(t, parent, 1)[0]
	child.WantFile(t, "/root/before", []byte("before"))
	child.Put(t, "/root/child", []byte("child"))
	parent.Put(t, "/root/parent", []byte("parent"))
	if _, ok := parent.Read(t, "/root/child"); ok {
		t.Error("the parent has a file of the child")
	}
	if _, ok := child.Read(t, "/root/parent"); ok {
		t.Error("the child has a file of the parent")
	}
	must(t, parent.Kill(t.Context()))
	if r := child.Run(t, "cat /root/before"); r.Stdout != "before" {
		t.Errorf("read in a child without its parent: got %+v, want before", r)
	}
}

func testManyChildren(t TB, h *Host) {
	parent := h.Restore(t)
	data := random(1, 300_000)
	parent.Put(t, "/dev/shm/data", data)
	for _, child := range h.Fork(t, parent, 4) {
		child.WantFile(t, "/dev/shm/data", data)
	}
	parent.WantFile(t, "/dev/shm/data", data)
}

func testProcessesLiveOn(t TB, h *Host) {
	parent := h.Restore(t)
	p, err := parent.Link.Start(t.Context(), guestapi.ProcessSpec{Argv: []string{"cat"}, Stdin: true, Tag: "echoer"})
	must(t, err)
	defer p.Close()
	echo(t, p, "one\n")
	child := h.Fork(t, parent, 1)[0]
	if h.Driver.Capabilities().Capture.ClosesChannel {
		must(t, p.Close())
		p, err = parent.Link.Attach(t.Context(), guestapi.ProcessRef{Tag: "echoer"}, guestapi.Offsets{Stdout: 4})
		must(t, err)
		defer p.Close()
	}
	for _, m := range []*Machine{parent, child} {
		q, err := m.Link.Attach(t.Context(), guestapi.ProcessRef{Tag: "echoer"}, guestapi.Offsets{Stdout: 4})
		must(t, err)
		echo(t, q, m.Spec.ID+"\n")
		must(t, q.Close())
	}
	must(t, child.Link.Signal(t.Context(), guestapi.ProcessRef{PID: p.PID()}, 9, false))
	echo(t, p, parent.Spec.ID+"\n") // the output of the parent's other stream comes here too
}

// echo writes text to a process that echoes and waits until it returns.
func echo(t TB, p guestapi.Process, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Timeout)
	defer cancel()
	if _, err := p.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	got := ""
	for got != text {
		e, err := p.Next(ctx)
		if err != nil || e.Exit != nil || len(got) > len(text) {
			t.Fatalf("wrote %q, got %q, %+v, %v", text, got, e.Exit, err)
		}
		got += string(e.Data)
	}
}

// random returns n bytes that depend on seed alone.
func random(seed uint64, n int) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	data := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(data) // never fails
	return data
}

func testChain(t TB, h *Host) {
	const generations, size = 8, 1_000_000
	m := h.Restore(t)
	all := []*Machine{m}
	for g := range uint64(generations) {
		m.Put(t, fmt.Sprintf("/dev/shm/%d", g), random(2*g, size))
		m.Put(t, fmt.Sprintf("/root/%d", g), random(2*g+1, size))
		m = h.Fork(t, m, 1)[0]
		all = append(all, m)
	}
	for i, m := range all {
		for g := range uint64(min(i+1, generations)) {
			m.WantFile(t, fmt.Sprintf("/dev/shm/%d", g), random(2*g, size))
			m.WantFile(t, fmt.Sprintf("/root/%d", g), random(2*g+1, size))
		}
		if _, ok := m.Read(t, fmt.Sprintf("/root/%d", i+1)); ok {
			t.Errorf("generation %d has a file of its child", i)
		}
	}
}

func testHibernate(t TB, h *Host) {
	m := h.Restore(t)
	for g := range uint64(3) {
		data := random(g, 100_000)
		m.Put(t, "/dev/shm/memory", data)
		m.Put(t, "/root/disk", data)
		must(t, m.Link.Freeze(t.Context(), true))
		must(t, m.Pause(t.Context()))
		image, disk := h.Save(t, m)
		must(t, m.Kill(t.Context()))
		m = h.RestoreFrom(t, image, disk)
		must(t, os.RemoveAll(image.Dir)) // the machine continues without it
		m.WantFile(t, "/dev/shm/memory", data)
		m.WantFile(t, "/root/disk", data)
	}
}

func testTimers(t TB, h *Host) {
	for _, m := range []*Machine{h.Restore(t), h.Fork(t, h.Restore(t), 1)[0]} {
		r := m.Run(t, "sleep 1")
		if r.Exit.Code != 0 || r.Exit.Wall < 900*time.Millisecond {
			t.Errorf("machine %s: sleep 1 ended with %+v, want success after a second", m.Spec.ID, r.Exit)
		}
	}
}

func testClock(t TB, h *Host) {
	m := h.Restore(t)
	before := time.Now()
	s, err := m.Link.Stats(t.Context())
	must(t, err)
	if early, late := before.Sub(s.Time), time.Until(s.Time); early > 30*time.Second || late > 30*time.Second {
		t.Errorf("guest clock = %v, want within 30 s of the host's %v", s.Time, before)
	}
}

func testKill(t TB, h *Host) {
	ended := func(m *Machine, err error) {
		t.Helper()
		must(t, err)
		select {
		case <-m.Done():
		default:
			t.Error("Kill returned before the monitor ended")
		}
		if err := m.Err(); err != nil {
			t.Errorf("after kill: got %v, want nil", err)
		}
		must(t, m.Kill(t.Context()))
		must(t, h.Driver.Kill(t.Context(), m.Spec))
		if _, err := h.Driver.Adopt(t.Context(), m.Spec); !errors.Is(err, vmm.ErrGone) {
			t.Errorf("adopt after kill: got %v, want ErrGone", err)
		}
	}
	m := h.Prepare(t, h.Image, h.Disk)
	ended(m, m.Kill(t.Context()))
	m = h.Restore(t)
	ended(m, m.Kill(t.Context()))
	m = h.Restore(t)
	must(t, m.Pause(t.Context()))
	ended(m, h.Driver.Kill(t.Context(), m.Spec))
	m = h.Restore(t)
	must(t, m.Pause(t.Context()))
	c, err := m.Capture(t.Context())
	must(t, err)
	ended(m, m.Kill(t.Context()))
	must(t, c.Close())
	must(t, h.Driver.Kill(t.Context(), h.Spec(t, h.Disk))) // never had a monitor
}

func testCrash(t TB, h *Host) {
	m := h.Restore(t)
	h.Lab.Crash(t, m.Machine)
	select {
	case <-m.Done():
	case <-time.After(Timeout):
		t.Fatal("Done was not closed after the monitor ended")
	}
	if m.Err() == nil {
		t.Error("Err = nil after a crash, want an error")
	}
	if err := m.Pause(t.Context()); !errors.Is(err, vmm.ErrGone) {
		t.Errorf("pause: got %v, want ErrGone", err)
	}
	if _, err := m.Dial(t.Context()); !errors.Is(err, vmm.ErrGone) {
		t.Errorf("dial: got %v, want ErrGone", err)
	}
}

// adopt ends the host agent and takes m over with a new one.
func (h *Host) adopt(t TB, m *Machine) *Machine {
	t.Helper()
	_ = m.Link.Close()
	h.Lab.Abandon(t, h.Driver)
	h.Driver = h.Lab.Open(t)
	n := &Machine{Spec: m.Spec, Image: m.Image}
	var err error
	n.Machine, err = h.Driver.Adopt(t.Context(), m.Spec)
	must(t, err)
	return n
}

// resync opens the channel of an adopted machine, which keeps its identity.
func (h *Host) resync(t TB, m *Machine) {
	t.Helper()
	conn, err := m.Dial(t.Context())
	must(t, err)
	generation := generations.Add(1)
	m.Link, err = guestlink.Open(t.Context(), conn, guestlink.Options{
		Generation: generation, Identity: Identity(m.Spec.ID, generation), Resync: true,
	})
	must(t, err)
	link := m.Link
	t.Cleanup(func() { _ = link.Close() })
	h.Ready(t, m)
}

func testAdopt(t TB, h *Host) {
	m := h.Restore(t)
	m.Put(t, "/root/kept", []byte("kept"))
	n := h.adopt(t, m)
	h.resync(t, n)
	n.WantFile(t, "/root/kept", []byte("kept"))
	child := h.Fork(t, n, 1)[0]
	child.WantFile(t, "/root/kept", []byte("kept"))
	must(t, n.Kill(t.Context()))
}

func testAdoptPaused(t TB, h *Host) {
	m := h.Restore(t)
	m.Put(t, "/root/kept", []byte("kept"))
	must(t, m.Link.Freeze(t.Context(), true))
	must(t, m.Pause(t.Context()))
	n := h.adopt(t, m)
	image, disk := h.Save(t, n)
	must(t, n.Resume(t.Context()))
	h.resync(t, n)
	n.WantFile(t, "/root/kept", []byte("kept"))
	h.RestoreFrom(t, image, disk).WantFile(t, "/root/kept", []byte("kept"))
}

func testAdoptNeverLoaded(t TB, h *Host) {
	m := h.Prepare(t, h.Image, h.Disk)
	_ = m.Link.Close()
	h.Lab.Abandon(t, h.Driver)
	h.Driver = h.Lab.Open(t)
	ctx, cancel := context.WithTimeout(t.Context(), Timeout)
	defer cancel()
	if _, err := h.Driver.Adopt(ctx, m.Spec); !errors.Is(err, vmm.ErrGone) {
		t.Errorf("got %v, want ErrGone", err)
	}
	must(t, h.Driver.Kill(ctx, m.Spec))
}

func testMismatch(t TB, h *Host) {
	for name, change := range map[string]func(*vmm.Manifest){
		"version":     func(m *vmm.Manifest) { m.Version++ },
		"driver":      func(m *vmm.Manifest) { m.Driver = "other" },
		"vmm":         func(m *vmm.Manifest) { m.VMM = "0.1" },
		"accelerator": func(m *vmm.Manifest) { m.Accelerator = "magic" },
		"cpu":         func(m *vmm.Manifest) { m.CPU = "other" },
		"machine":     func(m *vmm.Manifest) { m.Machine = "other" },
		"vcpus":       func(m *vmm.Manifest) { m.VCPUs++ },
		"memory":      func(m *vmm.Manifest) { m.MemoryMiB++ },
		"disks":       func(m *vmm.Manifest) { m.Disks++ },
		"nic":         func(m *vmm.Manifest) { m.NIC = !m.NIC },
	} {
		image := h.Image
		change(&image.Manifest)
		_, err := h.Driver.Prepare(t.Context(), h.Spec(t, h.Disk), image)
		var mismatch *vmm.MismatchError
		if !errors.As(err, &mismatch) {
			t.Errorf("prepare with another %s: got %v, want a MismatchError", name, err)
		}
	}
}

func testDamage(t TB, h *Host) {
	m := h.Restore(t)
	must(t, m.Link.Freeze(t.Context(), true))
	must(t, m.Pause(t.Context()))
	image, disk := h.Save(t, m)
	for _, f := range image.Manifest.Files {
		path := image.Dir + "/" + f.Name
		whole := path + ".whole"
		must(t, os.Rename(path, whole))
		must(t, os.WriteFile(path, nil, 0o600))
		must(t, os.Truncate(path, f.Bytes/2))
		spec := h.Spec(t, disk)
		if _, err := h.Driver.Prepare(t.Context(), spec, image); err == nil {
			t.Errorf("prepare with %s truncated: got no error", f.Name)
		}
		must(t, os.Remove(path))
		if _, err := h.Driver.Prepare(t.Context(), spec, image); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("prepare without %s: got %v, want ErrNotExist", f.Name, err)
		}
		must(t, os.Rename(whole, path))
	}
}

func testWrongOrder(t TB, h *Host) {
	m := h.Prepare(t, h.Image, h.Disk)
	h.clone(t, h.Disk, m.Spec.Disks[0].Path)
	if m.Pause(t.Context()) == nil {
		t.Error("pause of a machine without a guest: got no error")
	}
	must(t, m.Load(t.Context(), nil))
	h.Ready(t, m)
	if m.Load(t.Context(), nil) == nil {
		t.Error("second load: got no error")
	}
	if _, err := m.Capture(t.Context()); err == nil {
		t.Error("capture of a running machine: got no error")
	}
	must(t, m.Pause(t.Context()))
	c, err := m.Capture(t.Context())
	must(t, err)
	must(t, c.Close())
	must(t, c.Close())
	if m := h.Prepare(t, h.Image, h.Disk); m.Load(t.Context(), c) == nil {
		t.Error("load of a closed capture: got no error")
	}
	b, ok := m.Machine.(vmm.ForkCapturer)
	if !ok {
		return
	}
	if c, err = b.CaptureFor(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(h.Lab.Dir, "fork-capture")
	must(t, os.Mkdir(dir, 0o700))
	if _, err := c.Save(t.Context(), dir); err == nil {
		t.Error("save of a capture for known machines: got no error")
	}
	must(t, c.Close())
	must(t, os.Remove(dir))
}

func testUsage(t TB, h *Host) {
	m := h.Restore(t)
	u, err := m.Usage()
	must(t, err)
	if u.PSSBytes <= 0 || u.Threads <= 0 || time.Since(u.Started) > time.Hour {
		t.Errorf("usage = %+v, want memory, threads and a recent start", u)
	}
	must(t, m.Kill(t.Context()))
	if _, err := m.Usage(); !errors.Is(err, vmm.ErrGone) {
		t.Errorf("after the end: got %v, want ErrGone", err)
	}
}
