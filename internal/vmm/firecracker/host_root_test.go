//go:build root

package firecracker_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/guestdial"
	"github.com/pandastack/pandastack/internal/host/agent"
	"github.com/pandastack/pandastack/internal/host/bake"
	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
	"github.com/pandastack/pandastack/internal/integrationtest"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/lib/keyring"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fctest"
)

// slotPool returns network slots without a network, each with its own index.
type slotPool struct {
	integrationtest.Network
	taken atomic.Int64
}

type slot struct {
	machine.Slot
	index int
}

func (p *slotPool) Acquire(ctx context.Context, owner string) (machine.Slot, error) {
	s, err := p.Network.Acquire(ctx, owner)
	return slot{s, int(p.taken.Add(1))}, err
}

func (p slot) Info() machine.SlotInfo {
	at := p.Slot.Info()
	at.Index, at.TapName = p.index, "test0" // fctest accepts this name as a tap
	return at
}

// cgroups are real cgroups and jails.
type cgroups struct{ jail *jail.Manager }

type cgroup struct{ *jail.Cgroup }

func (c cgroup) Jail() vmm.Jail    { return c.Cgroup }
func (c cgroup) OutOfMemory() bool { return false }

func (c cgroups) Create(ctx context.Context, name string, _ machine.Limits) (machine.Cgroup, error) {
	g, err := c.jail.Create(ctx, name, jail.Limits{PIDs: 256})
	return cgroup{g}, err
}

func (c cgroups) Adopt(ctx context.Context, name string, _ machine.Limits) (machine.Cgroup, error) {
	g, err := c.jail.Adopt(ctx, name, jail.Limits{PIDs: 256})
	return cgroup{g}, err
}

func (c cgroups) Sweep(ctx context.Context) error {
	_, err := c.jail.Sweep(ctx)
	return err
}

// diskImages are disks on a file system with reflinks.
type diskImages struct{}

func (diskImages) Clone(src, dst string) error              { return disk.Clone(src, dst) }
func (diskImages) CloneInto(src string, dst *os.File) error { return disk.CloneInto(src, dst) }
func (diskImages) Allocate(path string, bytes int64) error  { return disk.Allocate(path, bytes) }
func (diskImages) Grow(path string, bytes int64) error      { return disk.Grow(path, bytes) }
func (diskImages) Sync(path string) error                   { return durable.Sync(path) }

// testHost is a host agent whose machines run in the fake, in jails. Several share an object store.
type testHost struct {
	t    *testing.T
	dir  string
	jail *jail.Manager
	host *agent.Host
	stop func()
}

func (s *testHost) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// newTestHost starts a host agent. If official is set, monitors start through the fake of
// Firecracker's jailer.
func newTestHost(t *testing.T, name string, program fctest.Program, store *blobtest.Faulty, official bool) *testHost {
	t.Helper()
	probetest.Need(t, probe.Config{}, probe.CGroups)
	s := &testHost{t: t, dir: reflinkDir(t)}
	trees := filepath.Join(s.dir, "trees")
	s.must(os.Mkdir(trees, 0o711))
	layout, err := jail.Probe()
	s.must(err)
	s.jail, err = jail.New(jail.Config{Hierarchy: layout, Prefix: name, ProgramsDir: trees})
	s.must(err)
	t.Cleanup(func() { s.must(s.jail.Close()) })
	ring, err := keyring.New(bytes.Repeat([]byte{1}, 32))
	s.must(err)
	vault, err := chunkstore.New(store, ring, chunkstore.Config{RetryDelay: time.Millisecond, ReadTimeout: time.Second})
	s.must(err)
	kept, err := cache.Open(cache.Config{Dir: filepath.Join(s.dir, "chunks")})
	s.must(err)
	t.Cleanup(func() { s.must(errors.Join(kept.Close(), vault.Close())) })
	c := firecracker.Config{
		Binary:           program.Path,
		Dir:              filepath.Join(s.dir, "captures"),
		HotplugMemoryMiB: 128,
		HotplugDisks:     1,
		Limit:            time.Minute,
	}
	if official {
		c.Jailer = program.Jailer
	}
	driver, err := firecracker.New(t.Context(), c)
	s.must(err)
	s.start(driver, &agent.Objects{Chunks: vault, Cache: kept})
	return s
}

func (s *testHost) start(driver vmm.Driver, objects *agent.Objects) {
	s.t.Helper()
	kernel, initramfs := filepath.Join(s.dir, "kernel"), filepath.Join(s.dir, "initramfs")
	s.must(
		errors.Join(
			os.WriteFile(kernel, []byte("\x7fELF and more"), 0o644),
			os.WriteFile(initramfs, []byte("initramfs"), 0o644),
		),
	)
	var err error
	s.host, err = agent.New(agent.Config{
		DataDir: filepath.Join(s.dir, "data"),
		Recipes: []bake.Recipe{{
			Name: "base", VCPUs: 1, MemoryMiB: 64, DiskMiB: 8, Digest: "d1", Ready: "true",
			Build: func(_ context.Context, _, image string, _, _ func(string)) error {
				return os.WriteFile(image, bytes.Repeat([]byte("disk"), 1<<20), 0o600)
			},
		}},
		Machine: machine.Config{
			HostMemory: func() (int64, int64, error) { return 1 << 36, 1 << 36, nil },
			FreeSpace:  func(string) (int64, int64, error) { return 1 << 40, 1 << 40, nil },
			Kernel: func(context.Context) (machine.Kernel, error) {
				return machine.Kernel{Kernel: kernel, Initramfs: initramfs}, nil
			},
			Owner: func(slot int) (int, int) {
				uid, gid, err := s.jail.User(slot)
				s.must(err)
				return uid, gid
			},
		},
	}, agent.Deps{
		Machine: machine.Deps{
			Driver:  driver,
			Network: &slotPool{},
			Cgroups: cgroups{s.jail},
			Disks:   diskImages{},
			Link:    integrationtest.Link,
		},
		Platform: func(context.Context) (string, error) { return "test", nil },
		Rewrite:  func(_ context.Context, src, dst string) error { return disk.Clone(src, dst) },
		Objects:  objects,
	})
	s.must(err)
	s.must(s.host.Open(s.t.Context()))
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.host.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		s.must(<-done)
		s.must(s.host.Close(context.WithoutCancel(s.t.Context())))
	})
	s.t.Cleanup(s.stop)
}

// run runs a command in a guest and returns its output.
func (s *testHost) run(id hostapi.MachineID, shell string) string {
	s.t.Helper()
	guest, err := guestdial.New(s.host).Guest(s.t.Context(), id)
	s.must(err)
	p, err := guest.Start(s.t.Context(), guestapi.ProcessSpec{Shell: shell})
	s.must(err)
	defer p.Close()
	var out bytes.Buffer
	for {
		ev, err := p.Next(s.t.Context())
		s.must(err)
		if ev.Exit != nil {
			return strings.TrimSpace(out.String())
		}
		out.Write(ev.Data)
	}
}

// record returns the driver's record of a machine's monitor.
func (s *testHost) record(id hostapi.MachineID) string {
	s.t.Helper()
	found, err := filepath.Glob(filepath.Join(s.dir, "data", "machines", string(id), "*", "monitor.json"))
	if err != nil || len(found) != 1 {
		s.t.Fatalf("got records %[2]v of machine %[1]s, %[3]v; want one", id, found, err)
	}
	data, err := os.ReadFile(found[0])
	s.must(err)
	return string(data)
}

// monitor returns the process ID of a machine's monitor.
func (s *testHost) monitor(id hostapi.MachineID) int {
	s.t.Helper()
	_, rest, _ := strings.Cut(s.record(id), `"pid":`)
	number, _, _ := strings.Cut(rest, ",")
	pid, err := strconv.Atoi(number)
	s.must(err)
	return pid
}

// wantConfined checks that a monitor runs as another user, with another root directory and mount
// namespace than the test.
func (s *testHost) wantConfined(id hostapi.MachineID) {
	s.t.Helper()
	proc := filepath.Join("/proc", strconv.Itoa(s.monitor(id)))
	st, err := os.Stat(proc)
	s.must(err)
	if raw, ok := st.Sys().(*syscall.Stat_t); !ok || raw.Uid == 0 {
		s.t.Error("the monitor runs as root")
	}
	ours, err := os.Readlink("/proc/self/ns/mnt")
	s.must(err)
	theirs, err := os.Readlink(filepath.Join(proc, "ns/mnt"))
	s.must(err)
	if ours == theirs {
		s.t.Error("the monitor is in the host's mount namespace")
	}
	if _, err := os.Stat(filepath.Join(proc, "root/usr/bin")); err == nil {
		s.t.Error("the monitor can access the host's /usr/bin")
	}
}

// TestHosts moves a machine to a second host that has none of its data. The memory is served
// through a real userfaultfd, the disk through FUSE, and the monitor runs in a jail.
func TestHosts(t *testing.T) {
	if _, err := os.Stat("/dev/userfaultfd"); err != nil {
		t.Skip("probe userfaultfd: /dev/userfaultfd does not exist")
	}
	for name, official := range map[string]bool{"jail": false, "jailer": true} {
		t.Run(name, func(t *testing.T) {
			install := fctest.Install
			if official {
				install = fctest.InstallJailer
			}
			program := install(t, "1.17.0")
			store := blobtest.NewFaulty(blobtest.NewMemory(), nil)
			a := newTestHost(t, "fca"+name, program, store, official)
			_, err := a.host.Create(t.Context(), hostapi.Create{ID: "first", Template: "base"})
			a.must(err)
			a.run("first", "echo hello > word")
			a.wantConfined("first")
			_, err = a.host.TakeSnapshot(t.Context(), "first", "snp1", nil)
			a.must(err)
			_, err = a.host.PushSnapshot(t.Context(), "ws", "snp1")
			a.must(err)
			a.stop()
			b := newTestHost(t, "fcb"+name, program, store, official)
			b.testStreaming()
			b.nothingLeft()
		})
	}
}

// TestHotplugMemory creates a machine with more memory than its template. The memory is plugged
// after the restore and before the guest runs, and its children have it as well.
func TestHotplugMemory(t *testing.T) {
	program := fctest.Install(t, "1.15.1")
	a := newTestHost(t, "fcamore", program, blobtest.NewFaulty(blobtest.NewMemory(), nil), false)
	for id, mib := range map[hostapi.MachineID]int{"plain": 0, "large": 128} {
		made, err := a.host.Create(t.Context(), hostapi.Create{ID: id, Template: "base", MemoryMiB: mib})
		a.must(err)
		if want := max(mib, 64); made.MemoryMiB != want {
			t.Errorf("machine %s has %d MiB, want %d", id, made.MemoryMiB, want)
		}
	}
	forked, err := a.host.Fork(t.Context(), hostapi.Fork{Parent: "large", Children: []hostapi.Child{{ID: "child"}}})
	a.must(err)
	a.must(forked[0].Err())
	if forked[0].Machine.MemoryMiB != 128 {
		t.Errorf("the child has %d MiB, want 128", forked[0].Machine.MemoryMiB)
	}
	// a child has its parent's memory
	for id, want := range map[hostapi.MachineID]bool{"plain": false, "large": true, "child": false} {
		log := a.requests(id)
		at := strings.Index(log, "PATCH /hotplug/memory")
		if plugged := at >= 0; plugged != want ||
			want && (!strings.Contains(log, `requested_size_mib\":64`) || at > strings.Index(log, "PATCH /vm")) {
			t.Errorf("got requests of machine %s:\n%s\nwant memory plugged before the resume: %v", id, log, want)
		}
	}
	for _, id := range []hostapi.MachineID{"child", "large", "plain"} {
		a.must(a.host.Destroy(t.Context(), id, "test"))
	}
	a.nothingLeft()
}

// requests returns the request log that the monitor wrote in its jail.
func (s *testHost) requests(id hostapi.MachineID) string {
	s.t.Helper()
	found, err := filepath.Glob(filepath.Join(s.dir, "data", "machines", string(id), "*", "root", "requests.log"))
	if err != nil || len(found) != 1 {
		s.t.Fatalf("got logs %[2]v of machine %[1]s, %[3]v; want one", id, found, err)
	}
	text, err := os.ReadFile(found[0])
	s.must(err)
	return string(text)
}

// TestObjectStoreUnavailable starts a machine on a second host whose object store does not respond.
func TestObjectStoreUnavailable(t *testing.T) {
	program := fctest.Install(t, "1.17.0")
	store := blobtest.NewFaulty(blobtest.NewMemory(), nil)
	a := newTestHost(t, "fcagone", program, store, false)
	_, err := a.host.Create(t.Context(), hostapi.Create{ID: "first", Template: "base"})
	a.must(err)
	_, err = a.host.TakeSnapshot(t.Context(), "first", "snp1", nil)
	a.must(err)
	_, err = a.host.PushSnapshot(t.Context(), "ws", "snp1")
	a.must(err)
	a.stop()
	b := newTestHost(t, "fcbgone", program, store, false)
	gone := errors.New("the store is unavailable")
	store.SetFaults(func(blobtest.Call) blobtest.Fault {
		// started; everything else is there immediately
		if _, err := os.Stat(filepath.Join(b.dir, "data", "snapshots", "snp1")); err == nil {
			return blobtest.Fault{Err: gone}
		}
		return blobtest.Fault{}
	})
	_, err = b.host.StreamSnapshot(t.Context(), "ws", "snp1", nil)
	b.must(err)
	if _, err := b.host.Create(t.Context(), hostapi.Create{ID: "child", Snapshot: "snp1"}); err == nil ||
		!strings.Contains(err.Error(), gone.Error()) {
		t.Errorf("Create() = %v, want the error of the store", err)
	}
	b.nothingLeft()
	store.SetFaults(nil)
	_, err = b.host.Create(t.Context(), hostapi.Create{ID: "again", Snapshot: "snp1"})
	b.must(err)
	b.must(b.host.Destroy(t.Context(), "again", "test"))
	b.nothingLeft()
}

// testStreaming starts machines on a snapshot that another host has pushed.
func (s *testHost) testStreaming() {
	t := s.t
	t.Helper()
	_, err := s.host.StreamSnapshot(t.Context(), "ws", "snp1", nil)
	s.must(err)
	_, err = s.host.Create(t.Context(), hostapi.Create{ID: "child", Snapshot: "snp1"})
	s.must(err)
	if got := s.run("child", "cat word"); got != "hello" {
		t.Errorf("the machine printed %q, want \"hello\"", got)
	}
	if r := s.record("child"); !strings.Contains(r, `"paged":true`) {
		t.Errorf("got record %s, want paged memory", r)
	}
	s.wantConfined("child")
	mounts, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.monitor("child")), "mountinfo"))
	s.must(err)
	if !strings.Contains(string(mounts), "disk0") || !strings.Contains(string(mounts), "- fuse") {
		t.Errorf("got mounts:\n%s\nwant a FUSE mount for disk0", mounts)
	}
	forked, err := s.host.Fork(
		t.Context(),
		hostapi.Fork{Parent: "child", Children: []hostapi.Child{{ID: "grand"}}},
	) // everything is downloaded by then
	s.must(err)
	s.must(forked[0].Err())
	if got := s.run("grand", "cat word"); got != "hello" {
		t.Errorf("the child printed %q, want \"hello\"", got)
	}
	if r := s.record("grand"); strings.Contains(r, `"paged":true`) {
		t.Errorf("got record %s of the child, want memory that is not paged", r)
	}
	if got := s.run("child", "cat word"); got != "hello" {
		t.Errorf("after the fork the machine printed %q, want \"hello\"", got)
	}
	for _, id := range []hostapi.MachineID{"child", "grand"} {
		s.must(s.host.Destroy(t.Context(), id, "test"))
	}
}

// nothingLeft checks the state after all machines were destroyed.
func (s *testHost) nothingLeft() {
	s.t.Helper()
	for _, dir := range []string{"data/machines", "captures"} {
		left, err := os.ReadDir(filepath.Join(s.dir, dir))
		if err != nil || len(left) != 0 {
			s.t.Errorf("%s contains %v, %v; want nothing", dir, left, err)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	s.must(err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, s.dir+"/data/machines") {
			s.t.Errorf("got leftover mount %s", line)
		}
	}
}
