package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/host/volume"
	"github.com/pandastack/pandastack/internal/host/watchdog"
	"github.com/pandastack/pandastack/internal/lib/config"
	"github.com/pandastack/pandastack/internal/lib/obs"
	"github.com/pandastack/pandastack/internal/vmm"
)

// Config has the settings of a Manager. Dir is required.
type Config struct {
	// Dir holds the machines' directories, on the file system of the snapshots.
	Dir string
	// Parallel bounds the machines of one fork that are started at once, and those that are taken over at once;
	// default: twice the processors, at least 4.
	Parallel int
	// WarmMonitors bounds the warm monitors, one for each template that was used lately; 0: none.
	WarmMonitors int
	// ReadyTimeout is how long a restored guest may take to confirm its identity; default 30 s.
	ReadyTimeout time.Duration
	// BootTimeout is the same for a guest that boots; default 3 min.
	BootTimeout time.Duration
	// FreezeTimeout is how long a guest may take to stop its workload or to continue it, and its monitor to stop or
	// continue; default 10 s.
	FreezeTimeout time.Duration
	// SyncTimeout is added to that if the guest writes its file systems out first; default 2 min.
	SyncTimeout time.Duration
	// DiskReserveMiB stays free on the disk; 0 is the default of the setting capacity.disk_reserve_mib.
	DiskReserveMiB int
	// Places is the number of drives for volumes of machines that boot, at most snapshot.MaxPlaces. Machines from a
	// snapshot have as many as it. 0: volumes cannot be attached.
	Places int
	// DiskOvercommit bounds the sizes of all machines' disks together, as a multiple of the file system; 0: no bound.
	DiskOvercommit int
	// Limits apply to every machine, from its start or adoption. Those of disks need a driver that enforces them;
	// those of the network the slots have already, and machines may not ask for more.
	Limits     hostapi.Limits
	Admission  Admission
	HostMemory HostMemory     // default ReadMeminfo
	Pressure   MemoryPressure // default ReadPressure
	FreeSpace  FreeSpace      // default StatFS
	// Allocated measures a disk: the bytes that removing the file would free, without waiting for what is being
	// written; nil: machines that grow cannot be found.
	Allocated func(path string) (int64, error)
	// SpaceInterval is the time between checks of the free disk space when it is short; default 200 ms.
	SpaceInterval time.Duration
	// ReclaimSpace frees up to so many bytes of disk that hold content which can be downloaded again, and returns
	// how many; nil: there are none.
	ReclaimSpace func(bytes int64) int64
	// HugeMemory returns how many bytes of pages of 2 MiB the host has ready. The memory of machines that stream is
	// made of them if the driver can; nil: never.
	HugeMemory func() (int64, error)
	// Owner returns the user and group that runs the monitor in a network slot; nil: our own.
	Owner func(slot int) (uid, gid int)
	// Kernel returns the kernel to boot with; nil: no machine can boot.
	Kernel func(ctx context.Context) (Kernel, error)
	// OnStep, for tests, is called after every step of every operation. An error fails the operation there; with
	// ErrAbandon everything stays as it is, as after a kill of this process.
	OnStep func(op, step string) error
}

// ErrAbandon from Config.OnStep ends an operation without its cleanups.
var ErrAbandon = errors.New("operation abandoned")

// Deps are the other components that a Manager works with. All are required but Volumes, Lazy, Log and Emit.
type Deps struct {
	Driver  vmm.Driver
	Network Network
	Cgroups Cgroups
	Disks   Disks
	Store   *snapshot.Store
	Link    OpenLink
	Volumes *volume.Store // nil: there are none
	// Lazy serves snapshots that are not yet downloaded; nil: machines cannot start on them.
	Lazy LazySnapshots
	Log  *slog.Logger
	// Emit is called for events that no caller asked for. It must not wait.
	Emit func(Event)
}

// Manager owns the machines of one host. Call Recover before anything else, and keep Run running.
type Manager struct {
	cfg    Config
	deps   Deps
	log    *slog.Logger
	ledger *ledger

	watchdog *watchdog.Watchdog // of guests that do not reply

	exits        chan monitorExit
	lazyFailures chan vmm.Machine  // monitors that wait for a download that failed
	unsynced     chan string       // directories of machines whose record is not durable yet
	consumed     chan snapshot.Ref // hibernation images whose disks are not needed any more
	closed       chan struct{}
	close        sync.Once
	watchers     sync.WaitGroup

	bounds atomic.Pointer[hostapi.GroupBounds] // nil: none

	warmRequests chan snapshot.Ref // warm monitors to prepare
	warmMu       sync.Mutex        // held while one is prepared

	mu       sync.Mutex
	machines map[hostapi.MachineID]*machine
	warm     map[snapshot.Ref]*warmMonitor // guarded by mu
	huge     map[*machine]int64            // bytes of huge pages that are reserved; guarded by mu
}

// machine is one machine. The holder of busy owns it: it alone changes the fields, under mu so that others may read
// them.
type machine struct {
	id        hostapi.MachineID
	dir       string
	ephemeral bool          // as in the record; never changes
	group     string        // likewise
	volumes   *volume.Store // nil: none
	busy      chan struct{}
	doomed    chan struct{} // closed when it is to be destroyed, whatever is in progress
	doomOnce  sync.Once

	mu        sync.Mutex
	rec       record
	removed   bool // destroyed, or never published
	vm        vmm.Machine
	link      Link
	slot      Slot
	cgroup    Cgroup
	lazy      LazySource // of a machine that began on a snapshot that was not yet downloaded
	boot      time.Duration
	pause     time.Duration
	phases    []obs.Phase
	cpuSample cpuSample
	wait      *spaceWait // why it does not run although it should; see waiting
	lastWait  spaceWait  // the one before, whose guest continued
	diskBytes int64      // that removing its disks would free, as last measured
	// consoleTail is read and written by the owner alone.
	consoleTail []byte
	unmounted   map[hostapi.VolumeID]bool // volumes that the guest has unmounted before its end; likewise
}

// New returns a manager. It does not touch the host yet.
func New(cfg Config, deps Deps) (*Manager, error) {
	if cfg.Dir == "" || deps.Driver == nil || deps.Network == nil || deps.Cgroups == nil ||
		deps.Disks == nil || deps.Store == nil || deps.Link == nil {
		return nil, errors.New("machine: directory, driver, network, cgroups, disks, store and link are required")
	}
	if c := deps.Driver.Capabilities(); diskRate(cfg.Limits) != (vmm.Rate{}) && !c.Disks.Rates {
		return nil, fmt.Errorf(
			"machine: %w",
			&vmm.UnsupportedError{Op: "limit the rate of disks", Driver: c.Name},
		)
	}
	cfg.Parallel = cmp.Or(cfg.Parallel, max(4, 2*runtime.NumCPU()))
	cfg.ReadyTimeout = cmp.Or(cfg.ReadyTimeout, 30*time.Second)
	cfg.BootTimeout = cmp.Or(cfg.BootTimeout, 3*time.Minute)
	cfg.FreezeTimeout = cmp.Or(cfg.FreezeTimeout, 10*time.Second)
	cfg.SyncTimeout = cmp.Or(cfg.SyncTimeout, 2*time.Minute)
	cfg.DiskReserveMiB = cmp.Or(cfg.DiskReserveMiB, config.Default().Capacity.DiskReserveMiB)
	cfg.SpaceInterval = cmp.Or(cfg.SpaceInterval, spaceInterval)
	if cfg.HostMemory == nil {
		cfg.HostMemory = ReadMeminfo
	}
	if cfg.Pressure == nil {
		cfg.Pressure = ReadPressure
	}
	if cfg.FreeSpace == nil {
		cfg.FreeSpace = StatFS
	}
	if cfg.Owner == nil {
		cfg.Owner = func(int) (int, int) { return 0, 0 }
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Emit == nil {
		deps.Emit = func(Event) {}
	}
	m := &Manager{
		cfg: cfg, deps: deps, log: deps.Log,
		ledger: &ledger{adm: cfg.Admission.withDefaults(), host: cfg.HostMemory, pressure: cfg.Pressure,
			reservations: map[hostapi.MachineID]reservation{}},
		exits: make(chan monitorExit), lazyFailures: make(chan vmm.Machine), unsynced: make(chan string, 256),
		consumed: make(chan snapshot.Ref, 256), closed: make(chan struct{}),
		machines:     map[hostapi.MachineID]*machine{},
		warmRequests: make(chan snapshot.Ref, 16), warm: map[snapshot.Ref]*warmMonitor{}, huge: map[*machine]int64{},
	}
	m.watchdog = watchdog.New(watchdog.Config{Deadline: cfg.FreezeTimeout}, watched{m}, m.reportSilence, m.log)
	return m, nil
}

// Get returns a machine.
func (m *Manager) Get(id hostapi.MachineID) (View, error) {
	mc := m.find(id)
	if mc == nil {
		return View{}, notFound(id)
	}
	return m.view(mc), nil
}

// view returns a machine as others see it.
func (m *Manager) view(mc *machine) View {
	v := mc.view()
	if v.State == hostapi.Running {
		v.Unresponsive = m.watchdog.Unresponsive(v.ID)
	}
	return v
}

// List returns all machines but ephemeral ones, oldest first.
func (m *Manager) List() []View {
	m.mu.Lock()
	all := make([]*machine, 0, len(m.machines))
	for _, mc := range m.machines {
		if !mc.ephemeral {
			all = append(all, mc)
		}
	}
	m.mu.Unlock()
	out := make([]View, 0, len(all))
	for _, mc := range all {
		out = append(out, m.view(mc))
	}
	slices.SortFunc(out, func(a, b View) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// SetPersistent sets whether a machine's disks outlive its monitor.
func (m *Manager) SetPersistent(ctx context.Context, id hostapi.MachineID, keep bool) error {
	mc, err := m.lock(ctx, id)
	if err != nil {
		return err
	}
	defer mc.unlock()
	return m.update(mc, surviveHost, func(in *record) { in.Persistent = keep })
}

// Memory returns the state of the host's memory.
func (m *Manager) Memory() (Memory, error) { return m.ledger.memory() }

// Close stops watching machines and closes the guest channels. The machines continue to run, and the Recover of the
// next Manager finds them. No operation may be in progress.
func (m *Manager) Close() error {
	m.close.Do(func() { close(m.closed) })
	m.watchers.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	var all error
	for _, mc := range m.machines {
		if mc.link != nil {
			all = errors.Join(all, mc.link.Close())
		}
	}
	return all
}

func notFound(id hostapi.MachineID) error {
	return fmt.Errorf("machine %s: %w", id, hostapi.ErrNotFound)
}

func (m *Manager) find(id hostapi.MachineID) *machine {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machines[id]
}

// lock waits for other operations on a machine and makes the caller its owner until unlock.
func (m *Manager) lock(ctx context.Context, id hostapi.MachineID) (*machine, error) {
	mc := m.find(id)
	if mc == nil {
		return nil, notFound(id)
	}
	select {
	case mc.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for machine %s: %w", id, context.Cause(ctx))
	}
	if mc.removed {
		mc.unlock()
		return nil, notFound(id)
	}
	return mc, nil
}

// unlock ends the caller's ownership of a machine.
func (mc *machine) unlock() { <-mc.busy }

// insert puts a new machine, owned by the caller, into the list. It returns ErrExists if the id is taken.
func (m *Manager) insert(in record) (*machine, error) {
	if !validID(string(in.ID)) {
		return nil, fmt.Errorf(
			"machine id %q is not 1 to 48 lower-case letters and digits: %w",
			string(in.ID),
			hostapi.ErrInvalid,
		)
	}
	in.Version = recordVersion
	mc := &machine{id: in.ID, dir: filepath.Join(m.cfg.Dir, in.resourceName()), ephemeral: in.Ephemeral,
		group: in.Group, volumes: m.deps.Volumes, busy: make(chan struct{}, 1), doomed: make(chan struct{}), rec: in}
	mc.busy <- struct{}{}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.machines[in.ID] != nil {
		return nil, fmt.Errorf("machine %s: %w", in.ID, hostapi.ErrExists)
	}
	m.machines[in.ID] = mc
	return mc, nil
}

// forget removes a machine, owned by the caller, from the list.
func (m *Manager) forget(mc *machine) {
	m.mu.Lock()
	delete(m.machines, mc.id)
	m.mu.Unlock()
	mc.set(func() { mc.removed = true })
	m.ledger.release(mc.id)
}

func validID(id string) bool {
	for _, c := range id {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return id != "" && len(id) <= 48
}

// set changes fields that others may read.
func (mc *machine) set(change func()) {
	mc.mu.Lock()
	defer mc.mu.Unlock()
	change()
}

// chown gives a file of a machine to the user that runs its monitor.
func (m *Manager) chown(mc *machine, path string) error {
	uid, gid := m.cfg.Owner(mc.rec.Slot)
	if uid == 0 {
		return nil
	}
	return os.Chown(path, uid, gid)
}
