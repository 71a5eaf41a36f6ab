// Package hosttest is a simulated host: all of hostapi.Host in memory, for tests of what uses hosts. Its
// machines are maps, its guests a small shell over files in memory.
//
// It keeps the contract as a real host does: ids are the caller's, Destroy may be repeated, operations on
// one machine wait for each other, a guest belongs to one generation of its machine. Beyond that it
// can be made to fail (Fail, FailAfter, SetHook, SetRecovering) and to lose machines (Kill, Lose, Unlist).
//
// All methods may be called concurrently. Close ends the processes of all guests.
package hosttest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestpipe"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

var _ hostapi.Host = (*Host)(nil)

// Hook is called before (after is false) and after each operation that does not fail by Fail. The operation
// returns its error; if it was called before, the operation has no effect.
type Hook func(ctx context.Context, op string, id string, after bool) error

// Host is a simulated host. Make one with New.
type Host struct {
	id         hostapi.HostID             // set by New
	recovering bool                       // nothing can be said of machines and snapshots
	unlisted   map[hostapi.MachineID]bool // machines that List leaves out

	mu             sync.Mutex
	machines       map[hostapi.MachineID]*machine
	snapshots      map[hostapi.SnapshotID]*snapshot
	templates      map[hostapi.TemplateName]hostapi.Template
	publishedState map[hostapi.TemplateName]*guestState // of published templates
	images         map[hostapi.ImageID]image
	volumes        map[hostapi.VolumeID]*volume
	busyVolumes    map[hostapi.VolumeID]bool
	objects        *Objects           // nil: none
	failing        map[string][]error // errors of the next calls, which have no effect
	failingAfter   map[string][]error // errors of the next calls, which have their effect
	hook           Hook
	guestHook      func(ctx context.Context) error // nil: none
	sockets        map[string]SocketServer
	programs       map[string]Program
	calls          []string
	subscribers    map[int]chan hostapi.Event
	nextSubscriber int
	nextPID        int
	maxRunning     int
	bounds         hostapi.GroupBounds
	memoryShort    bool
	format         string
	limits         hostapi.Limits
	began          time.Time
}

type machine struct {
	op sync.Mutex // held during an operation, taken before Host.mu
	hostapi.Machine
	state   *guestState
	guest   *guest // nil unless it runs
	removed bool

	stopped bool // it was stopped without memory
}

type snapshot struct {
	hostapi.Snapshot
	disks    []hostapi.DataDisk
	volumes  []hostapi.AttachedVolume
	readOnly []string // mount points
	files    map[string]file
	env      map[string]string
	servers  []server
}

// SetFormat changes the host's virtual hardware.
func (h *Host) SetFormat(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.format = name
}

// SetLimits sets the limits of the host for every machine.
func (h *Host) SetLimits(l hostapi.Limits) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.limits = l
}

// DefaultID is the id of a host that New returns.
const DefaultID hostapi.HostID = "hst1"

// SetID gives the host another id, before its first use.
func (h *Host) SetID(id hostapi.HostID) { h.id = id }

// New returns a host with a baked template "base" and an unbaked one, "raw". At most 1000 machines can run.
func New() *Host {
	h := &Host{
		id:             DefaultID,
		unlisted:       map[hostapi.MachineID]bool{},
		machines:       map[hostapi.MachineID]*machine{},
		snapshots:      map[hostapi.SnapshotID]*snapshot{},
		templates:      map[hostapi.TemplateName]hostapi.Template{},
		publishedState: map[hostapi.TemplateName]*guestState{},
		images:         map[hostapi.ImageID]image{},
		volumes:        map[hostapi.VolumeID]*volume{},
		busyVolumes:    map[hostapi.VolumeID]bool{},
		failing:        map[string][]error{},
		failingAfter:   map[string][]error{},
		subscribers:    map[int]chan hostapi.Event{},
		nextPID:        1000,
		maxRunning:     1000,
		began:          time.Now(),
	}
	base := hostapi.Template{
		Name: "base", Description: "Debian with the usual tools", Base: "debian:12", VCPUs: 1, MemoryMiB: 256,
		DiskMiB: 2048, User: "user", Workdir: "/home/user", Tools: []string{"python3", "node", "git"},
		Baked: true, BakedAt: h.began, Bytes: 300 << 20,
	}
	raw := base
	raw.Name, raw.Baked, raw.BakedAt = "raw", false, time.Time{}
	h.AddTemplate(base)
	h.AddTemplate(raw)
	return h
}

// AddTemplate adds a template or replaces it.
func (h *Host) AddTemplate(t hostapi.Template) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.templates[t.Name] = t
}

// Create implements hostapi.Host.
func (h *Host) Create(ctx context.Context, req hostapi.Create) (hostapi.Machine, error) {
	var made hostapi.Machine
	err := h.runOp(ctx, "create", string(req.ID), func() (err error) {
		made, err = h.create(req)
		return err
	})
	return made, err
}

func (h *Host) create(req hostapi.Create) (hostapi.Machine, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.machines[req.ID]; ok {
		return hostapi.Machine{}, fmt.Errorf("machine %s: %w", req.ID, hostapi.ErrExists)
	}
	if h.running() >= h.maxRunning {
		return hostapi.Machine{}, fmt.Errorf("machine %s: %w", req.ID, hostapi.ErrNoCapacity)
	}
	if err := req.Limits.Check(h.limits); err != nil {
		return hostapi.Machine{}, fmt.Errorf("machine %s: %w", req.ID, err)
	}
	m := &machine{Machine: hostapi.Machine{
		ID: req.ID, Host: h.id, State: hostapi.Running, Created: time.Now(), Persistent: req.Persistent,
		Egress: req.Egress, Limits: req.Limits, Group: req.Group, Labels: maps.Clone(req.Labels),
		BootMode: hostapi.BootSnapshot, Boot: 42 * time.Millisecond,
		Phases: []hostapi.Phase{{Name: "disk", Took: time.Millisecond}, {Name: "restore", Took: 41 * time.Millisecond}},
	}}
	files, env := map[string]file{}, maps.Clone(req.Env)
	var readOnly []string
	var servers []server
	if req.Snapshot != "" {
		s, ok := h.snapshots[req.Snapshot]
		if !ok {
			return hostapi.Machine{}, fmt.Errorf("snapshot %s: %w", req.Snapshot, hostapi.ErrNotFound)
		}
		m.Snapshot, m.Template = s.ID, s.Template
		m.VCPUs, m.MemoryMiB, m.DiskMiB, m.Disks = s.VCPUs, s.MemoryMiB, s.DiskMiB, s.disks
		m.Volumes, readOnly = privateVolumes(s.volumes), s.readOnly
		files, servers = copyFiles(s.files), s.servers
		if env == nil {
			env = maps.Clone(s.env)
		}
	} else if req.Image != "" {
		i, ok := h.images[req.Image]
		if !ok {
			return hostapi.Machine{}, fmt.Errorf("image %s: %w", req.Image, hostapi.ErrNotFound)
		}
		m.VCPUs, m.MemoryMiB, m.DiskMiB, m.BootMode = req.VCPUs, req.MemoryMiB, i.SizeMiB, hostapi.BootCold
		files = copyFiles(i.files)
	} else {
		t, ok := h.templates[req.Template]
		if !ok {
			return hostapi.Machine{}, fmt.Errorf("template %s: %w", req.Template, hostapi.ErrNotFound)
		}
		if c := h.publishedState[t.Name]; c != nil {
			files = copyFiles(c.files)
			if env == nil {
				env = maps.Clone(c.env)
			}
		}
		if !t.Baked {
			m.BootMode, t.Baked, t.BakedAt = hostapi.BootCold, true, time.Now()
			h.templates[t.Name] = t
		}
		m.Template, m.VCPUs, m.MemoryMiB, m.DiskMiB, m.Disks = t.Name, t.VCPUs, t.MemoryMiB, t.DiskMiB, t.Disks
	}
	if req.Image == "" && req.MemoryMiB != 0 && req.MemoryMiB != m.MemoryMiB { // this host's monitors cannot add memory
		return hostapi.Machine{}, fmt.Errorf(
			"machine %s: memory of %d MiB: %w",
			req.ID,
			req.MemoryMiB,
			hostapi.ErrInvalid,
		)
	}
	m.DiskMiB = max(m.DiskMiB, req.DiskMiB)
	m.state = &guestState{host: string(req.Hostname), env: env, files: files, readOnly: readOnly, user: "user",
		home: "/home/user", servers: servers}
	m.state.writeFiles(req.Files)
	if err := h.attachAll(m, req.Volumes); err != nil {
		return hostapi.Machine{}, fmt.Errorf("machine %s: %w", req.ID, err)
	}
	h.machines[m.ID] = m
	h.start(m)
	return m.Machine, nil
}

// start gives a machine a process, a network slot and a guest of a new generation.
func (h *Host) start(m *machine) {
	h.nextPID++
	n := h.nextPID
	m.State, m.PID, m.Reason = hostapi.Running, n, ""
	m.GuestIP = fmt.Sprintf("10.200.%d.%d", n>>8&255, n&255)
	m.Tap, m.MAC = fmt.Sprintf("tap%d", n), "02:fc:00:00:00:05"
	m.Generation++
	m.guest = newGuest(m.state)
	m.guest.hook, m.guest.sockets, m.guest.programs = h.guestHook, h.sockets, h.programs
	m.guest.resume(m.state.servers)
	m.state.servers = nil
}

// stopGuest removes the guest and the process of a machine.
func (m *machine) stopGuest(state hostapi.State) {
	m.State, m.PID, m.GuestIP, m.Tap = state, 0, "", ""
	if m.guest != nil {
		m.guest.lose()
		m.guest = nil
	}
}

func (h *Host) running() (n int) {
	for _, m := range h.machines {
		if m.State == hostapi.Running || m.State == hostapi.Paused {
			n++
		}
	}
	return n
}

// Fork implements hostapi.Host.
func (h *Host) Fork(ctx context.Context, req hostapi.Fork) ([]hostapi.ForkResult, error) {
	var out []hostapi.ForkResult
	err := h.withMachine(ctx, "fork", req.Parent, func(p *machine) error {
		if p.State != hostapi.Running && p.State != hostapi.Paused {
			return wrongState(p)
		}
		p.Pause = 5 * time.Millisecond
		for _, c := range req.Children {
			out = append(out, h.forkChild(p, c))
		}
		return nil
	})
	return out, err
}

func (h *Host) forkChild(p *machine, c hostapi.Child) hostapi.ForkResult {
	if err := h.nextFault(h.failing, "child"); err != nil {
		return hostapi.ForkResult{Failure: hostapi.EncodeError(err)}
	}
	failed := func(reason error) hostapi.ForkResult {
		return hostapi.ForkResult{Failure: hostapi.EncodeError(fmt.Errorf("machine %s: %w", c.ID, reason))}
	}
	if _, ok := h.machines[c.ID]; ok {
		return failed(hostapi.ErrExists)
	}
	if h.running() >= h.maxRunning {
		return failed(hostapi.ErrNoCapacity)
	}
	env := c.Env
	if env == nil {
		env = p.state.env
	}
	m := &machine{Machine: hostapi.Machine{
		ID: c.ID, Host: h.id, Template: p.Template, Parent: p.ID, VCPUs: p.VCPUs, MemoryMiB: p.MemoryMiB,
		DiskMiB: p.DiskMiB, Disks: p.Disks, Volumes: privateVolumes(p.Volumes),
		BootMode: hostapi.BootFork, Boot: 30 * time.Millisecond, Created: time.Now(), Persistent: c.Persistent,
		Egress: p.Egress, Limits: p.Limits, Group: p.Group, Labels: maps.Clone(c.Labels),
	}}
	m.state = p.state.copy(c.Hostname, env)
	m.state.writeFiles(c.Files)
	h.machines[m.ID] = m
	h.start(m)
	return hostapi.ForkResult{Machine: m.Machine}
}

// Get implements hostapi.Host.
func (h *Host) Get(ctx context.Context, id hostapi.MachineID) (hostapi.Machine, error) {
	var got hostapi.Machine
	err := h.runOp(ctx, "get", string(id), func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		m, ok := h.machines[id]
		if !ok {
			return fmt.Errorf("machine %s: %w", id, hostapi.ErrNotFound)
		}
		got = m.Machine
		return nil
	})
	return got, err
}

// List implements hostapi.Host.
func (h *Host) List(ctx context.Context) ([]hostapi.Machine, error) {
	var all []hostapi.Machine
	err := h.runOp(ctx, "list", "", func() error {
		all = slices.DeleteFunc(h.Machines(), func(m hostapi.Machine) bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.unlisted[m.ID]
		})
		return nil
	})
	return all, err
}

// Machines lists all machines by id. It never fails.
func (h *Host) Machines() []hostapi.Machine {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := []hostapi.Machine{}
	for _, id := range slices.Sorted(maps.Keys(h.machines)) {
		all = append(all, h.machines[id].Machine)
	}
	return all
}

// Pause implements hostapi.Host.
func (h *Host) Pause(ctx context.Context, id hostapi.MachineID) error {
	return h.withMachine(ctx, "pause", id, func(m *machine) error {
		if m.State != hostapi.Running && m.State != hostapi.Paused {
			return wrongState(m)
		}
		m.State = hostapi.Paused
		return nil
	})
}

// Resume implements hostapi.Host.
func (h *Host) Resume(ctx context.Context, id hostapi.MachineID) error {
	return h.withMachine(ctx, "resume", id, func(m *machine) error {
		if m.State != hostapi.Running && m.State != hostapi.Paused {
			return wrongState(m)
		}
		if m.PauseReason != "" {
			return fmt.Errorf("machine %s waits for disk space: %w", m.ID, hostapi.ErrNoSpace)
		}
		m.State = hostapi.Running
		return nil
	})
}

// Hibernate implements hostapi.Host.
func (h *Host) Hibernate(ctx context.Context, id hostapi.MachineID) error {
	return h.withMachine(ctx, "hibernate", id, func(m *machine) error {
		if m.State != hostapi.Running && m.State != hostapi.Paused {
			return wrongState(m)
		}
		m.state.servers = m.guest.servers()
		m.stopGuest(hostapi.Hibernated)
		return nil
	})
}

// Stop implements hostapi.Host.
func (h *Host) Stop(ctx context.Context, id hostapi.MachineID) error {
	return h.withMachine(ctx, "stop", id, func(m *machine) error {
		if m.State != hostapi.Running && m.State != hostapi.Hibernated {
			return wrongState(m)
		}
		m.stopGuest(hostapi.Hibernated)
		m.stopped = true
		return nil
	})
}

// Wake implements hostapi.Host.
func (h *Host) Wake(ctx context.Context, id hostapi.MachineID) (hostapi.Machine, error) {
	var woken hostapi.Machine
	err := h.withMachine(ctx, "wake", id, func(m *machine) error {
		if m.State != hostapi.Hibernated && m.State != hostapi.Failed {
			return wrongState(m)
		}
		if h.running() >= h.maxRunning {
			return fmt.Errorf("machine %s: %w", id, hostapi.ErrNoCapacity)
		}
		m.BootMode, m.Boot = hostapi.BootWake, 50*time.Millisecond
		if m.stopped {
			m.BootMode, m.stopped = hostapi.BootCold, false
		}
		h.start(m)
		woken = m.Machine
		return nil
	})
	return woken, err
}

// SetPersistent implements hostapi.Host.
func (h *Host) SetPersistent(ctx context.Context, id hostapi.MachineID, keep bool) error {
	return h.withMachine(ctx, "setkeep", id, func(m *machine) error {
		m.Persistent = keep
		return nil
	})
}

// SetEgress implements hostapi.Host.
func (h *Host) SetEgress(ctx context.Context, id hostapi.MachineID, policy hostapi.Egress) error {
	return h.withMachine(ctx, "setegress", id, func(m *machine) error {
		m.Egress = policy
		return nil
	})
}

// SetGroupBounds implements hostapi.Host; GroupBounds returns them.
func (h *Host) SetGroupBounds(ctx context.Context, bounds hostapi.GroupBounds) error {
	return h.runOp(ctx, "setgroupbounds", "", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.bounds = bounds
		return nil
	})
}

// GroupBounds returns the bounds that were set last.
func (h *Host) GroupBounds() hostapi.GroupBounds {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bounds
}

// Grow makes the disks of a machine take so many bytes.
func (h *Host) Grow(ctx context.Context, id hostapi.MachineID, bytes int64) error {
	return h.withMachine(ctx, "grow", id, func(m *machine) error {
		m.DiskBytes = bytes
		return nil
	})
}

// Destroy implements hostapi.Host.
func (h *Host) Destroy(ctx context.Context, id hostapi.MachineID, cause string) error {
	return h.runOp(ctx, "destroy", string(id), func() error {
		h.remove(id)
		return nil
	})
}

func (h *Host) remove(id hostapi.MachineID) {
	h.mu.Lock()
	m := h.machines[id]
	h.mu.Unlock()
	if m == nil {
		return
	}
	m.op.Lock()
	defer m.op.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.detachAll(m)
	m.stopGuest(hostapi.Failed)
	m.removed = true
	delete(h.machines, id)
}

func wrongState(m *machine) error {
	return fmt.Errorf("machine %s is %s: %w", m.ID, m.State, hostapi.ErrWrongState)
}

// DialGuest implements hostapi.Host.
func (h *Host) DialGuest(ctx context.Context, id hostapi.MachineID) (hostapi.GuestConn, error) {
	var c hostapi.GuestConn
	err := h.withMachine(ctx, "guest", id, func(m *machine) error {
		if m.State != hostapi.Running {
			return wrongState(m)
		}
		c = guestpipe.New(ctx, m.guest, m.Generation)
		return nil
	})
	return c, err
}

// Guest returns the guest of a running machine.
func (h *Host) Guest(ctx context.Context, id hostapi.MachineID) (guestapi.Guest, error) {
	c, err := h.DialGuest(ctx, id)
	if err != nil {
		return nil, err
	}
	return c.Conn.(hostapi.LocalGuest).Guest(), nil
}
