package machine

import (
	"context"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// Create makes a machine from a snapshot and answers when its guest has confirmed who it is. When it
// fails nothing is left. req.Template and req.Snapshot are notes here: from names what is restored. mode
// is what the machine tells of how it came to life; "" is what it did.
func (m *Manager) Create(
	ctx context.Context,
	req hostapi.Create,
	from snapshot.Ref,
	mode hostapi.BootMode,
) (hostapi.Machine, error) {
	return m.create(ctx, req, from, mode, false)
}

// CreateEphemeral is Create of a machine that is in no list and that no later process takes over.
func (m *Manager) CreateEphemeral(ctx context.Context, id hostapi.MachineID, from snapshot.Ref) (hostapi.Machine, error) {
	return m.create(ctx, hostapi.Create{ID: id}, from, "", true)
}

func (m *Manager) create(
	ctx context.Context,
	req hostapi.Create,
	from snapshot.Ref,
	mode hostapi.BootMode,
	scratch bool,
) (_ hostapi.Machine, err error) {
	p := m.begin("create")
	defer func() { err = p.end(ctx, err) }()
	if err := m.deps.Network.CheckEgress(req.Egress); err != nil {
		return hostapi.Machine{}, fmt.Errorf("create machine %s: %w", req.ID, err)
	}
	if err := m.checkLimits(req.Limits); err != nil {
		return hostapi.Machine{}, fmt.Errorf("create machine %s: %w", req.ID, err)
	}
	snap, err := m.deps.Store.Acquire(from)
	if err != nil {
		return hostapi.Machine{}, wrapStoreError(err)
	}
	p.cleanup.Push("release snapshot", func(context.Context) error { return m.deps.Store.Release(from) })
	if err := snapshot.Check(snap); err != nil {
		return hostapi.Machine{}, err
	}
	how, err := planStart(startRequest{
		op: "create", image: from, haveMiB: snap.DiskMiB, askMiB: req.DiskMiB,
		memory: memoryRequest{snap.MemoryMiB, snap.Manifest.MaxMemoryMiB, req.MemoryMiB},
	}, m.deps.Driver.Capabilities())
	if err != nil {
		return hostapi.Machine{}, err
	}
	if mode != "" {
		how.mode = mode
	}
	if err := p.done("hold"); err != nil {
		return hostapi.Machine{}, err
	}
	var ready *warmMonitor
	if !scratch && canUseWarm(req, how) && how.memory == snap.MemoryMiB && !snap.RemoteBacked() {
		ready = m.takeWarm(ctx, from)
		defer m.requestWarm(from)
	}
	in := newRecord(req, snap, how)
	in.Ephemeral = scratch
	if ready != nil {
		in.ResourceName = string(ready.mc.id)
	}
	mc, err := m.admit(p, in)
	if err != nil {
		if ready != nil {
			m.discardWarm(ctx, ready, err)
		}
		return hostapi.Machine{}, err
	}
	if err := m.restore(ctx, p, mc, snap, how, ready); err != nil {
		return hostapi.Machine{}, fmt.Errorf("create machine %s: %w", mc.id, wrapNoSpace(err))
	}
	if ready != nil { // what it held for itself; the machine holds its own
		if err := m.deps.Store.Release(from); err != nil {
			m.log.Warn("image not released", "machine", mc.id, "snapshot", from, "err", err)
		}
	}
	p.logPhases(mc, true)
	return mc.view(), nil
}

func newRecord(req hostapi.Create, snap snapshot.Snapshot, how startPlan) record {
	in := record{
		ID: req.ID, State: creating, Template: req.Template, Snapshot: req.Snapshot, Base: snap.Ref,
		VCPUs: snap.VCPUs, MemoryMiB: how.memory, DiskMiB: how.diskMiB, Data: snap.Data, Slot: -1,
		Hostname: req.Hostname, Env: req.Env, Files: req.Files, User: snap.User, Workdir: snap.Workdir, Persistent: req.Persistent,
		Egress: req.Egress, Limits: req.Limits, Labels: req.Labels, Lazy: snap.RemoteBacked(), Generation: 1, BootMode: how.mode, Created: time.Now().UTC(),
	}
	if in.Template == "" {
		in.Template = hostapi.TemplateName(snap.Template)
	}
	if in.Hostname == "" {
		in.Hostname = string(req.ID)
	}
	if in.Env == nil {
		in.Env = snap.Env
	}
	return in
}

// admit puts a new machine into the list and promises it memory and disk. The caller owns it.
func (m *Manager) admit(p *operation, in record) (*machine, error) {
	mc, err := m.insert(in)
	if err != nil {
		return nil, err
	}
	p.owned = append(p.owned, mc)
	p.cleanup.Push("forget machine", func(context.Context) error { m.forget(mc); return nil })
	if err := m.requireSpace(fmt.Sprintf("machine %s", in.ID), 0); err != nil {
		return nil, err
	}
	if err := m.ledger.reserve(in.ID, in.MemoryMiB); err != nil {
		return nil, err
	}
	return mc, p.done("admit")
}

// restore brings a new machine to life from a snapshot and its disks, in the spare that is ready for it or,
// with nil, in all that it makes for it.
func (m *Manager) restore(
	ctx context.Context,
	p *operation,
	mc *machine,
	snap snapshot.Snapshot,
	how startPlan,
	ready *warmMonitor,
) (err error) {
	furnish := m.provision
	if ready != nil {
		furnish = func(ctx context.Context, p *operation, mc *machine, _ snapshot.Snapshot, _ startPlan) error {
			return m.adoptWarm(ctx, p, mc, ready)
		}
	}
	if err := furnish(ctx, p, mc, snap, how); err != nil {
		return err
	}
	ctx, cancel := mc.withStreamFailure(ctx)
	defer cancel()
	defer func() { err = mc.wrapStreamError(err) }()
	if err := m.handshake(ctx, p, mc, how.grow, nil); err != nil {
		return err
	}
	if err := mc.vm.Load(ctx, nil); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if err := p.done("load"); err != nil {
		return err
	}
	if err := m.confirm(ctx, p, mc, m.cfg.ReadyTimeout); err != nil {
		return err
	}
	return m.publish(p, mc)
}

// provision makes all that a new machine needs but its guest.
func (m *Manager) provision(ctx context.Context, p *operation, mc *machine, snap snapshot.Snapshot, how startPlan) error {
	if err := m.makeDirectory(p, mc); err != nil {
		return err
	}
	if err := m.acquireHostResources(ctx, p, mc); err != nil {
		return err
	}
	if snap.RemoteBacked() {
		image, err := m.attachLazy(ctx, p, mc, snap, how)
		if err != nil {
			return err
		}
		return m.prepare(ctx, p, mc, image)
	}
	if err := m.cloneDisks(p, mc, snap.DiskPaths(), how); err != nil {
		return err
	}
	return m.prepare(ctx, p, mc, snap.Image())
}

// publish records that a machine runs, and begins to watch it. The record of a kept machine is made durable
// by Run, a moment later: a crash of the host takes every machine with it, and what it could lose is
// one that came to be in this moment.
func (m *Manager) publish(p *operation, mc *machine) error {
	if err := m.update(mc, surviveProcess, func(in *record) { in.State, in.Reason = running, "" }); err != nil {
		return err
	}
	if err := p.done("record"); err != nil {
		return err
	}
	m.watch(mc)
	if mc.rec.Persistent {
		m.syncLater(mc.dir)
	}
	return nil
}
