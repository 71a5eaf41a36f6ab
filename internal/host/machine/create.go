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

// Scratch is Create of a machine that is in no list and that no later process takes over.
func (m *Manager) Scratch(ctx context.Context, id hostapi.MachineID, from snapshot.Ref) (hostapi.Machine, error) {
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
	snap, err := m.deps.Store.Hold(from)
	if err != nil {
		return hostapi.Machine{}, missing(err)
	}
	p.back.Push("release snapshot", func(context.Context) error { return m.deps.Store.Release(from) })
	if err := snapshot.Check(snap); err != nil {
		return hostapi.Machine{}, err
	}
	how, err := choose(want{
		op: "create", image: from, haveMiB: snap.DiskMiB, askMiB: req.DiskMiB,
		memory: memoryWant{snap.MemoryMiB, snap.Manifest.MaxMemoryMiB, req.MemoryMiB},
	}, m.deps.Driver.Capabilities())
	if err != nil {
		return hostapi.Machine{}, err
	}
	if mode != "" {
		how.mode = mode
	}
	if err := p.did("hold"); err != nil {
		return hostapi.Machine{}, err
	}
	var ready *spare
	if !scratch && spareFits(req, how) && how.memory == snap.MemoryMiB && !snap.Partial() {
		ready = m.claim(ctx, from)
		defer m.wantSpare(from)
	}
	in := createIntent(req, snap, how)
	in.Scratch = scratch
	if ready != nil {
		in.Rig = string(ready.mc.id)
	}
	mc, err := m.admit(p, in)
	if err != nil {
		if ready != nil {
			m.dropSpare(ctx, ready, err)
		}
		return hostapi.Machine{}, err
	}
	if err := m.restore(ctx, p, mc, snap, how, ready); err != nil {
		return hostapi.Machine{}, fmt.Errorf("create machine %s: %w", mc.id, noSpace(err))
	}
	if ready != nil { // what it held for itself; the machine holds its own
		if err := m.deps.Store.Release(from); err != nil {
			m.log.Warn("image not released", "machine", mc.id, "snapshot", from, "err", err)
		}
	}
	p.told(mc, true)
	return mc.view(), nil
}

func createIntent(req hostapi.Create, snap snapshot.Snapshot, how start) intent {
	in := intent{
		ID: req.ID, State: creating, Template: req.Template, Snapshot: req.Snapshot, Base: snap.Ref,
		VCPUs: snap.VCPUs, MemoryMiB: how.memory, DiskMiB: how.diskMiB, Data: snap.Data, Slot: -1,
		Hostname: req.Hostname, Env: req.Env, Files: req.Files, User: snap.User, Workdir: snap.Workdir, Keep: req.Keep,
		Egress: req.Egress, Limits: req.Limits, Labels: req.Labels, Stream: snap.Partial(), Generation: 1, BootMode: how.mode, Created: time.Now().UTC(),
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
func (m *Manager) admit(p *plan, in intent) (*machine, error) {
	mc, err := m.add(in)
	if err != nil {
		return nil, err
	}
	p.mine = append(p.mine, mc)
	p.back.Push("forget machine", func(context.Context) error { m.drop(mc); return nil })
	if err := m.needSpace(fmt.Sprintf("machine %s", in.ID), 0); err != nil {
		return nil, err
	}
	if err := m.ledger.admit(in.ID, in.MemoryMiB); err != nil {
		return nil, err
	}
	return mc, p.did("admit")
}

// restore brings a new machine to life from a snapshot and its disks, in the spare that is ready for it or,
// with nil, in all that it makes for it.
func (m *Manager) restore(
	ctx context.Context,
	p *plan,
	mc *machine,
	snap snapshot.Snapshot,
	how start,
	ready *spare,
) (err error) {
	furnish := m.furnish
	if ready != nil {
		furnish = func(ctx context.Context, p *plan, mc *machine, _ snapshot.Snapshot, _ start) error {
			return m.assume(ctx, p, mc, ready)
		}
	}
	if err := furnish(ctx, p, mc, snap, how); err != nil {
		return err
	}
	ctx, cancel := mc.fed(ctx)
	defer cancel()
	defer func() { err = mc.starved(err) }()
	if err := m.greet(ctx, p, mc, how.grow, nil); err != nil {
		return err
	}
	if err := mc.vm.Load(ctx, nil); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if err := p.did("load"); err != nil {
		return err
	}
	if err := m.confirm(ctx, p, mc, m.cfg.ReadyTimeout); err != nil {
		return err
	}
	return m.live(p, mc)
}

// furnish makes all that a new machine needs but its guest.
func (m *Manager) furnish(ctx context.Context, p *plan, mc *machine, snap snapshot.Snapshot, how start) error {
	if err := m.place(p, mc); err != nil {
		return err
	}
	if err := m.rig(ctx, p, mc); err != nil {
		return err
	}
	if snap.Partial() {
		image, err := m.attach(ctx, p, mc, snap, how)
		if err != nil {
			return err
		}
		return m.prepare(ctx, p, mc, image)
	}
	if err := m.disk(p, mc, snap.DiskPaths(), how); err != nil {
		return err
	}
	return m.prepare(ctx, p, mc, snap.Image())
}

// live records that a machine runs, and begins to watch it. The record of a kept machine is made durable
// by Run, a moment later: a crash of the host takes every machine with it, and what it could lose is
// one that came to be in this moment.
func (m *Manager) live(p *plan, mc *machine) error {
	if err := m.record(mc, ofProcess, func(in *intent) { in.State, in.Reason = running, "" }); err != nil {
		return err
	}
	if err := p.did("record"); err != nil {
		return err
	}
	m.watch(mc)
	if mc.in.Keep {
		m.settle(mc.dir)
	}
	return nil
}
