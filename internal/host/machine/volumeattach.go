package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/vmm"
)

// AttachVolume attaches a volume to a running machine and mounts it. When it fails the machine is as before.
func (m *Manager) AttachVolume(ctx context.Context, id hostapi.MachineID, req hostapi.VolumeAttachment) (
	_ View, err error,
) {
	op := m.begin("attach")
	defer func() { err = op.end(ctx, err) }()
	if req.Disk != "" {
		return View{}, fmt.Errorf("attach volume %s in place of a data disk: only at create: %w", req.Volume,
			hostapi.ErrInvalid)
	}
	var made privateCopy
	if req.ReadOnly { // before this machine is owned: the copy waits for another
		if made, err = m.copyForMachine(ctx, op, req.Volume); err != nil {
			return View{}, fmt.Errorf("attach volume %s: %w", req.Volume, err)
		}
	}
	ctx, mc, err := op.lock(ctx, id)
	if err != nil {
		return View{}, err
	}
	if err := mc.requireState("attach a volume to", running); err != nil {
		return View{}, err
	}
	if err := m.attach(ctx, op, mc, req, made); err != nil {
		return View{}, fmt.Errorf("attach volume %s to machine %s: %w", req.Volume, id, wrapNoSpace(err))
	}
	op.cleanup.Forget()
	op.logPhases(mc, false)
	return mc.view(), nil
}

// attach does the work of AttachVolume. The record is first: a process that finds it while the place is changing
// detaches the volume.
func (m *Manager) attach(ctx context.Context, op *operation, mc *machine, req hostapi.VolumeAttachment,
	made privateCopy) error {
	vm, ok := mc.vm.(vmm.DiskSwapper)
	if !ok {
		return unsupported("attach a disk to a running machine", m.deps.Driver.Capabilities())
	}
	before, next := mc.rec, mc.rec
	var planned volumesRequest
	if err := m.planVolume(&next, &planned, req, made, snapshot.Snapshot{}); err != nil {
		return err
	}
	place := planned.places[0]
	err := m.update(mc, surviveHost, func(in *record) {
		in.Data, in.Volumes, in.Changing, in.Attaching = next.Data, next.Volumes, place, true
	})
	if err != nil {
		return err
	}
	op.cleanup.Push("record", func(context.Context) error {
		return m.update(mc, surviveHost, func(in *record) {
			in.Data, in.Volumes, in.Changing, in.Attaching = before.Data, before.Volumes, 0, false
		})
	})
	if err := op.done("record"); err != nil {
		return err
	}
	n, d := mc.diskAt(place)
	mount := guestapi.VolumeMount{
		Disk: n, Dir: d.mount, ReadOnly: d.ro, Bytes: int64(d.sizeMiB) * mib, Check: made.check,
	}
	if mount.Check, err = m.takeDisk(op, mc, d, req.Fence, made); err != nil {
		return err
	}
	op.cleanup.Push("swap back", func(ctx context.Context) error { return m.emptyPlace(ctx, mc, vm, place) })
	if err := vm.SwapDisk(ctx, n, mc.diskSpecs(diskRate(mc.rec.Limits.ClampTo(m.cfg.Limits)))[n]); err != nil {
		return err
	}
	if err := op.done("swap"); err != nil {
		return err
	}
	link, err := m.ensureLink(ctx, mc)
	if err != nil {
		return err
	}
	op.cleanup.Push("unmount", func(ctx context.Context) error { return m.unmount(ctx, mc, n, true) })
	_, err = link.Volume(ctx, guestapi.VolumeRequest{Action: guestapi.VolumeMountAt, Volume: mount})
	if err == nil {
		err = op.done("mount")
	}
	if err == nil {
		err = m.recordCheck(ctx, mc, mount)
	}
	if err != nil {
		return m.noteDamage(mc, []guestapi.VolumeMount{mount}, err)
	}
	return m.update(mc, surviveHost, func(in *record) { in.Changing, in.Attaching = 0, false })
}

// takeDisk makes the disk of an attachment the machine's, and reports whether its file system is to be checked.
func (m *Manager) takeDisk(op *operation, mc *machine, d disk, fence uint64, made privateCopy) (check bool, err error) {
	if d.kind == diskData {
		if err := os.Rename(made.path, d.path); err != nil {
			return false, err
		}
		op.cleanup.Push("remove the copy", func(context.Context) error { return os.Remove(d.path) })
		return made.check, m.chown(mc, d.path)
	}
	now, err := m.deps.Volumes.Attach(d.volume, mc.id, fence)
	if err != nil {
		return false, err
	}
	clean := !now.Dirty
	op.cleanup.Push("detach volume", func(context.Context) error {
		return m.deps.Volumes.Detach(d.volume, mc.id, clean && mc.unmounted[d.volume])
	})
	if err := op.done("lease"); err != nil {
		return false, err
	}
	err = m.update(mc, surviveProcess, func(in *record) {
		in.Volumes = slices.Clone(in.Volumes)
		for i := range in.Volumes {
			if in.Volumes[i].ID == d.volume {
				in.Volumes[i].Count, in.Volumes[i].MiB = now.Count, now.SizeMiB
			}
		}
	})
	if err != nil {
		return false, err
	}
	if _, err := m.deps.Volumes.MarkDirty(d.volume, mc.id); err != nil {
		return false, err
	}
	return now.Dirty, errors.Join(m.chown(mc, d.path), op.done("dirty"))
}

// diskAt returns the disk at a place, and its number in the guest.
func (mc *machine) diskAt(place int) (int, disk) {
	for n, d := range mc.disks() {
		if d.place == place {
			return n, d
		}
	}
	return -1, disk{}
}

// placePath is the path of the file of a place without a volume.
func (mc *machine) placePath(place int) string {
	return filepath.Join(mc.dir, fmt.Sprintf(placeFile, place))
}

// emptyPlace gives the drive of a place its file without content.
func (m *Manager) emptyPlace(ctx context.Context, mc *machine, vm vmm.DiskSwapper, place int) error {
	n, _ := mc.diskAt(place)
	path := mc.placePath(place)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(placeBytes), f.Close(), m.chown(mc, path)); err != nil {
		return err
	}
	rate := diskRate(mc.rec.Limits.ClampTo(m.cfg.Limits))
	return vm.SwapDisk(ctx, n, vmm.Disk{Path: path, Empty: true, Rate: rate})
}

// unmount asks the guest to unmount a volume. One that is not mounted is no error.
func (m *Manager) unmount(ctx context.Context, mc *machine, n int, force bool) error {
	d := mc.disks()[n]
	link, err := m.ensureLink(ctx, mc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, m.cfg.FreezeTimeout+m.cfg.SyncTimeout, errNoReply)
	defer cancel()
	report, err := link.Volume(ctx, guestapi.VolumeRequest{
		Action: guestapi.VolumeUnmount, Volume: guestapi.VolumeMount{Disk: n}, Force: force,
	})
	switch {
	case errors.Is(err, guestapi.ErrNotFound): // it was never mounted, or a program of the guest did it
		report.Clean, err = true, nil
	case errors.Is(err, guestapi.ErrInUse):
		return fmt.Errorf("%w: %w", hostapi.ErrInUse, err)
	case err != nil:
		return err
	}
	if mc.unmounted == nil {
		mc.unmounted = map[hostapi.VolumeID]bool{}
	}
	mc.unmounted[d.volume] = report.Clean
	return nil
}

// DetachVolume unmounts a volume and takes it from a machine.
// With force it takes it also from programs that use it, and from a machine that does not run or whose guest does not
// reply.
func (m *Manager) DetachVolume(ctx context.Context, id hostapi.MachineID, of hostapi.VolumeID, force bool) (
	_ View, err error,
) {
	op := m.begin("detach")
	defer func() { err = op.end(ctx, err) }()
	ctx, mc, err := op.lock(ctx, id)
	if err != nil {
		return View{}, err
	}
	place := 0
	for _, d := range mc.disks() {
		if d.volume != of || d.kind == diskPlace {
			continue
		}
		if place = d.place; place == 0 {
			return View{}, fmt.Errorf("detach volume %s: it has the place of a data disk of machine %s; "+
				"destroy the machine: %w", of, id, hostapi.ErrInvalid)
		}
	}
	if place == 0 && m.deps.Volumes != nil {
		// An earlier call may have failed after it changed the machine.
		if v, err := m.deps.Volumes.Get(of); err == nil && v.Machine == id {
			return mc.view(), m.deps.Volumes.Detach(of, id, false)
		}
		return View{}, fmt.Errorf("detach volume %s: machine %s does not have it: %w", of, id, hostapi.ErrNotFound)
	}
	err = m.detach(ctx, op, mc, place, force)
	if err != nil {
		return View{}, fmt.Errorf("detach volume %s from machine %s: %w", of, id, wrapNoSpace(err))
	}
	op.logPhases(mc, false)
	return mc.view(), nil
}

func (m *Manager) detach(ctx context.Context, op *operation, mc *machine, place int, force bool) error {
	if mc.rec.State != running || mc.waiting() != nil {
		if !force {
			return mc.requireState("detach a volume of", running)
		}
		return m.detachAtRest(ctx, op, mc, place)
	}
	vm, ok := mc.vm.(vmm.DiskSwapper)
	if !ok {
		return unsupported("detach a disk of a running machine", m.deps.Driver.Capabilities())
	}
	if err := m.update(mc, surviveHost, func(in *record) { in.Changing = place }); err != nil {
		return err
	}
	n, _ := mc.diskAt(place)
	err := op.done("record")
	if err == nil {
		err = m.unmount(ctx, mc, n, force)
	}
	switch {
	case err == nil:
		return m.detachUnmounted(ctx, op, mc, vm, place)
	case op.abandoned:
		return err
	case force && !errors.Is(err, hostapi.ErrInUse) && ctx.Err() == nil:
		m.log.Warn("volume not unmounted", "machine", mc.id, "err", err)
		return m.detachAtRest(ctx, op, mc, place)
	}
	return errors.Join(err, m.update(mc, surviveHost, func(in *record) { in.Changing = 0 }))
}

// detachUnmounted takes a volume that is not mounted any more from a machine that runs. There is no way back: if it
// fails, the next call or process continues.
func (m *Manager) detachUnmounted(ctx context.Context, op *operation, mc *machine, vm vmm.DiskSwapper,
	place int) error {
	failed := op.done("unmount")
	if op.abandoned {
		return failed
	}
	if err := m.emptyPlace(ctx, mc, vm, place); err != nil {
		return errors.Join(failed, err)
	}
	failed = errors.Join(failed, op.done("swap"))
	if op.abandoned {
		return failed
	}
	return errors.Join(failed, m.forgetVolume(op, mc, place))
}

// forgetVolume removes the volume at a place, which the monitor does not have any more, from a machine. The record is
// first: Recover detaches volumes of machines that do not have them.
func (m *Manager) forgetVolume(op *operation, mc *machine, place int) error {
	_, d := mc.diskAt(place)
	if d.kind == diskVolume {
		if err := m.deps.Disks.Sync(d.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	err := m.update(mc, surviveHost, func(in *record) {
		in.Changing, in.Attaching = 0, false
		in.Volumes = slices.DeleteFunc(slices.Clone(in.Volumes), func(v volumeRecord) bool { return v.Place == place })
		in.Data = slices.DeleteFunc(slices.Clone(in.Data), func(v snapshot.DataDisk) bool { return v.Place == place })
	})
	if err != nil {
		return err
	}
	failed := op.done("forget")
	switch {
	case op.abandoned:
		return failed
	case d.kind == diskVolume:
		err = m.deps.Volumes.Detach(d.volume, mc.id, mc.unmounted[d.volume])
		delete(mc.unmounted, d.volume)
	case d.kind == diskData:
		if err = os.Remove(d.path); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	return errors.Join(failed, err)
}

// detachAtRest takes a volume from a machine without its guest. The machine loses its memory, which has the volume.
func (m *Manager) detachAtRest(ctx context.Context, op *operation, mc *machine, place int) error {
	if mc.rec.State == hibernated {
		if err := m.forgetMemory(ctx, op, mc); err != nil {
			return err
		}
	} else if mc.rec.State != failed {
		if err := m.setFailed(ctx, op, mc, "a volume was taken from it by force: its memory is lost"); err != nil {
			return err
		}
	}
	return m.forgetVolume(op, mc, place)
}

// finishChange detaches the volume of an adopted machine whose attachment or detachment was in progress. One that was
// to be detached, and is in use, stays.
func (m *Manager) finishChange(ctx context.Context, op *operation, mc *machine) error {
	place := mc.rec.Changing
	if place == 0 {
		return nil
	}
	vm, ok := mc.vm.(vmm.DiskSwapper)
	n, _ := mc.diskAt(place)
	if mc.vm != nil && ok && mc.rec.State == running {
		err := m.unmount(ctx, mc, n, mc.rec.Attaching)
		if errors.Is(err, hostapi.ErrInUse) {
			return m.update(mc, surviveHost, func(in *record) { in.Changing = 0 })
		}
		if err != nil {
			m.log.Warn("volume not unmounted", "machine", mc.id, "err", err)
		}
		if err := m.emptyPlace(ctx, mc, vm, place); err != nil {
			return err
		}
	}
	return m.forgetVolume(op, mc, place)
}
