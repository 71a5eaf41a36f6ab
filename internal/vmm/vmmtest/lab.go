// Package vmmtest is the conformance suite of drivers, and a kit for more tests with guests.
//
// It owns no machine after a test: everything that it starts ends with the test that started it. A Lab describes a
// driver to it; Run runs the suite. A Host is used by one test at a time.
package vmmtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/contract/guestlink"
	"github.com/pandastack/pandastack/internal/vmm"
)

// Timeout bounds every single wait of the suite. It is far above any expected time.
const Timeout = 3 * time.Minute

// TB is the part of a test that the suite uses.
// *testing.T implements it, and a Runner does outside of go test.
type TB interface {
	Helper()
	Context() context.Context // ends before the functions of Cleanup run
	Cleanup(func())
	Error(...any)
	Errorf(string, ...any)
	Fatal(...any)
	Fatalf(string, ...any)
}

// Lab describes a driver to the suite.
type Lab struct {
	Dir     string                    // for machines and images, as the driver needs it
	Open    func(t TB) vmm.Driver     // opens a host agent's driver; all of one Lab see the same host
	Abandon func(t TB, d vmm.Driver)  // ends the driver as the death of its host agent does
	Crash   func(t TB, m vmm.Machine) // ends a monitor from outside
	Spec    vmm.Spec                  // of every machine, without ID, Dir and Disks
	Rate    vmm.Rate                  // of every disk
	// Volatile is that of every disk.
	Volatile bool
	Disk     func(t TB, path string)              // makes a root disk
	Data     func(t TB, path string)              // makes a data disk: an empty ext4 file system
	Warm     func(t TB, m *Machine)               // prepares the machine before its image is taken; may be nil
	Clone    func(t TB, from *os.File, to string) // writes the content of from into the existing file at to
}

// Host is a Lab with a driver and the image of a machine that was booted, ready and captured.
type Host struct {
	Lab    Lab
	Driver vmm.Driver
	Image  vmm.Image
	Disk   string // belongs to Image; with dataDisk, so does dataOf it

	dataDisk     bool // machines have a data disk, which is mounted at dataDir
	checkpointed bool // Image has a checkpoint of its monitor
	serial       atomic.Int64
}

// Machine is a machine whose guest is connected.
type Machine struct {
	vmm.Machine
	Spec  vmm.Spec
	Image vmm.Image // that it was prepared on; without Dir: booted
	Link  *guestlink.Link
}

// Bake boots a machine and makes the image that the other machines start from.
func Bake(t TB, lab Lab) *Host {
	t.Helper()
	h := &Host{Lab: lab, Driver: lab.Open(t)}
	h.bake(t)
	return h
}

// dataDir is where guests mount their data disk.
const dataDir = "/data"

// dataOf returns the path of the data disk beside a root disk.
func dataOf(disk string) string { return disk + ".data" }

// WithData returns a host like h, of the same driver, whose machines have a data disk too.
func (h *Host) WithData(t TB) *Host {
	t.Helper()
	out := &Host{Lab: h.Lab, Driver: h.Driver, dataDisk: true}
	out.serial.Store(h.serial.Load() + 2000)
	out.bake(t)
	if h.checkpointed {
		return out.WithCheckpoint(t)
	}
	return out
}

// WithRate returns a host like h, with the same driver and image.
// The disks of its machines have that rate.
func (h *Host) WithRate(rate vmm.Rate) *Host {
	out := h.copy()
	out.Lab.Rate = rate
	return out
}

// WithVolatile returns a host like h, with the same driver and image. The disks of its machines are volatile or not.
func (h *Host) WithVolatile(volatile bool) *Host {
	out := h.copy()
	out.Lab.Volatile = volatile
	return out
}

func (h *Host) copy() *Host {
	out := &Host{
		Lab:          h.Lab,
		Driver:       h.Driver,
		Image:        h.Image,
		Disk:         h.Disk,
		dataDisk:     h.dataDisk,
		checkpointed: h.checkpointed,
	}
	out.serial.Store(h.serial.Add(4000) - 3000) // distinct names, also among several
	return out
}

func (h *Host) bake(t TB) {
	t.Helper()
	m := h.Boot(t)
	if h.Lab.Warm != nil {
		h.Lab.Warm(t, m)
	}
	must(t, m.Link.Freeze(t.Context(), true))
	must(t, m.Pause(t.Context()))
	h.Image, h.Disk = h.Save(t, m)
	must(t, m.Link.Close())
	must(t, m.Kill(t.Context()))
}

// WithCheckpoint returns a host like h, of the same driver, whose image has a checkpoint.
// The image is of a machine that was restored and has done what machines do first. The driver's machines have to be
// CheckpointMarkers.
func (h *Host) WithCheckpoint(t TB) *Host {
	t.Helper()
	m := h.Restore(t)
	for range 2 {
		m.Run(t, "true")
	}
	r, ok := m.Machine.(vmm.CheckpointMarker)
	if !ok {
		t.Fatal("the machine is no vmm.CheckpointMarker")
	}
	r.MarkWarmedUp()
	must(t, m.Link.Freeze(t.Context(), true))
	must(t, m.Pause(t.Context()))
	out := &Host{Lab: h.Lab, Driver: h.Driver, dataDisk: h.dataDisk, checkpointed: true}
	out.serial.Store(h.serial.Load() + 1000)
	out.Image, out.Disk = out.Save(t, m)
	must(t, m.Link.Close())
	must(t, m.Kill(t.Context()))
	return out
}

func must(t TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Spec makes the directory and the disks of a new machine.
// If like is given the disks are empty and of its size, otherwise the lab makes them.
func (h *Host) Spec(t TB, like string) vmm.Spec {
	t.Helper()
	s := h.Lab.Spec
	s.ID = fmt.Sprintf("m%d", h.serial.Add(1))
	s.Dir = filepath.Join(h.Lab.Dir, s.ID)
	must(t, os.MkdirAll(s.Dir, 0o711)) // a monitor of another user needs to enter it
	disk := filepath.Join(s.Dir, "disk")
	if like == "" {
		h.Lab.Disk(t, disk)
	} else {
		emptyLike(t, like, disk)
	}
	s.Disks = []vmm.Disk{{Path: disk, Rate: h.Lab.Rate, Volatile: h.Lab.Volatile}}
	if h.dataDisk {
		s.Disks = append(s.Disks, vmm.Disk{Path: dataOf(disk), Rate: h.Lab.Rate, Volatile: h.Lab.Volatile})
		if like == "" {
			h.Lab.Data(t, dataOf(disk))
		} else {
			emptyLike(t, dataOf(like), dataOf(disk))
		}
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Timeout)
		defer cancel()
		if err := h.Driver.Kill(ctx, s); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(s.Dir); err != nil {
			t.Error(err)
		}
	})
	return s
}

// emptyLike makes an empty file of the size of another.
func emptyLike(t TB, like, path string) {
	t.Helper()
	st, err := os.Stat(like)
	must(t, err)
	f, err := os.Create(path)
	must(t, err)
	must(t, errors.Join(f.Truncate(st.Size()), f.Close()))
}

// Identity returns the identity of machine id in its generation.
func Identity(id string, generation uint64) *guestapi.Identity {
	return &guestapi.Identity{
		MachineID: id, Hostname: id, Generation: generation, Time: time.Now(),
		Entropy: bytes.Repeat([]byte{byte(generation), 7}, 32),
	}
}

var generations atomic.Uint64

// Handshake opens the guest channel with a new identity, without waiting.
func (h *Host) Handshake(t TB, m *Machine) {
	t.Helper()
	if i, ok := m.Machine.(vmm.MetadataSetter); ok {
		must(t, i.SetMetadata(t.Context(), fmt.Appendf(nil, `{"id":%q}`, m.Spec.ID)))
	}
	conn, err := m.Dial(t.Context())
	must(t, err)
	generation := generations.Add(1)
	id := Identity(m.Spec.ID, generation)
	if h.dataDisk && m.Image.Dir == "" {
		id.Mounts = []guestapi.Mount{{Disk: 1, Dir: dataDir, Options: []string{"noatime"}}}
	}
	m.Link, err = guestlink.Open(t.Context(), conn, guestlink.Options{Generation: generation, Identity: id})
	must(t, err)
	link := m.Link
	t.Cleanup(func() { _ = link.Close() })
}

// Ready waits until m's guest has taken on its identity.
func (h *Host) Ready(t TB, m *Machine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Timeout)
	defer cancel()
	if err := m.Link.Ready(ctx); err != nil {
		select {
		case <-m.Done():
			err = errors.Join(err, m.Err())
		default:
		}
		t.Fatalf("machine %s: %v", m.Spec.ID, err)
	}
}

// Boot starts a machine cold and waits for its guest.
func (h *Host) Boot(t TB) *Machine {
	t.Helper()
	m := &Machine{Spec: h.Spec(t, "")}
	var err error
	m.Machine, err = h.Driver.Boot(t.Context(), m.Spec)
	must(t, err)
	h.Handshake(t, m)
	h.Ready(t, m)
	return m
}

// Prepare starts a monitor over image and sends the handshake. disk has the size of the new one.
func (h *Host) Prepare(t TB, image vmm.Image, disk string) *Machine {
	t.Helper()
	m := &Machine{Spec: h.Spec(t, disk), Image: image}
	var err error
	m.Machine, err = h.Driver.Prepare(t.Context(), m.Spec, image)
	must(t, err)
	h.Handshake(t, m)
	return m
}

// Restore starts a machine from the baked image and waits for its guest.
func (h *Host) Restore(t TB) *Machine { return h.RestoreFrom(t, h.Image, h.Disk) }

// RestoreStep is Restore that calls loaded when the guest runs, before it waits for the guest.
func (h *Host) RestoreStep(t TB, loaded func()) *Machine {
	t.Helper()
	return h.restore(t, h.Image, h.Disk, loaded)
}

// RestoreFrom is Restore from another image and its disk.
func (h *Host) RestoreFrom(t TB, image vmm.Image, disk string) *Machine {
	t.Helper()
	return h.restore(t, image, disk, func() {})
}

func (h *Host) restore(t TB, image vmm.Image, disk string, loaded func()) *Machine {
	t.Helper()
	m := h.Prepare(t, image, disk)
	h.clone(t, disk, m.Spec.Disks[0].Path)
	must(t, m.Load(t.Context(), nil))
	loaded()
	h.Ready(t, m)
	return m
}

// clone writes the content of another machine's disks into those of a machine.
func (h *Host) clone(t TB, from, to string) {
	t.Helper()
	h.cloneOne(t, from, to)
	if h.dataDisk {
		h.cloneOne(t, dataOf(from), dataOf(to))
	}
}

func (h *Host) cloneOne(t TB, from, to string) {
	t.Helper()
	f, err := os.Open(from)
	must(t, err)
	defer f.Close()
	h.Lab.Clone(t, f, to)
}

// Save captures a paused machine into an image with its disks. All are removed with the test.
func (h *Host) Save(t TB, m *Machine) (vmm.Image, string) {
	t.Helper()
	dir := filepath.Join(h.Lab.Dir, fmt.Sprintf("image%d", h.serial.Add(1)))
	must(t, os.MkdirAll(dir, 0o700))
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	c, err := m.Capture(t.Context())
	must(t, err)
	disk := dir + ".disk"
	emptyLike(t, m.Spec.Disks[0].Path, disk)
	t.Cleanup(func() { _ = os.Remove(disk) })
	if h.dataDisk {
		emptyLike(t, m.Spec.Disks[1].Path, dataOf(disk))
		t.Cleanup(func() { _ = os.Remove(dataOf(disk)) })
	}
	h.clone(t, m.Spec.Disks[0].Path, disk)
	image, err := c.Save(t.Context(), dir)
	must(t, err)
	must(t, c.Close())
	return image, disk
}

// Fork makes n children of m, which continues, and waits for all guests.
func (h *Host) Fork(t TB, m *Machine, n int) []*Machine {
	t.Helper()
	return h.ForkStep(t, m, n, func(time.Duration) {})
}

// captureFor captures a machine for children that are prepared.
func captureFor(t TB, m *Machine, children []*Machine) (vmm.Capture, error) {
	b, ok := m.Machine.(vmm.ForkCapturer)
	if !ok {
		return m.Capture(t.Context())
	}
	var into []vmm.Machine
	for _, child := range children {
		into = append(into, child.Machine)
	}
	return b.CaptureFor(t.Context(), into)
}

// ForkStep is Fork that calls paused with how long the parent's guest was stopped.
func (h *Host) ForkStep(t TB, m *Machine, n int, paused func(time.Duration)) []*Machine {
	t.Helper()
	children := make([]*Machine, n)
	for i := range children {
		children[i] = h.Prepare(t, m.Image, m.Spec.Disks[0].Path)
	}
	must(t, m.Link.Freeze(t.Context(), false))
	start := time.Now()
	must(t, m.Pause(t.Context()))
	c, err := captureFor(t, m, children)
	must(t, err)
	for _, child := range children {
		h.clone(t, m.Spec.Disks[0].Path, child.Spec.Disks[0].Path)
	}
	must(t, m.Resume(t.Context()))
	paused(time.Since(start))
	h.rejoin(t, m)
	must(t, m.Link.Thaw(t.Context()))
	failed := make(chan error, n)
	for _, child := range children {
		go func() { failed <- child.Load(t.Context(), c) }()
	}
	for range children {
		must(t, <-failed)
	}
	must(t, c.Close())
	for _, child := range children {
		h.Ready(t, child)
	}
	return children
}

// rejoin opens the channel of a machine again if the capture closed it.
func (h *Host) rejoin(t TB, m *Machine) {
	t.Helper()
	if h.Driver.Capabilities().Capture.ClosesChannel {
		must(t, m.Link.Close())
		h.resync(t, m)
	}
}

// Result is the output and the exit of a program.
type Result struct {
	Stdout, Stderr string
	Exit           guestapi.Exit
}

// Run runs a shell command in the guest.
func (m *Machine) Run(t TB, script string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Timeout)
	defer cancel()
	p, err := m.Link.Start(ctx, guestapi.ProcessSpec{Shell: script})
	if err != nil {
		t.Fatalf("machine %s: %s: %v", m.Spec.ID, script, err)
	}
	defer p.Close()
	r, err := Collect(ctx, p)
	if err != nil {
		t.Fatalf("machine %s: %s: %v", m.Spec.ID, script, err)
	}
	return r
}

// Collect reads the output of a process until it exits.
func Collect(ctx context.Context, p guestapi.Process) (Result, error) {
	var r Result
	var err error
	r.Exit, err = guestexec.Follow(ctx, p, guestexec.Sink{Output: func(e guestapi.Event) error {
		if e.Stream == guestapi.StreamStderr {
			r.Stderr += string(e.Data)
		} else {
			r.Stdout += string(e.Data)
		}
		return nil
	}})
	return r, err
}

// Put writes a file in the guest.
func (m *Machine) Put(t TB, path string, data []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Timeout)
	defer cancel()
	opts := guestapi.WriteOptions{Size: int64(len(data))}
	if _, err := m.Link.Write(ctx, path, opts, bytes.NewReader(data)); err != nil {
		t.Fatalf("machine %s: write %s: %v", m.Spec.ID, path, err)
	}
}

// Read reads a file of the guest; ok is false if it does not exist.
func (m *Machine) Read(t TB, path string) (data []byte, ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Timeout)
	defer cancel()
	_, r, err := m.Link.Read(ctx, path, "", 0, -1)
	if errors.Is(err, guestapi.ErrNotFound) {
		return nil, false
	}
	if err == nil {
		data, err = io.ReadAll(r)
		err = errors.Join(err, r.Close())
	}
	if err != nil {
		t.Fatalf("machine %s: read %s: %v", m.Spec.ID, path, err)
	}
	return data, true
}

// WantFile fails the test unless the file at path holds exactly data.
func (m *Machine) WantFile(t TB, path string, data []byte) {
	t.Helper()
	got, ok := m.Read(t, path)
	if !ok || !bytes.Equal(got, data) {
		t.Errorf(
			"machine %s: %s: got %d bytes (file exists: %v), want other %d bytes",
			m.Spec.ID,
			path,
			len(got),
			ok,
			len(data),
		)
	}
}
