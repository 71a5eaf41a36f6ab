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

// forkChild is one child on its way.
type forkChild struct {
	child hostapi.Child
	plan  *operation
	mc    *machine
	err   error
}

// maxChildren bounds one fork.
const maxChildren = 64

// Fork makes children of a running or paused machine, which stands still once, for all of them, and goes
// on in its state. The children's monitors are ready before, so that it is short. Forked tells what
// became of each child, in order; an error means that there is none.
func (m *Manager) Fork(ctx context.Context, req hostapi.Fork) (_ []hostapi.ForkResult, err error) {
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
	parent, err := p.lock(ctx, req.Parent)
	if err != nil {
		return nil, err
	}
	if err := parent.requireState("fork", running, paused); err != nil {
		return nil, err
	}
	if err := m.waitLocal(ctx, p, parent); err != nil {
		return nil, err
	}
	how, err := planStart(
		startRequest{op: "fork", image: parent.rec.Base, haveMiB: parent.rec.DiskMiB},
		m.deps.Driver.Capabilities(),
	)
	if err != nil {
		return nil, err
	}
	kids := make([]forkChild, len(req.Children))
	for i, child := range req.Children {
		kids[i] = forkChild{child: child, plan: m.begin("child")}
	}
	if how.method == methodForkViaImage {
		err = m.forkViaImage(ctx, p, parent, kids, how)
	} else {
		err = m.forkLive(ctx, p, parent, kids, how)
	}
	if err != nil {
		return nil, fmt.Errorf("fork machine %s: %w", parent.id, wrapNoSpace(err))
	}
	p.logPhases(parent, false)
	out := make([]hostapi.ForkResult, len(kids))
	for i := range kids {
		if out[i].Err = kids[i].err; out[i].Err == nil {
			out[i].Machine = kids[i].mc.view()
		}
	}
	return out, nil
}

// forEachChild runs do for every kid that has not failed, a bounded number at once. It ends the plans of those
// that fail in it, and answers an error when none is left or the operation was abandoned.
func (m *Manager) forEachChild(ctx context.Context, p *operation, kids []forkChild, do func(k *forkChild) error) error {
	var g errgroup.Group
	g.SetLimit(m.cfg.Parallel)
	for i := range kids {
		k := &kids[i]
		if k.err != nil {
			continue
		}
		g.Go(func() error {
			if err := do(k); err != nil {
				k.err = k.plan.end(ctx, fmt.Errorf("child %s: %w", k.child.ID, wrapNoSpace(err)))
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
		p.abandoned = p.abandoned || kids[i].plan.abandoned
	}
	if p.abandoned || !left {
		return all
	}
	return nil
}

// failChildren ends the plans of all kids that have not failed yet.
func (m *Manager) failChildren(ctx context.Context, p *operation, kids []forkChild, err error) error {
	for i := range kids {
		if k := &kids[i]; k.err == nil {
			k.plan.abandoned = p.abandoned
			k.err = k.plan.end(ctx, err)
		}
	}
	return err
}

// forkLive prepares the children on the parent's image, captures the parent once, and loads the capture
// into all of them.
func (m *Manager) forkLive(ctx context.Context, p *operation, parent *machine, kids []forkChild, how startPlan) error {
	err := m.forEachChild(ctx, p, kids, func(k *forkChild) error { return m.prepareChild(ctx, k, parent, how) })
	if err == nil {
		err = p.done("prepare")
	}
	if err != nil {
		return m.failChildren(ctx, p, kids, err)
	}
	what := captureRequest{parent.vm.Capture, func() error { return m.cloneIntoChildren(parent, kids) }, "share"}
	if b, ok := parent.vm.(vmm.ForkCapturer); ok {
		what.memory = func(ctx context.Context) (vmm.Capture, error) { return b.CaptureFor(ctx, childMonitors(kids)) }
	}
	capture, err := m.captureStopped(ctx, p, parent, what)
	if err != nil {
		return m.failChildren(ctx, p, kids, err)
	}
	err = m.forEachChild(ctx, p, kids, func(k *forkChild) error { return m.startChild(ctx, k, capture) })
	if p.abandoned {
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

// childMonitors are those of the children that have not failed.
func childMonitors(kids []forkChild) []vmm.Machine {
	var all []vmm.Machine
	for i := range kids {
		if kids[i].err == nil {
			all = append(all, kids[i].mc.vm)
		}
	}
	return all
}

// prepareChild makes all of a child that can be made while its parent runs: a monitor on the parent's image,
// with disks that are empty yet.
func (m *Manager) prepareChild(ctx context.Context, k *forkChild, parent *machine, how startPlan) (err error) {
	p := k.plan
	snap, err := m.deps.Store.Acquire(how.image)
	if err != nil {
		return wrapStoreError(err)
	}
	p.cleanup.Push("release image", func(context.Context) error { return m.deps.Store.Release(how.image) })
	if k.mc, err = m.admit(p, childRecord(k.child, parent, how)); err != nil {
		return err
	}
	if err := m.makeDirectory(p, k.mc); err != nil {
		return err
	}
	if err := m.acquireHostResources(ctx, p, k.mc); err != nil {
		return err
	}
	if err := m.allocateDisks(k.mc, how); err != nil {
		return err
	}
	if err := p.done("disk"); err != nil {
		return err
	}
	return m.prepare(ctx, p, k.mc, snap.Image())
}

func childRecord(child hostapi.Child, parent *machine, how startPlan) record {
	in := parent.rec
	in.ID, in.State, in.Parent, in.Base = child.ID, creating, parent.id, how.image
	in.ResourceName, in.Before, in.Next, in.Slot, in.MAC, in.Snapshot, in.Reason = "", "", "", -1, "", "", ""
	in.Lazy = false // all of it is here by now
	in.Hostname, in.Persistent, in.Labels = child.Hostname, child.Persistent, child.Labels
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

// startChild brings a child to life from the capture of its parent.
func (m *Manager) startChild(ctx context.Context, k *forkChild, capture vmm.Capture) error {
	p := k.plan
	if err := m.handshake(ctx, p, k.mc, false, nil); err != nil {
		return err
	}
	if err := k.mc.vm.Load(ctx, capture); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if err := p.done("load"); err != nil {
		return err
	}
	if err := m.confirm(ctx, p, k.mc, m.cfg.ReadyTimeout); err != nil {
		return err
	}
	if err := m.publish(p, k.mc); err != nil {
		return err
	}
	p.logPhases(k.mc, true)
	return p.end(ctx, nil)
}

// forkViaImage is for a parent that booted cold and runs on no image: its capture becomes one, which the
// children are restored from and hold.
func (m *Manager) forkViaImage(ctx context.Context, p *operation, parent *machine, kids []forkChild, how startPlan) error {
	snap := describe(parent)
	snap.Ref, snap.Anonymous = snapshot.Join(snapshotArea, fmt.Sprintf("%s-f%d", parent.id, time.Now().UnixNano())), true
	snap, err := m.storeSnapshot(ctx, p, parent, snap, nil)
	if err != nil {
		return m.failChildren(ctx, p, kids, err)
	}
	how.image = snap.Ref
	err = m.forEachChild(ctx, p, kids, func(k *forkChild) (err error) {
		held, err := m.deps.Store.Acquire(snap.Ref)
		if err != nil {
			return wrapStoreError(err)
		}
		k.plan.cleanup.Push("release image", func(context.Context) error { return m.deps.Store.Release(snap.Ref) })
		if k.mc, err = m.admit(k.plan, childRecord(k.child, parent, how)); err != nil {
			return err
		}
		if err := m.restore(ctx, k.plan, k.mc, held, how, nil); err != nil {
			return err
		}
		k.plan.logPhases(k.mc, true)
		return k.plan.end(ctx, nil)
	})
	if err != nil {
		return err
	}
	p.cleanup.Forget()
	return m.deps.Store.Release(snap.Ref)
}
