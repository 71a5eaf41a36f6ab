// Package helper reads and writes the files of volumes that no sandbox has, through hidden machines.
//
// A file system that a guest has written is never parsed on the host. A machine restored from a small template mounts
// the volume, or for reads a private copy, and its guest agent does the work. A machine stays for a while after its
// last use; a sandbox that wants the volume ends it sooner (Yield). It holds the lease of a volume that it may write
// to, under its own id, and has no network.
//
// All methods may be called concurrently. Run ends all machines when its context ends.
package helper

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/guestdial"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/sandbox/keyed"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/volume/lease"
)

// Mount is where a machine has its volume.
const Mount = "/volume"

// Config configures Helpers.
type Config struct {
	Template     hostapi.TemplateName
	Idle         time.Duration // after which a machine ends; 0: after each use
	PerWorkspace int           // machines of a workspace
	Interval     time.Duration // between looks at idle machines
}

// Helpers are the hidden machines of a process. Make it with New.
type Helpers struct {
	cfg      Config
	db       *store.DB
	host     hostapi.Host
	guests   *guestdial.Dialer
	log      *slog.Logger
	instance string
	locks    keyed.Locks // by volume, held while a machine is started or ended; taken before mu

	mu       sync.Mutex
	machines map[hostapi.MachineID]*machine // guarded by mu
}

// machine is a hidden machine. Its fields but volume, write and id are guarded by Helpers.mu.
type machine struct {
	id     hostapi.MachineID
	volume store.Volume // as it was when the machine was started
	write  bool
	users  int
	idle   time.Time // since when it has no users
	ending bool      // it gets no more users
}

// New returns Helpers. It touches neither store nor host.
func New(cfg Config, db *store.DB, host hostapi.Host, log *slog.Logger) (*Helpers, error) {
	if cfg.Template == "" || cfg.PerWorkspace < 1 || db == nil || host == nil || log == nil {
		return nil, errors.New("helper: a template, a number of machines, store, host and log are required")
	}
	if cfg.Interval <= 0 {
		cfg.Interval = time.Second
	}
	return &Helpers{cfg: cfg, db: db, host: host, guests: guestdial.New(host), log: log,
		instance: strings.ToLower(rand.Text()), machines: map[hostapi.MachineID]*machine{}}, nil
}

// Open returns the guest of a machine that has a volume at Mount, and a function that ends the use. With write the
// volume itself is mounted, otherwise what is there to read may be a copy of this moment.
func (h *Helpers) Open(ctx context.Context, v store.Volume, write bool) (guestapi.Guest, func(), error) {
	ctx, release, err := h.locks.Acquire(ctx, v.ID)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	m := h.join(v, write)
	if m == nil {
		if m, err = h.start(ctx, v, write); err != nil {
			return nil, nil, err
		}
	}
	g, err := h.guests.Guest(ctx, m.id)
	if err != nil {
		h.leave(m, true)
		return nil, nil, hosterror.Wrap(err, "read volume", v.Name)
	}
	return g, sync.OnceFunc(func() { h.leave(m, false) }), nil
}

// join returns a machine that is there and fits, as one more user, or nil. The lock of the volume is held.
func (h *Helpers) join(v store.Volume, write bool) *machine {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.machines {
		if m.volume.ID != v.ID || m.ending {
			continue
		}
		// A copy is of the past as soon as there was, or is, a writer.
		if m.write || !write && v.Holder == "" && m.volume.Holder == "" && m.volume.Fence == v.Fence {
			m.users++
			return m
		}
		m.ending, m.idle = true, time.Time{}
	}
	return nil
}

// leave ends a use. A machine that is of no more use ends in Run.
func (h *Helpers) leave(m *machine, broken bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.users--
	m.idle = time.Now()
	m.ending = m.ending || broken || !m.write && m.volume.Holder != ""
}

// newID returns the id of a new machine.
func newID() hostapi.MachineID { return hostapi.MachineID("vlh" + strings.ToLower(rand.Text())) }

// start starts a machine with one user. The lock of the volume is held.
func (h *Helpers) start(ctx context.Context, v store.Volume, write bool) (_ *machine, err error) {
	m := &machine{id: newID(), volume: v, write: write, users: 1}
	if err := h.register(ctx, m); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.leave(m, true)
			h.endIfUnused(context.WithoutCancel(ctx), m)
		}
	}()
	ask := hostapi.VolumeAttachment{Volume: hostapi.VolumeID(v.Disk), Mount: Mount, ReadOnly: !write}
	if write {
		err := h.db.Write(ctx, "volume files begin", func(ctx context.Context, tx *store.Tx) (err error) {
			m.volume, err = lease.Acquire(ctx, tx, v, holder(m.id), h.instance)
			return err
		})
		if err != nil {
			return nil, err
		}
		ask.Fence = uint64(m.volume.Fence) //nolint:gosec // it only grows, from 0
	}
	_, err = h.host.Create(ctx, hostapi.Create{
		ID: m.id, Template: h.cfg.Template, Hostname: "volume", Egress: hostapi.Egress{DenyOthers: true},
		Volumes: []hostapi.VolumeAttachment{ask}, Group: v.Workspace,
		Labels: map[string]string{
			hostapi.LabelOwner: hostapi.Owner{Kind: ownerKind, ID: v.ID}.String(),
			labelStore:         h.db.ID(), labelInstance: h.instance,
		},
	})
	if err != nil {
		return nil, hosterror.Wrap(err, "open volume", v.Name)
	}
	return m, nil
}

// Labels of the machines.
const (
	ownerKind     = "volume"
	labelStore    = "store"
	labelInstance = "instance"
)

func holder(id hostapi.MachineID) string {
	return hostapi.Owner{Kind: lease.Files, ID: string(id)}.String()
}

// register adds a machine that is about to be started. At the bound of its workspace another one that is idle ends
// first.
func (h *Helpers) register(ctx context.Context, m *machine) error {
	for {
		var idle *machine
		n := 0
		h.mu.Lock()
		for _, other := range h.machines {
			if other.volume.Workspace != m.volume.Workspace {
				continue
			}
			n++
			if other.users == 0 && (idle == nil || other.idle.Before(idle.idle)) {
				idle = other
			}
		}
		if n < h.cfg.PerWorkspace {
			h.machines[m.id] = m
			h.mu.Unlock()
			return nil
		}
		if idle != nil {
			idle.ending = true
		}
		h.mu.Unlock()
		if idle == nil {
			return api.Errorf(api.RateLimited,
				"files of %d volumes of the workspace are read and written at once: try again", n)
		}
		if err := h.end(ctx, idle); err != nil {
			return err
		}
	}
}

// end ends a machine that has no users and gets none. What it wrote is in the volume: it is unmounted first.
func (h *Helpers) end(ctx context.Context, m *machine) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("ending a machine took too long"))
	defer cancel()
	if m.write {
		disk := hostapi.VolumeID(m.volume.Disk)
		if _, err := h.host.DetachVolume(ctx, m.id, disk, true); err != nil && !errors.Is(err, hostapi.ErrNotFound) {
			h.log.Warn("a volume was not unmounted; its next use checks it", "volume", m.volume.ID, "err", err)
		}
	}
	if err := h.host.Destroy(ctx, m.id, "it was idle"); err != nil {
		return hosterror.Wrap(err, "end a use of volume", m.volume.Name)
	}
	if err := h.give(ctx, m.id); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.machines, m.id)
	return nil
}

// give gives back the leases of a machine that does not exist.
func (h *Helpers) give(ctx context.Context, id hostapi.MachineID) error {
	return h.db.Write(ctx, "volume files end", func(ctx context.Context, tx *store.Tx) error {
		held, err := tx.Volumes(ctx, store.VolumeQuery{Holder: holder(id)})
		for _, v := range held {
			err = errors.Join(err, lease.Give(ctx, tx, v))
		}
		return err
	})
}

// endIfUnused ends a machine unless it has users. What fails is tried again in Run.
func (h *Helpers) endIfUnused(ctx context.Context, m *machine) {
	h.mu.Lock()
	unused := m.users == 0
	m.ending = m.ending || unused
	h.mu.Unlock()
	if !unused {
		return
	}
	if err := h.end(ctx, m); err != nil {
		h.log.Warn("a machine for files of a volume was not ended; it is tried again", "machine", m.id, "err", err)
	}
}

// Yield ends the machines of volumes, given by name or id, that wait for more work.
func (h *Helpers) Yield(
	ctx context.Context,
	workspace api.Workspace,
	owner hostapi.Owner,
	volumes []api.VolumeMount,
) error {
	for _, want := range volumes {
		v, err := lease.Resolve(ctx, h.db.Read(), workspace, owner, want.Name)
		if err != nil {
			return err
		}
		ctx, release, err := h.locks.Acquire(ctx, v.ID)
		if err != nil {
			return err
		}
		h.endUnused(ctx, func(m *machine) bool { return m.volume.ID == v.ID })
		release()
	}
	return nil
}

// endUnused ends the machines without users that match.
func (h *Helpers) endUnused(ctx context.Context, match func(*machine) bool) {
	h.mu.Lock()
	var all []*machine
	for _, m := range h.machines {
		if m.users == 0 && match(m) {
			m.ending = true
			all = append(all, m)
		}
	}
	h.mu.Unlock()
	for _, m := range all {
		h.endIfUnused(ctx, m)
	}
}

// Run ends idle machines, and what earlier processes left, until ctx ends. Then it ends all.
func (h *Helpers) Run(ctx context.Context) error {
	t := time.NewTicker(h.cfg.Interval)
	defer t.Stop()
	for reconciled := false; ; {
		if !reconciled {
			err := h.Reconcile(ctx)
			if reconciled = err == nil; err != nil && ctx.Err() == nil {
				h.log.Warn("looking for machines of earlier processes failed; it is tried again", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), time.Minute, errStopping)
			defer cancel()
			h.endUnused(last, func(*machine) bool { return true })
			h.guests.Close()
			return nil
		case <-t.C:
			h.EndIdle(ctx)
		}
	}
}

var errStopping = errors.New("the process stops")

// EndIdle ends the machines whose time without use has passed.
func (h *Helpers) EndIdle(ctx context.Context) {
	h.endUnused(ctx, func(m *machine) bool { return m.ending || time.Since(m.idle) >= h.cfg.Idle })
}

// Reconcile ends what earlier processes left: machines, and leases of machines that do not exist.
func (h *Helpers) Reconcile(ctx context.Context) error {
	machines, err := h.host.List(ctx)
	if err != nil {
		return err
	}
	var all error
	for _, m := range machines {
		if hostapi.OwnerOf(m.Labels).Kind != ownerKind || m.Labels[labelStore] != h.db.ID() || h.knows(m.ID) ||
			h.db.Shared() && m.Labels[labelInstance] != h.instance && time.Since(m.Created) < time.Hour {
			continue
		}
		all = errors.Join(all, h.host.Destroy(ctx, m.ID, "the process that used it has ended"))
	}
	held, err := h.db.Read().Volumes(ctx, store.VolumeQuery{Held: true})
	if err != nil {
		return errors.Join(all, err)
	}
	for _, v := range held {
		owner := hostapi.ParseOwner(v.Holder)
		id := hostapi.MachineID(owner.ID)
		if owner.Kind != lease.Files || h.knows(id) ||
			h.db.Shared() && v.Instance != h.instance && time.Since(store.Time(v.Held)) < time.Minute {
			continue
		}
		on, err := h.host.GetVolume(ctx, hostapi.VolumeID(v.Disk))
		if err != nil {
			all = errors.Join(all, fmt.Errorf("volume %s: %w", v.ID, err))
			continue
		}
		if on.Machine == "" {
			all = errors.Join(all, h.give(ctx, id))
		}
	}
	return all
}

func (h *Helpers) knows(id hostapi.MachineID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.machines[id]
	return ok
}
