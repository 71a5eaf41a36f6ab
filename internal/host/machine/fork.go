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

// ForkRequest asks for children of a running or paused machine.
type ForkRequest struct {
	Parent   hostapi.MachineID
	Children []ChildRequest
}

// ChildRequest asks for one child. It has everything else from its parent.
type ChildRequest struct {
	ID         hostapi.MachineID
	Hostname   string            // "": the id
	Env        map[string]string // nil: as the parent
	Files      map[string]string // nil: as the parent
	Persistent bool
	Labels     map[string]string
}

// ForkResult is the child, or why there is none: then nothing is left of it.
type ForkResult struct {
	Machine View
	Err     error
}

// forkChild is one child that is being made. Each has an operation of its own, so that one can fail alone.
type forkChild struct {
	req    ChildRequest
	op     *operation
	launch *launch
	err    error
}

// maxChildren bounds one fork.
const maxChildren = 64

// Fork makes children of a running or paused machine, which is stopped once for all of them.
// The children's monitors are prepared before that, so that the stop is short; the parent then continues in its
// state. The results say, in order, what became of each child. An error means that no child exists.
func (m *Manager) Fork(ctx context.Context, req ForkRequest) (_ []ForkResult, err error) {
	if len(req.Children) == 0 || len(req.Children) > maxChildren {
		return nil, fmt.Errorf("fork machine %s: %d children were asked for, and 1 to %d are possible: %w",
			req.Parent, len(req.Children), maxChildren, hostapi.ErrInvalid)
	}
	op := m.begin("fork")
	defer func() { err = op.end(ctx, err) }()
	ctx, parent, err := op.lock(ctx, req.Parent)
	if err != nil {
		return nil, err
	}
	if err := parent.requireState("fork", running, paused); err != nil {
		return nil, err
	}
	if err := m.waitLocal(ctx, op, parent); err != nil {
		return nil, err
	}
	plan, err := planStart(
		startRequest{op: opFork, image: parent.rec.Base, haveMiB: parent.rec.DiskMiB},
		m.deps.Driver.Capabilities(),
	)
	if err != nil {
		return nil, err
	}
	children := make([]forkChild, len(req.Children))
	for i, child := range req.Children {
		children[i] = forkChild{req: child, op: m.begin("child")}
	}
	if plan.method == methodForkViaImage {
		err = m.forkViaImage(ctx, op, parent, children, plan)
	} else {
		err = m.forkLive(ctx, op, parent, children, plan)
	}
	if err != nil {
		return nil, fmt.Errorf("fork machine %s: %w", parent.id, wrapNoSpace(err))
	}
	op.logPhases(parent, false)
	out := make([]ForkResult, len(children))
	for i, c := range children {
		if out[i].Err = c.err; c.err == nil {
			out[i].Machine = c.launch.mc.view()
		}
	}
	return out, nil
}

// forEachChild calls do for every child that has not failed, a bounded number at once. It ends the operation of a
// child that fails. It returns an error if no child is left or the operation was abandoned.
func (m *Manager) forEachChild(
	ctx context.Context,
	op *operation,
	children []forkChild,
	do func(c *forkChild) error,
) error {
	var g errgroup.Group
	g.SetLimit(m.cfg.Parallel)
	for i := range children {
		c := &children[i]
		if c.err != nil {
			continue
		}
		g.Go(func() error {
			if err := do(c); err != nil {
				c.err = c.op.end(ctx, fmt.Errorf("child %s: %w", c.req.ID, wrapNoSpace(err)))
			}
			return nil
		})
	}
	_ = g.Wait() // no function returns an error: each is in its child
	var all error
	left := false
	for _, c := range children {
		all = errors.Join(all, c.err)
		left = left || c.err == nil
		op.abandoned = op.abandoned || c.op.abandoned
	}
	if op.abandoned || !left {
		return all
	}
	return nil
}

// failChildren ends the operations of all children that have not failed yet, and returns err.
func (m *Manager) failChildren(ctx context.Context, op *operation, children []forkChild, err error) error {
	for i := range children {
		if c := &children[i]; c.err == nil {
			c.op.abandoned = op.abandoned
			c.err = c.op.end(ctx, err)
		}
	}
	return err
}

// launchChild runs the steps of a child through the step last. The first call acquires the image.
func (m *Manager) launchChild(ctx context.Context, c *forkChild, parent *machine, plan startPlan, last step) error {
	if c.launch == nil {
		snap, err := m.deps.Store.Acquire(plan.image)
		if err != nil {
			return wrapStoreError(err)
		}
		c.op.cleanup.Push("release image", func(context.Context) error { return m.deps.Store.Release(plan.image) })
		c.launch = m.newLaunch(c.op, plan)
		c.launch.rec, c.launch.snap, c.launch.disks = childRecord(c.req, parent, plan), snap, snap.DiskPaths()
	}
	if err := c.launch.run(ctx, last); err != nil || last != stepPublish {
		return err
	}
	c.op.logPhases(c.launch.mc, true)
	return c.op.end(ctx, nil)
}

// forkLive prepares the children on the parent's image, captures the parent once, and loads the capture into all of
// them.
func (m *Manager) forkLive(
	ctx context.Context,
	op *operation,
	parent *machine,
	children []forkChild,
	plan startPlan,
) error {
	err := m.forEachChild(ctx, op, children, func(c *forkChild) error {
		return m.launchChild(ctx, c, parent, plan, stepPrepare)
	})
	if err == nil {
		err = op.done("prepare")
	}
	if err != nil {
		return m.failChildren(ctx, op, children, err)
	}
	what := captureRequest{
		memory: parent.vm.Capture,
		disks:  func() error { return m.cloneIntoChildren(parent, children) },
	}
	if vm, ok := parent.vm.(vmm.ForkCapturer); ok {
		what.memory = func(ctx context.Context) (vmm.Capture, error) {
			return vm.CaptureFor(ctx, childMonitors(children))
		}
	}
	capture, err := m.captureStopped(ctx, op, parent, what)
	if err != nil {
		return m.failChildren(ctx, op, children, err)
	}
	err = m.forEachChild(ctx, op, children, func(c *forkChild) error {
		c.launch.capture = capture
		return m.launchChild(ctx, c, parent, plan, stepPublish)
	})
	if op.abandoned {
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

// childMonitors returns the monitors of the children that have not failed.
func childMonitors(children []forkChild) []vmm.Machine {
	var all []vmm.Machine
	for _, c := range children {
		if c.err == nil {
			all = append(all, c.launch.mc.vm)
		}
	}
	return all
}

// childRecord returns the record of a child that is to be made.
func childRecord(child ChildRequest, parent *machine, plan startPlan) record {
	in := parent.rec
	in.ID, in.State, in.Parent, in.Base = child.ID, creating, parent.id, plan.image
	in.ResourceName, in.Before, in.Next, in.Slot, in.MAC, in.Snapshot, in.Reason = "", "", "", -1, "", "", ""
	in.Lazy = false // everything is local by now
	_, in.Data = parent.captured()
	in.Volumes, in.Changing, in.Attaching = nil, 0, false // the child has private copies
	in.Hostname, in.Persistent, in.Labels = child.Hostname, child.Persistent, child.Labels
	in.Generation, in.BootMode, in.Created = 1, plan.mode, time.Now().UTC()
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

// forkViaImage forks a parent that booted cold and runs on no image: its capture becomes one, which the children
// are restored from and hold.
func (m *Manager) forkViaImage(
	ctx context.Context,
	op *operation,
	parent *machine,
	children []forkChild,
	plan startPlan,
) error {
	snap := describe(parent)
	snap.Ref = snapshot.Join(snapshotArea, fmt.Sprintf("%s-f%d", parent.id, time.Now().UnixNano()))
	snap.Anonymous = true
	snap, err := m.storeSnapshot(ctx, op, parent, snap, nil)
	if err != nil {
		return m.failChildren(ctx, op, children, err)
	}
	plan.image = snap.Ref
	err = m.forEachChild(ctx, op, children, func(c *forkChild) error {
		return m.launchChild(ctx, c, parent, plan, stepPublish)
	})
	if err != nil {
		return err
	}
	op.cleanup.Forget()
	return m.deps.Store.Release(snap.Ref)
}
