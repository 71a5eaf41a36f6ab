package machine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/vmm"
)

// kid is one child on its way.
type kid struct {
	child hostapi.Child
	plan  *plan
	mc    *machine
	err   error
}

// maxChildren bounds one fork.
const maxChildren = 64

// Fork makes children of a running or paused machine, which stands still once, for all of them, and goes
// on in its state. The children's monitors are ready before, so that it is short. Forked tells what
// became of each child, in order; an error means that there is none.
func (m *Manager) Fork(ctx context.Context, req hostapi.Fork) (_ []hostapi.Forked, err error) {
	if len(req.Children) == 0 || len(req.Children) > maxChildren {
		return nil, fmt.Errorf(
			"fork machine %s into %d: 1 to %d children are possible: %w",
			req.Parent,
			len(req.Children),
			maxChildren,
			hostapi.ErrInvalid,
		)
	}
	p := m.begin("fork")
	defer func() { err = p.end(ctx, err) }()
	parent, err := p.enter(ctx, req.Parent)
	if err != nil {
		return nil, err
	}
	if err := parent.need("fork", running, paused); err != nil {
		return nil, err
	}
	if err := m.whole(ctx, p, parent); err != nil {
		return nil, err
	}
	how, err := choose(
		want{op: "fork", image: parent.in.Base, haveMiB: parent.in.DiskMiB},
		m.deps.Driver.Capabilities(),
	)
	if err != nil {
		return nil, err
	}
	kids := make([]kid, len(req.Children))
	for i, child := range req.Children {
		kids[i] = kid{child: child, plan: m.begin("child")}
	}
	if how.how == howCopy {
		err = m.forkCopy(ctx, p, parent, kids, how)
	} else {
		err = m.forkLive(ctx, p, parent, kids, how)
	}
	if err != nil {
		return nil, fmt.Errorf("fork machine %s: %w", parent.id, noSpace(err))
	}
	p.told(parent, false)
	out := make([]hostapi.Forked, len(kids))
	for i := range kids {
		if out[i].Err = kids[i].err; out[i].Err == nil {
			out[i].Machine = kids[i].mc.view()
		}
	}
	return out, nil
}

// each runs do for every kid that has not failed, a bounded number at once. It ends the plans of those
// that fail in it, and answers an error when none is left or the operation was abandoned.
func (m *Manager) each(ctx context.Context, p *plan, kids []kid, do func(k *kid) error) error {
	var g errgroup.Group
	g.SetLimit(m.cfg.Parallel)
	for i := range kids {
		k := &kids[i]
		if k.err != nil {
			continue
		}
		g.Go(func() error {
			if err := do(k); err != nil {
				k.err = k.plan.end(ctx, fmt.Errorf("child %s: %w", k.child.ID, noSpace(err)))
			}
			return nil
		})
	}
	_ = g.Wait() // errors stay with the kids
	var all error
	left := false
	for i := range kids {
		all = errors.Join(all, kids[i].err)
		left = left || kids[i].err == nil
		p.quit = p.quit || kids[i].plan.quit
	}
	if p.quit || !left {
		return all
	}
	return nil
}

// fail ends the plans of all kids that have not failed yet.
func (m *Manager) fail(ctx context.Context, p *plan, kids []kid, err error) error {
	for i := range kids {
		if k := &kids[i]; k.err == nil {
			k.plan.quit = p.quit
			k.err = k.plan.end(ctx, err)
		}
	}
	return err
}

// forkLive prepares the children on the parent's image, captures the parent once, and loads the capture
// into all of them.
func (m *Manager) forkLive(ctx context.Context, p *plan, parent *machine, kids []kid, how start) error {
	err := m.each(ctx, p, kids, func(k *kid) error { return m.conceive(ctx, k, parent, how) })
	if err == nil {
		err = p.did("prepare")
	}
	if err != nil {
		return m.fail(ctx, p, kids, err)
	}
	what := moment{parent.vm.Capture, func() error { return m.share(parent, kids) }, "share"}
	if b, ok := parent.vm.(vmm.Brancher); ok {
		what.memory = func(ctx context.Context) (vmm.Capture, error) { return b.Branch(ctx, monitors(kids)) }
	}
	capture, err := m.still(ctx, p, parent, what)
	if err != nil {
		return m.fail(ctx, p, kids, err)
	}
	err = m.each(ctx, p, kids, func(k *kid) error { return m.deliver(ctx, k, capture) })
	if p.quit {
		return err
	}
	if err != nil {
		return errors.Join(err, capture.Close())
	}
	if err := capture.Close(); err != nil {
		m.log.Warn("capture not freed", "machine", parent.id, "err", err)
	}
	return nil
}

// monitors are those of the children that have not failed.
func monitors(kids []kid) []vmm.Machine {
	var all []vmm.Machine
	for i := range kids {
		if kids[i].err == nil {
			all = append(all, kids[i].mc.vm)
		}
	}
	return all
}

// conceive makes all of a child that can be made while its parent runs: a monitor on the parent's image,
// with disks that are empty yet.
func (m *Manager) conceive(ctx context.Context, k *kid, parent *machine, how start) (err error) {
	p := k.plan
	snap, err := m.deps.Store.Hold(how.image)
	if err != nil {
		return missing(err)
	}
	p.back.Push("release image", func(context.Context) error { return m.deps.Store.Release(how.image) })
	if k.mc, err = m.admit(p, childIntent(k.child, parent, how)); err != nil {
		return err
	}
	if err := m.place(p, k.mc); err != nil {
		return err
	}
	if err := m.rig(ctx, p, k.mc); err != nil {
		return err
	}
	if err := m.allocate(k.mc, how); err != nil {
		return err
	}
	if err := p.did("disk"); err != nil {
		return err
	}
	return m.prepare(ctx, p, k.mc, snap.Image())
}

func childIntent(child hostapi.Child, parent *machine, how start) intent {
	in := parent.in
	in.ID, in.State, in.Parent, in.Base = child.ID, creating, parent.id, how.image
	in.Rig, in.Before, in.Next, in.Slot, in.MAC, in.Snapshot, in.Reason = "", "", "", -1, "", "", ""
	in.Stream = false // all of it is here by now
	in.Hostname, in.Keep, in.Labels = child.Hostname, child.Keep, child.Labels
	in.Generation, in.BootMode, in.Created = 1, how.mode, time.Now().UTC()
	if in.Hostname == "" {
		in.Hostname = string(child.ID)
	}
	if child.Env != nil {
		in.Env = child.Env
	}
	if child.Files != nil {
		in.Files = child.Files
	}
	return in
}

// deliver brings a child to life from the capture of its parent.
func (m *Manager) deliver(ctx context.Context, k *kid, capture vmm.Capture) error {
	p := k.plan
	if err := m.greet(ctx, p, k.mc, false, nil); err != nil {
		return err
	}
	if err := k.mc.vm.Load(ctx, capture); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if err := p.did("load"); err != nil {
		return err
	}
	if err := m.confirm(ctx, p, k.mc, m.cfg.ReadyTimeout); err != nil {
		return err
	}
	if err := m.live(p, k.mc); err != nil {
		return err
	}
	p.told(k.mc, true)
	return p.end(ctx, nil)
}

// forkCopy is for a parent that booted cold and runs on no image: its capture becomes one, which the
// children are restored from and hold.
func (m *Manager) forkCopy(ctx context.Context, p *plan, parent *machine, kids []kid, how start) error {
	snap := describe(parent)
	snap.Ref, snap.Anonymous = snapshot.Join(restArea, fmt.Sprintf("%s-f%d", parent.id, time.Now().UnixNano())), true
	snap, err := m.take(ctx, p, parent, snap, nil)
	if err != nil {
		return m.fail(ctx, p, kids, err)
	}
	how.image = snap.Ref
	err = m.each(ctx, p, kids, func(k *kid) (err error) {
		held, err := m.deps.Store.Hold(snap.Ref)
		if err != nil {
			return missing(err)
		}
		k.plan.back.Push("release image", func(context.Context) error { return m.deps.Store.Release(snap.Ref) })
		if k.mc, err = m.admit(k.plan, childIntent(k.child, parent, how)); err != nil {
			return err
		}
		if err := m.restore(ctx, k.plan, k.mc, held, how, nil); err != nil {
			return err
		}
		k.plan.told(k.mc, true)
		return k.plan.end(ctx, nil)
	})
	if err != nil {
		return err
	}
	p.back.Forget()
	return m.deps.Store.Release(snap.Ref)
}
