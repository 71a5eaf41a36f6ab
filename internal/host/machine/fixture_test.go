package machine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/host/volume"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/vmm"
)

// base is the template that every test begins with.
const base = snapshot.Ref("templates/base/g1")

// dataDisks are the data disks of every template here.
var dataDisks = []snapshot.DataDisk{
	{Name: "data", MiB: 1, Mount: "/data", Options: []string{"noatime"}},
	{Name: "more", MiB: 1, Mount: "/more"},
}

// places is the number of places for volumes of every machine here.
const places = 2

// makeDisks makes the disks of a template.
func (w *fixture) makeDisks(d *snapshot.Draft) {
	w.t.Helper()
	for _, path := range d.DiskPaths(dataDisks) {
		w.must(pageDisks{}.Allocate(path, 1<<20))
	}
}

// baseEgress is the egress policy of the machines that tests begin with.
var baseEgress = hostapi.Egress{Allow: []string{"a.example", "192.0.2.0/24"}, DenyOthers: true}

// fixture is a host with fake monitors, network and cgroups, and a manager that can be killed and started again.
type fixture struct {
	t            *testing.T
	dir          string
	host         *fakeDriver
	network      *network
	cgroups      *cgroups
	hook         atomic.Pointer[func(op, step string) error]
	space        diskSpace
	hugePages    int64          // bytes that HugeMemory returns
	lazy         *lazySnapshots // nil: none
	warmMonitors int            // that the manager may keep; read by boot
	limits       hostapi.Limits // of every machine; read by boot
	patient      time.Duration  // BootTimeout; 0: the default; read by boot
	overcommit   int            // DiskOvercommit; read by boot
	groupDiskMiB int            // read by boot
	freeze       time.Duration  // FreezeTimeout; 0: the default; read by boot

	mgr   *machine.Manager
	store *snapshot.Store
	stop  func()

	volumes *volume.Store

	mu     sync.Mutex
	events []machine.Event
	inodes map[uint64]int // how often each file was made durable, by inode; guarded by mu
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	w := &fixture{
		t:       t,
		dir:     memoryDir(t),
		host:    newFakeDriver(),
		network: newNetwork(),
		cgroups: &cgroups{names: map[string]bool{}},
		lazy:    &lazySnapshots{},
	}
	w.space.set(1<<40, 0)
	w.host.mayRun = func(id string) error { return w.checkEgressInForce(id) }
	w.boot()
	t.Cleanup(func() { w.stop() })
	d, err := w.store.Draft()
	w.must(err)
	c := &capture{mem: memory{Frozen: true}, m: &monitor{host: w.host}}
	image, err := c.Save(t.Context(), d.ImageDir())
	w.must(err)
	image.Manifest.Disks = 1 + len(dataDisks) + places
	w.makeDisks(d)
	_, err = d.Commit(
		snapshot.Snapshot{
			Ref:       base,
			Template:  "base",
			VCPUs:     1,
			MemoryMiB: 64,
			Data:      dataDisks,
			Manifest:  image.Manifest,
		},
	)
	w.must(err)
	w.must(w.store.Release(base))
	return w
}

// memoryDir returns a directory in memory if possible: records of machines are written durably, and these tests write
// thousands.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "machine-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// boot starts a manager over the existing state. It repeats an abandoned recovery.
func (w *fixture) boot() {
	w.t.Helper()
	var err error
	w.store, err = snapshot.Open(w.dir, nil, "snapshots", "templates")
	w.must(err)
	w.volumes, err = volume.Open(volume.Config{
		Dir: filepath.Join(w.dir, "volumes"), Clone: pageDisks{}.Clone, Grow: pageDisks{}.Grow,
		Format: func(_ context.Context, out *os.File, sizeMiB int) error { return out.Truncate(int64(sizeMiB) << 20) },
	})
	w.must(err)
	w.network.restart()
	w.cgroups.restart()
	deps := machine.Deps{
		Driver:  w.host,
		Network: w.network,
		Cgroups: w.cgroups,
		Disks:   pageDisks{w.synced},
		Store:   w.store,
		Link:    openLink,
		Volumes: w.volumes,
		Emit:    w.emit,
	}
	if w.lazy != nil {
		w.lazy = &lazySnapshots{open: map[*lazySource]bool{}, hold: w.lazy.hold}
		deps.Lazy = w.lazy
	}
	w.mgr, err = machine.New(machine.Config{
		Dir: filepath.Join(w.dir, "machines"), ReadyTimeout: 30 * time.Second, BootTimeout: w.patient,
		FreezeTimeout: w.freeze,
		Places:        places,
		WarmMonitors:  w.warmMonitors, Limits: w.limits, DiskReserveMiB: 256,
		HostMemory: func() (int64, int64, error) { return 1 << 40, 1 << 40, nil },
		Pressure:   func() (float64, error) { return 0, nil },
		HugeMemory: func() (int64, error) { return w.hugePages, nil },
		FreeSpace:  w.space.read, ReclaimSpace: w.space.reclaim, Allocated: w.space.measure,
		SpaceInterval: time.Millisecond, DiskOvercommit: w.overcommit,
		Kernel: func(context.Context) (machine.Kernel, error) { return machine.Kernel{}, nil },
		OnStep: func(op, step string) error {
			if hook := w.hook.Load(); hook != nil {
				return (*hook)(op, step)
			}
			return nil
		},
	}, deps)
	w.must(err)
	w.mgr.SetGroupBounds(hostapi.GroupBounds{DefaultMiB: int64(w.groupDiskMiB)})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	w.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		_ = w.mgr.Close()
	})
	if err := w.mgr.Recover(ctx); errors.Is(err, machine.ErrAbandon) {
		w.restart(nil)
		return
	} else if err != nil {
		w.t.Fatal(err)
	}
	running.Go(func() { _ = w.mgr.Run(ctx) })
}

// restart ends the manager as a signal would, and starts another that calls step after each step.
func (w *fixture) restart(step func(op, step string) error) {
	w.t.Helper()
	w.stop()
	w.onStep(step)
	w.boot()
}

// onStep sets the function that is called after every step; nil: none.
func (w *fixture) onStep(hook func(op, step string) error) {
	if hook == nil {
		w.hook.Store(nil)
		return
	}
	w.hook.Store(&hook)
}

func (w *fixture) emit(e machine.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

func (w *fixture) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *fixture) create(id string, keep bool) machine.View {
	w.t.Helper()
	mc, err := w.mgr.Create(
		w.t.Context(),
		machine.CreateRequest{ID: hostapi.MachineID(id), Template: "base", Persistent: keep, Egress: baseEgress},
		base,
		"",
	)
	w.must(err)
	return mc
}

func (w *fixture) destroy(id string) {
	w.t.Helper()
	w.must(w.mgr.Destroy(w.t.Context(), hostapi.MachineID(id), "test"))
}

// count increments the counters of a machine's guest, in memory and on disk, and fails if they differ or are not want.
func (w *fixture) count(id string, want uint64) {
	w.t.Helper()
	m := w.host.monitorOf(id)
	if m == nil {
		w.t.Fatalf("machine %s has no monitor", id)
	}
	got, err := m.count()
	if err != nil || got != want {
		w.t.Fatalf("machine %s counts %d, %v; want %d", id, got, err, want)
	}
}

func (w *fixture) wantState(id string, want hostapi.State) {
	w.t.Helper()
	mc, err := w.mgr.Get(hostapi.MachineID(id))
	if err != nil || mc.State != want {
		w.t.Fatalf("machine %s is %q (%s), %v; want %q", id, mc.State, mc.Reason, err, want)
	}
}

// eventually waits until a condition holds.
func (w *fixture) eventually(what string, holds func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !holds() {
		if time.Now().After(deadline) {
			w.t.Fatalf("timeout waiting until %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

// checkNoLeftovers fails unless everything on the host belongs to a machine in the list.
func (w *fixture) checkNoLeftovers() {
	w.t.Helper()
	live, dirs := map[string]bool{}, []string{}
	for _, mc := range w.mgr.List() {
		dirs = append(dirs, string(mc.ID))
		if mc.State == hostapi.Running || mc.State == hostapi.Paused {
			live[string(mc.ID)] = true
		}
	}
	for _, m := range w.host.alive() {
		if !live[m.spec.ID] {
			w.t.Errorf("monitor of %s is left over", m.spec.ID)
		}
	}
	for id := range live {
		if w.host.monitorOf(id) == nil {
			w.t.Errorf("machine %s has no monitor", id)
		}
	}
	w.network.check(w.t, live)
	for id := range live {
		if err := w.checkEgressInForce(id); err != nil {
			w.t.Error(err)
		}
	}
	w.cgroups.check(w.t, live)
	slices.Sort(dirs)
	if got := names(w.t, filepath.Join(w.dir, "machines")); !slices.Equal(got, dirs) {
		w.t.Errorf("directories of machines = %v, want %v", got, dirs)
	}
	for _, v := range w.volumes.List() {
		mc, err := w.mgr.Get(v.Machine)
		has := slices.ContainsFunc(mc.Volumes, func(a hostapi.AttachedVolume) bool { return a.Volume == v.ID })
		if v.Machine != "" && (err != nil || !has) {
			w.t.Errorf("volume %s is attached to machine %s, which has %+v, %v", v.ID, v.Machine, mc.Volumes, err)
		}
	}
	if got := names(w.t, filepath.Join(w.dir, "volumes")); len(got) != len(w.volumes.List()) {
		w.t.Errorf("files of volumes = %v, want those of %+v", got, w.volumes.List())
	}
	if got := names(w.t, filepath.Join(w.dir, "drafts")); len(got) != 0 {
		w.t.Errorf("drafts = %v, want none", got)
	}
}

// checkEgressInForce returns an error unless a machine's policy applies to its slot. id is the name of its monitor:
// that of a warm monitor, if the machine was made of one.
func (w *fixture) checkEgressInForce(id string) error {
	var record struct {
		ID hostapi.MachineID `json:"id"`
	}
	data, err := os.ReadFile(filepath.Join(w.dir, "machines", id, "machine.json"))
	if err := errors.Join(err, json.Unmarshal(data, &record)); err != nil {
		return err
	}
	mc, err := w.mgr.Get(record.ID)
	if err != nil {
		return err
	}
	if got, ok := w.network.policy(id); !ok || !got.Equal(mc.Egress) {
		return fmt.Errorf("egress policy of machine %s = %+v (%v), want %+v", id, got, ok, mc.Egress)
	}
	return nil
}

// checkEmpty fails unless the host has nothing but the template.
func (w *fixture) checkEmpty() {
	w.t.Helper()
	w.checkNoLeftovers()
	if list := w.mgr.List(); len(list) != 0 {
		w.t.Errorf("machines = %v, want none", list)
	}
	if got := names(w.t, filepath.Join(w.dir, "snapshots")); len(got) != 0 {
		w.t.Errorf("snapshots = %v, want none", got)
	}
	if memory, err := w.mgr.Memory(); err != nil || memory.FreeMiB < memory.TotalMiB || memory.PromisedMiB != 0 {
		w.t.Errorf("memory = %+v, %v; want all of it free", memory, err)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

// network is a fake machine.Network; it outlives managers.
type network struct {
	mu    sync.Mutex
	taken map[int]string
	found map[int]string // of an earlier manager, not adopted
	rules map[int]hostapi.Egress
	mute  map[int]bool     // adopted, and no policy set since
	rates map[int][2]int64 // in, out; a slot without has the host's
	conns map[int][2]int   // at once, per second; a slot without has the host's
	fail  error            // of the next policy set
}

func newNetwork() *network {
	return &network{
		taken: map[int]string{},
		found: map[int]string{},
		rules: map[int]hostapi.Egress{},
		mute:  map[int]bool{},
		rates: map[int][2]int64{},
		conns: map[int][2]int{},
	}
}

type slot struct {
	net   *network
	index int
}

func (n *network) restart() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, owner := range n.taken {
		n.found[i] = owner
	}
	n.taken = map[int]string{}
}

func (n *network) Acquire(_ context.Context, owner string) (machine.Slot, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := 0; ; i++ {
		if n.taken[i] == "" && n.found[i] == "" {
			n.taken[i] = owner
			delete(n.rules, i)
			delete(n.mute, i)
			delete(n.rates, i)
			delete(n.conns, i)
			return &slot{n, i}, nil
		}
	}
}

func (n *network) Adopt(_ context.Context, owner string, index int) (machine.Slot, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.found[index] != owner {
		return nil, fmt.Errorf("slot %d is of %q, not %q", index, n.found[index], owner)
	}
	delete(n.found, index)
	delete(n.rates, index)
	delete(n.conns, index)
	n.taken[index], n.mute[index] = owner, true
	return &slot{n, index}, nil
}

func (n *network) Sweep(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.found = map[int]string{}
	return nil
}

func (n *network) check(t *testing.T, live map[string]bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.taken) != len(live) || len(n.found) != 0 {
		t.Errorf("slots taken = %v, found = %v, want those of %v", n.taken, n.found, live)
	}
	for _, owner := range n.taken {
		if !live[owner] {
			t.Errorf("slot of %s is left over", owner)
		}
	}
}

func (p *slot) Info() machine.SlotInfo {
	return machine.SlotInfo{Index: p.index, GuestIP: netip.MustParseAddr("10.0.0.2"), TapName: "tap0",
		MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Guest: guestapi.Network{Address: "192.168.241.2/29"}}
}

func (n *network) CheckEgress(policy hostapi.Egress) error {
	if slices.Contains(policy.Allow, "bad") {
		return fmt.Errorf("bad: %w", hostapi.ErrInvalid)
	}
	return nil
}

func (n *network) failNext(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fail = err
}

// policy returns the policy of owner's slot; false: there is none, or its names are not resolved.
func (n *network) policy(owner string) (hostapi.Egress, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, o := range n.taken {
		if o == owner {
			return n.rules[i], !n.mute[i]
		}
	}
	return hostapi.Egress{}, false
}

func (p *slot) SetEgress(_ context.Context, policy hostapi.Egress) error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if err := p.net.fail; err != nil {
		p.net.fail = nil
		return err
	}
	p.net.rules[p.index] = policy
	delete(p.net.mute, p.index)
	return nil
}

func (p *slot) SetRates(_ context.Context, in, out int64) error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	p.net.rates[p.index] = [2]int64{in, out}
	return nil
}

func (p *slot) SetConnections(_ context.Context, open, perSecond int) error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	p.net.conns[p.index] = [2]int{open, perSecond}
	return nil
}

// connsOf returns the limits of the connections of owner's slot.
func (n *network) connsOf(owner string) [2]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, o := range n.taken {
		if o == owner {
			return n.conns[i]
		}
	}
	return [2]int{-1, -1}
}

// ratesOf returns the rates of owner's slot.
func (n *network) ratesOf(owner string) [2]int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, o := range n.taken {
		if o == owner {
			return n.rates[i]
		}
	}
	return [2]int64{-1, -1}
}

func (p *slot) Release(context.Context) error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if p.net.taken[p.index] == "" {
		return fmt.Errorf("slot %d released twice", p.index)
	}
	delete(p.net.taken, p.index)
	return nil
}

// cgroups is the set of fake groups of a host.
type cgroups struct {
	mu    sync.Mutex
	names map[string]bool
	found map[string]bool // of an earlier manager, not adopted
	oom   bool
}

type cgroup struct {
	of   *cgroups
	name string
}

func (g *cgroups) Create(_ context.Context, name string, l machine.Limits) (machine.Cgroup, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l.VCPUs < 1 || l.MemoryBytes < 64<<20 {
		return nil, fmt.Errorf("limits %+v", l)
	}
	g.names[name] = true
	return &cgroup{g, name}, nil
}

func (g *cgroups) Adopt(ctx context.Context, name string, l machine.Limits) (machine.Cgroup, error) {
	g.mu.Lock()
	found := g.found[name]
	delete(g.found, name)
	g.mu.Unlock()
	if !found {
		return nil, fmt.Errorf("no cgroup %s", name)
	}
	return g.Create(ctx, name, l)
}

func (g *cgroups) Sweep(context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.found = nil
	return nil
}

func (g *cgroups) restart() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.found, g.names = g.names, map[string]bool{}
}

func (g *cgroups) check(t *testing.T, live map[string]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.names) != len(live) || len(g.found) != 0 {
		t.Errorf("cgroups = %v, want those of %v", g.names, live)
	}
}

func (g *cgroup) Enter(int) error { return nil }
func (g *cgroup) Jail() vmm.Jail  { return nil }

func (g *cgroup) OutOfMemory() bool {
	g.of.mu.Lock()
	defer g.of.mu.Unlock()
	return g.of.oom
}

func (g *cgroup) Destroy(context.Context) error {
	g.of.mu.Lock()
	defer g.of.mu.Unlock()
	delete(g.of.names, g.name)
	return nil
}

// synced records that a file was made durable.
func (w *fixture) synced(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inodes == nil {
		w.inodes = map[uint64]int{}
	}
	w.inodes[inodeOf(path)]++
}

// syncs returns how often the file that a volume has was made durable.
func (w *fixture) syncs(id hostapi.VolumeID) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.inodes[inodeOf(w.volumes.Path(id))]
}

// inodeOf returns the inode of a file; 0: there is none.
func inodeOf(path string) uint64 {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// pageDisks makes disks on any file system. Copies are of the first page, where guests write; the rest is a hole.
type pageDisks struct {
	onSync func(path string) // nil: nothing
}

const page = 4096

func (pageDisks) Clone(src, dst string) error {
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(pageDisks{}.CloneInto(src, out), out.Close())
}

func (pageDisks) CloneInto(src string, dst *os.File) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	st, err := in.Stat()
	if err == nil {
		err = dst.Truncate(st.Size())
	}
	if err == nil {
		_, err = io.CopyN(dst, in, min(st.Size(), page))
	}
	return errors.Join(err, in.Close())
}

func (pageDisks) Allocate(path string, bytes int64) error {
	return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, bytes))
}

func (pageDisks) Grow(path string, bytes int64) error { return os.Truncate(path, bytes) }

func (d pageDisks) Sync(path string) error {
	if d.onSync != nil {
		d.onSync(path)
	}
	return durable.Sync(path)
}
