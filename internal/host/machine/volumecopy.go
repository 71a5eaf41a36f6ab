package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/volume"
	"github.com/pandastack/pandastack/internal/vmm"
)

// CopyVolume makes a private copy of a volume as of this moment; see volume.Store.Copy. The guest of its writer is
// asked to write back everything first.
func (m *Manager) CopyVolume(ctx context.Context, id hostapi.VolumeID) (
	path string, of volume.Volume, remove func() error, err error,
) {
	err = m.withVolume(ctx, id, func() error {
		path, of, remove, err = m.deps.Volumes.Copy(id)
		return err
	})
	return path, of, remove, err
}

// withVolume calls do while the disk of a volume has what its guest has written: the guest of its writer is asked to
// write back everything first.
func (m *Manager) withVolume(ctx context.Context, id hostapi.VolumeID, do func() error) error {
	of, err := m.deps.Volumes.Get(id)
	if err != nil {
		return err
	}
	if of.Machine == "" {
		return do()
	}
	err = m.withDisk(ctx, of.Machine, func(d disk) bool { return d.kind == diskVolume && d.volume == id },
		func(disk) error { return do() })
	if errors.Is(err, hostapi.ErrNotFound) { // it was detached meanwhile
		return do()
	}
	return err
}

// withDisk owns a machine and calls do with one of its disks, when that has what the guest has written. ErrNotFound:
// there is no such machine, or it has no such disk.
func (m *Manager) withDisk(ctx context.Context, id hostapi.MachineID, is func(disk) bool, do func(disk) error) error {
	mc, err := m.lock(ctx, id)
	if err != nil {
		return err
	}
	defer mc.unlock()
	for i, d := range mc.disks() {
		if !is(d) {
			continue
		}
		if mc.rec.State == running && mc.waiting() == nil {
			if err := m.syncVolume(ctx, mc, i); err != nil {
				return fmt.Errorf("machine %s: %w", id, err)
			}
		}
		return do(d)
	}
	return fmt.Errorf("machine %s has no such volume: %w", id, hostapi.ErrNotFound)
}

// CreateVolume makes a volume: an empty one, a copy of another, or of a machine's private copy of another.
func (m *Manager) CreateVolume(ctx context.Context, req volume.Request, from hostapi.VolumeID,
	of hostapi.MachineID) (out volume.Volume, err error) {
	if m.deps.Volumes == nil {
		return volume.Volume{}, fmt.Errorf("volume %s: this host has no volumes: %w", req.ID, hostapi.ErrUnsupported)
	}
	if err := m.requireSpace("volume "+string(req.ID), 0); err != nil {
		return volume.Volume{}, err
	}
	create := func() error {
		out, err = m.deps.Volumes.Create(ctx, req)
		return err
	}
	switch {
	case of != "":
		err = m.withDisk(ctx, of,
			func(d disk) bool { return d.kind == diskData && d.volume == from },
			func(d disk) error {
				req.From, req.Dirty = d.path, true
				if source, err := m.deps.Volumes.Get(from); err == nil { // it may have been deleted
					req.Base = source.Base
				}
				return create()
			})
	case from != "":
		err = m.withVolume(ctx, from, func() error {
			source, err := m.deps.Volumes.Get(from)
			if err != nil {
				return err
			}
			req.From, req.Dirty, req.Base = m.deps.Volumes.Path(from), source.Dirty, source.Base
			return create()
		})
	default:
		err = create()
	}
	return out, err
}

// KeepCopy makes a volume of a machine's private copy of another, in place of a data disk: the machine goes on writing
// to it, as its only writer. The file keeps its name in the machine's directory, which the monitor knows, too.
func (m *Manager) KeepCopy(ctx context.Context, req volume.Request, from hostapi.VolumeID) (
	v volume.Volume, err error,
) {
	if m.deps.Volumes == nil {
		return v, fmt.Errorf("volume %s: %w", req.ID, errNoVolumes)
	}
	op := m.begin("keep")
	defer func() { err = op.end(ctx, err) }()
	ctx, mc, err := op.lock(ctx, req.Machine)
	if err != nil {
		return v, err
	}
	if err := mc.requireState("keep a volume of", running, paused, hibernated); err != nil {
		return v, err
	}
	i := slices.IndexFunc(mc.disks(), func(d disk) bool { return d.kind == diskData && d.volume == from })
	if i < 0 {
		return v, fmt.Errorf("machine %s has no copy of volume %s: %w", mc.id, from, hostapi.ErrNotFound)
	}
	d := mc.disks()[i]
	if d.place > 0 || !mc.rec.Persistent || mc.lazy != nil {
		return v, fmt.Errorf("the copy of volume %s is not in place of a data disk of a persistent machine, or not "+
			"complete; copy it: %w", from, hostapi.ErrInvalid)
	}
	req.Link = d.path
	if source, err := m.deps.Volumes.Get(from); err == nil { // it may have been deleted
		req.Base = source.Base
	}
	if v, err = m.deps.Volumes.Create(ctx, req); err != nil {
		return v, err
	}
	op.cleanup.Push("remove the volume", func(context.Context) error {
		return errors.Join(m.deps.Volumes.Detach(v.ID, mc.id, false), m.deps.Volumes.Delete(v.ID))
	})
	if err := op.done("link"); err != nil {
		return v, err
	}
	err = m.update(mc, surviveHost, func(in *record) {
		in.Volumes = append(slices.Clone(in.Volumes), volumeRecord{
			ID: v.ID, Disk: in.Data[d.index-1].Name, Mount: d.mount, Fence: v.Fence, MiB: v.SizeMiB, Count: v.Count,
		})
	})
	if err != nil {
		return v, err
	}
	op.cleanup.Forget()
	return v, op.done("record")
}

// ResizeVolume makes a volume larger, and its file system: at once if its writer runs, otherwise when it is mounted.
func (m *Manager) ResizeVolume(ctx context.Context, id hostapi.VolumeID, sizeMiB int) (volume.Volume, error) {
	v, err := m.deps.Volumes.Get(id)
	if err != nil {
		return volume.Volume{}, err
	}
	if err := m.requireSpace("volume "+string(id), 0); err != nil {
		return volume.Volume{}, err
	}
	if v.Machine == "" {
		return m.deps.Volumes.Resize(id, sizeMiB)
	}
	mc, err := m.lock(ctx, v.Machine)
	if errors.Is(err, hostapi.ErrNotFound) { // it was removed meanwhile
		return m.deps.Volumes.Resize(id, sizeMiB)
	}
	if err != nil {
		return volume.Volume{}, err
	}
	defer mc.unlock()
	if err := mc.requireState("resize a volume of", running, paused, hibernated, failed); err != nil {
		return volume.Volume{}, err
	}
	vm, ok := mc.vm.(vmm.DiskResizer)
	if mc.vm != nil && !ok {
		return volume.Volume{}, unsupported("resize a disk while it is attached", m.deps.Driver.Capabilities())
	}
	if v, err = m.deps.Volumes.Resize(id, sizeMiB); err != nil {
		return volume.Volume{}, err
	}
	err = m.update(mc, surviveHost, func(in *record) {
		in.Volumes = slices.Clone(in.Volumes)
		for i := range in.Volumes {
			if in.Volumes[i].ID == id {
				in.Volumes[i].MiB = sizeMiB
			}
		}
	})
	if err != nil || mc.vm == nil {
		return v, err
	}
	for n, d := range mc.disks() {
		if d.kind != diskVolume || d.volume != id {
			continue
		}
		if err := vm.ResizeDisk(ctx, n); err != nil {
			return volume.Volume{}, err
		}
		if mc.rec.State == running {
			if err := m.growInGuest(ctx, mc, n, d); err != nil {
				return volume.Volume{}, err
			}
		}
	}
	return v, nil
}

// ExerciseVolume attaches an empty volume to a running machine, mounted at dir, and detaches it: its monitor and its
// guest have then done that once. On a host without volumes, or with a monitor that cannot, it does nothing.
func (m *Manager) ExerciseVolume(ctx context.Context, id hostapi.MachineID, dir string) (err error) {
	mc := m.find(id)
	if mc == nil {
		return notFound(id)
	}
	mc.mu.Lock()
	_, can := mc.vm.(vmm.DiskSwapper)
	places := mc.rec.Places
	mc.mu.Unlock()
	if m.deps.Volumes == nil || places == 0 || !can {
		return nil
	}
	v := hostapi.VolumeID("exercise" + string(id))
	_, err = m.deps.Volumes.Create(ctx, volume.Request{ID: v, SizeMiB: volume.MinMiB, Ephemeral: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.deps.Volumes.Delete(v)) }()
	if _, err := m.AttachVolume(ctx, id, hostapi.VolumeAttachment{Volume: v, Mount: dir}); err != nil {
		return err
	}
	_, err = m.DetachVolume(ctx, id, v, true)
	return err
}
