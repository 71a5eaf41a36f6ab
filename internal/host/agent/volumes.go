package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/volume"
)

// volumesDir is the directory of the volumes, in the data directory.
const volumesDir = "volumes"

// openVolumes opens the volumes of the data directory.
func (h *Host) openVolumes() (*volume.Store, error) {
	store, err := volume.Open(volume.Config{
		Dir:   filepath.Join(h.cfg.DataDir, volumesDir),
		Clone: h.deps.Machine.Disks.Clone, Grow: h.deps.Machine.Disks.Grow, Own: h.ownBytes(),
	})
	if err != nil {
		return nil, err
	}
	if err := store.Broken(); err != nil {
		h.deps.Log.Error("volumes left alone: their records cannot be used", "err", err)
	}
	return store, nil
}

// ownBytes returns a function that measures what removing a file would free; nil if this host cannot.
func (h *Host) ownBytes() func(string) (int64, error) {
	if h.deps.Measure == nil {
		return nil
	}
	return func(path string) (int64, error) {
		_, own, err := h.deps.Measure(path)
		return own, err
	}
}

// volumeStore returns the volumes of this host. Before Open has recovered its machines, that is ErrUnavailable.
func (h *Host) volumeStore() (*volume.Store, error) {
	if err := h.recovered(); err != nil {
		return nil, err
	}
	return h.volumes, nil
}

// volumeOf returns a volume as the contract describes it.
func (h *Host) volumeOf(v volume.Volume) hostapi.Volume {
	out := hostapi.Volume{
		ID: v.ID, Host: h.id, SizeMiB: v.SizeMiB, Frozen: v.Frozen, Machine: v.Machine, Fence: v.Fence,
		Dirty: v.Dirty && v.Machine == "", // while it is attached, its writer has not ended
		Check: v.Check, Group: v.Group, Labels: v.Labels, Created: v.Created, Written: v.Written,
	}
	path := h.volumes.Path(v.ID)
	// Blocks that a volume shares with its base are its own: that ends with it.
	if measure := h.cfg.Machine.Allocated; measure != nil && !h.volumes.HasBase(v) {
		out.Bytes, _ = measure(path) // of a volume that is removed at this moment: 0
	} else if info, err := os.Stat(path); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			out.Bytes = st.Blocks * 512
		}
	}
	return out
}

// CreateVolume implements hostapi.VolumeHost.
func (h *Host) CreateVolume(ctx context.Context, req hostapi.CreateVolume) (hostapi.Volume, error) {
	if _, err := h.volumeStore(); err != nil {
		return hostapi.Volume{}, err
	}
	made := volume.Request{
		ID: req.ID, SizeMiB: req.SizeMiB, Frozen: req.Frozen, Group: req.Group, Labels: req.Labels,
	}
	if req.From != "" && req.Template != "" || req.Machine != "" && req.From == "" ||
		req.Fence != 0 && (req.Machine == "" || req.Frozen) || (req.Template == "") != (req.Disk == "") {
		return hostapi.Volume{}, fmt.Errorf(
			"create volume %s: name a volume, or a template and its disk, to copy; a machine needs a volume: %w",
			req.ID, hostapi.ErrInvalid)
	}
	if req.Template != "" {
		return h.copyDataDisk(ctx, req, made)
	}
	var v volume.Volume
	var err error
	if req.Fence != 0 {
		made.Machine, made.Fence = req.Machine, req.Fence
		v, err = h.machines.KeepCopy(ctx, made, req.From)
	} else {
		v, err = h.machines.CreateVolume(ctx, made, req.From, req.Machine)
	}
	if err != nil {
		return hostapi.Volume{}, err
	}
	return h.volumeOf(v), nil
}

// copyDataDisk makes a volume of a data disk of a baked template, which it bakes first if needed.
func (h *Host) copyDataDisk(
	ctx context.Context,
	req hostapi.CreateVolume,
	made volume.Request,
) (_ hostapi.Volume, err error) {
	snap, _, err := h.baker.Ensure(ctx, req.Template)
	if err != nil {
		return hostapi.Volume{}, err
	}
	if snap, err = h.store.Acquire(snap.Ref); err != nil {
		return hostapi.Volume{}, fmt.Errorf("create volume %s: %w: %w", req.ID, hostapi.ErrWrongState, err)
	}
	defer func() { err = errors.Join(err, h.store.Release(snap.Ref)) }()
	for i, d := range snap.Data {
		if d.Name != req.Disk {
			continue
		}
		// The template's memory has it mounted: its file system is as after a crash until that memory continues.
		made.From, made.Source, made.Dirty = snap.DiskPaths()[i+1], machine.DiskSource(snap.Ref, d.Name), true
		v, err := h.machines.CreateVolume(ctx, made, "", "")
		if err != nil {
			return hostapi.Volume{}, err
		}
		return h.volumeOf(v), nil
	}
	return hostapi.Volume{}, fmt.Errorf("create volume %s: template %s has no data disk %q: %w", req.ID, req.Template,
		req.Disk, hostapi.ErrInvalid)
}

// GetVolume implements hostapi.VolumeHost.
func (h *Host) GetVolume(_ context.Context, id hostapi.VolumeID) (hostapi.Volume, error) {
	store, err := h.volumeStore()
	if err != nil {
		return hostapi.Volume{}, err
	}
	v, err := store.Get(id)
	if err != nil {
		return hostapi.Volume{}, err
	}
	return h.volumeOf(v), nil
}

// Volumes implements hostapi.VolumeHost.
func (h *Host) Volumes(context.Context) ([]hostapi.Volume, error) {
	store, err := h.volumeStore()
	if err != nil {
		return nil, err
	}
	list := store.List()
	out := make([]hostapi.Volume, len(list))
	for i, v := range list {
		out[i] = h.volumeOf(v)
	}
	return out, nil
}

// ResizeVolume implements hostapi.VolumeHost.
func (h *Host) ResizeVolume(ctx context.Context, id hostapi.VolumeID, sizeMiB int) (hostapi.Volume, error) {
	if _, err := h.volumeStore(); err != nil {
		return hostapi.Volume{}, err
	}
	v, err := h.machines.ResizeVolume(ctx, id, sizeMiB)
	if err != nil {
		return hostapi.Volume{}, err
	}
	return h.volumeOf(v), nil
}

// DeleteVolume implements hostapi.VolumeHost.
func (h *Host) DeleteVolume(_ context.Context, id hostapi.VolumeID) error {
	store, err := h.volumeStore()
	if err != nil {
		return err
	}
	return store.Delete(id)
}

// AttachVolume implements hostapi.VolumeHost.
func (h *Host) AttachVolume(
	ctx context.Context,
	id hostapi.MachineID,
	req hostapi.VolumeAttachment,
) (hostapi.Machine, error) {
	if _, err := h.volumeStore(); err != nil {
		return hostapi.Machine{}, err
	}
	return h.owned(h.machines.AttachVolume(ctx, id, req))
}

// DetachVolume implements hostapi.VolumeHost.
func (h *Host) DetachVolume(
	ctx context.Context,
	id hostapi.MachineID,
	of hostapi.VolumeID,
	force bool,
) (hostapi.Machine, error) {
	if _, err := h.volumeStore(); err != nil {
		return hostapi.Machine{}, err
	}
	return h.owned(h.machines.DetachVolume(ctx, id, of, force))
}
