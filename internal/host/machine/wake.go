package machine

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// Wake restores a hibernated machine, or boots a stopped or failed one from its disks.
// A running machine is left as it is. If Wake fails, or is killed, a hibernated machine stays hibernated, memory and
// disks as they were, and can be woken again.
func (m *Manager) Wake(ctx context.Context, id hostapi.MachineID) (_ View, err error) {
	op := m.begin("wake")
	defer func() { err = op.end(ctx, err) }()
	ctx, mc, err := op.lock(ctx, id)
	if err != nil {
		return View{}, err
	}
	if err := mc.requireState("wake", running, hibernated, failed); err != nil {
		return View{}, err
	}
	if mc.rec.State == running {
		return mc.view(), nil
	}
	image := mc.rec.Base
	if mc.rec.State == failed { // its disks may still need the snapshot that it began on
		image = ""
	}
	plan, err := planStart(
		startRequest{
			op: opWake, image: image, haveMiB: mc.rec.DiskMiB, kernel: m.cfg.Kernel != nil,
			volumes: len(mc.rec.Volumes) > 0,
		},
		m.deps.Driver.Capabilities(),
	)
	if err != nil {
		return View{}, err
	}
	l := m.newLaunch(op, plan)
	l.mc = mc
	if err := m.wake(ctx, l); err != nil {
		return View{}, fmt.Errorf("wake machine %s: %w", id, wrapNoSpace(err))
	}
	op.logPhases(mc, true)
	return mc.view(), nil
}

// wake runs a launch of a machine at rest. When it fails, the record says hibernated again or, if the memory is
// lost, failed.
func (m *Manager) wake(ctx context.Context, l *launch) (err error) {
	mc, before := l.mc, l.mc.rec.State
	if l.plan.image != "" {
		if l.snap, err = m.hibernationImage(mc, l.plan.image); err != nil {
			return m.failWithoutImage(ctx, l.op, mc, err)
		}
		// The machine holds its image until it has failed, and the monitor needs it until it is killed.
		l.op.cleanup.Push("release image", func(context.Context) error {
			if !l.consumed {
				return nil
			}
			return m.deps.Store.Release(l.plan.image)
		})
	}
	err = l.run(ctx, stepPublish)
	if err == nil || l.op.abandoned || mc.rec.State == before {
		return err
	}
	if l.consumed && l.plan.image != "" {
		back := m.deps.Store.UnmarkConsumed(l.plan.image)
		l.consumed, err = back != nil, errors.Join(err, back)
	}
	return errors.Join(err, m.update(mc, surviveHost, func(in *record) {
		in.State, in.Slot, in.MAC = hibernated, -1, ""
		if l.consumed {
			in.State, in.Base, in.Reason = failed, "", "wake: "+err.Error()
		}
	}))
}

// hibernationImage returns the image that a machine hibernated in, if it can be restored. An image of an earlier
// release has no disks: the machine's own, which have not changed since, are added to it.
func (m *Manager) hibernationImage(mc *machine, ref snapshot.Ref) (snapshot.Snapshot, error) {
	snap, err := m.deps.Store.Get(ref)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	if snap.Consumed() {
		return snapshot.Snapshot{}, fmt.Errorf("%s was restored before: its memory is older than the disk", ref)
	}
	if !snap.Disk {
		own := mc.ownDiskPaths()
		snap, err = m.deps.Store.AddDisks(ref, func(i int, path string) error {
			return m.deps.Disks.Clone(own[i], path)
		})
		if err != nil {
			return snapshot.Snapshot{}, err
		}
	}
	return snap, snapshot.Check(snap)
}

// errNoImage is why a machine whose hibernation image does not exist is failed.
var errNoImage = errors.New("the image that it hibernated in is missing or damaged: its memory is lost, " +
	"and wake boots it from its disks")

// failWithoutImage makes a machine failed if the image that it hibernated in does not exist; why is the error of
// hibernationImage. Another Wake then boots the machine: one that was asked to restore memory must not boot silently.
func (m *Manager) failWithoutImage(ctx context.Context, op *operation, mc *machine, why error) error {
	if !errors.Is(why, snapshot.ErrNotFound) {
		return wrapStoreError(why)
	}
	m.log.Error("image of a hibernated machine is missing", "machine", mc.id, "snapshot", mc.rec.Base, "err", why)
	mc.set(func() { mc.rec.Base = "" }) // there is nothing to release
	err := m.setFailed(ctx, op, mc, errNoImage.Error())
	return errors.Join(fmt.Errorf("%w: %w", hostapi.ErrWrongState, errNoImage), err)
}

// restoreDisks replaces a machine's disks by clones of those in the image that it hibernated in: the guest may have
// written to them in a wake that failed.
func (m *Manager) restoreDisks(mc *machine, snap snapshot.Snapshot) error {
	from := snap.DiskPaths()
	own, _ := mc.captured()
	if len(from) != len(own) {
		return fmt.Errorf("restore the disks: %s has %d, and the machine %d", snap.Ref, len(from), len(own))
	}
	if err := m.checkWriter(mc); err != nil {
		return err
	}
	for i, path := range own {
		if err := m.restoreDisk(from[i], path); err != nil {
			return fmt.Errorf("restore the disk: %w", err)
		}
	}
	if err := m.growVolumes(mc); err != nil {
		return err
	}
	// What the guest flushes from here on goes to these files: their names must not be those of the old ones after a
	// crash of the host.
	for _, path := range pathsOf(mc.disks(), func(k diskKind) bool { return k == diskVolume }) {
		if err := m.deps.Disks.Sync(path); err != nil {
			return fmt.Errorf("restore the disk: %w", err)
		}
	}
	return nil
}

// restoreDisk replaces a file by a clone of another, wholly or not at all.
func (m *Manager) restoreDisk(from, path string) error {
	next := path + ".next"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := m.deps.Disks.Clone(from, next); err != nil {
		return err
	}
	return errors.Join(os.Chmod(next, 0o600), os.Rename(next, path))
}

// removeDisksLater removes the disks of the image that a machine was woken from, in Run.
func (m *Manager) removeDisksLater(ref snapshot.Ref) {
	select {
	case m.consumed <- ref:
	default: // Run is far behind
		m.removeDisks(ref)
	}
}

// removeDisks removes the disks of a consumed hibernation image. If that fails they go with the image.
func (m *Manager) removeDisks(ref snapshot.Ref) {
	if err := m.deps.Store.RemoveDisks(ref); err != nil {
		m.log.Warn("disks of a hibernation image not removed", "snapshot", ref, "err", err)
	}
}

// isOwnImage reports whether a machine runs on the image that it hibernated in itself.
func (m *Manager) isOwnImage(mc *machine) bool {
	snap, err := m.deps.Store.Get(mc.rec.Base)
	return err == nil && snap.Anonymous && snap.Machine == string(mc.id)
}
