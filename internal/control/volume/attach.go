package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/volume/lease"
)

// Attach attaches a volume to a sandbox that runs. A hibernated sandbox is woken first.
func (s *Service) Attach(
	ctx context.Context,
	p auth.Principal,
	box api.SandboxID,
	mount api.VolumeMount,
) (api.Sandbox, error) {
	if err := mount.Validate(); err != nil {
		return api.Sandbox{}, err
	}
	v, err := s.find(ctx, p, mount.Name)
	if err != nil {
		return api.Sandbox{}, api.AsError(err)
	}
	mount.Name = v.ID
	if mount.MountPath == "" {
		mount.MountPath = api.VolumeDir + v.Name
	}
	if err := s.helpers.Yield(ctx, p.Workspace, p.Owner, []api.VolumeMount{mount}); err != nil {
		return api.Sandbox{}, api.AsError(err)
	}
	got, err := s.boxes.ChangeVolumes(ctx, p, box, lease.Change{
		Doing: "attach a volume to", Event: api.EventVolumeAttached, Running: true,
		Do: func(ctx context.Context, b api.Sandbox) (hostapi.Machine, []api.SandboxVolume, error) {
			return s.attach(ctx, p, b, v, mount)
		},
	})
	if err != nil {
		return api.Sandbox{}, api.AsError(err)
	}
	return got, s.settle(ctx, v.ID)
}

// attach attaches a volume to a sandbox whose lock is held.
func (s *Service) attach(
	ctx context.Context,
	p auth.Principal,
	box api.Sandbox,
	v store.Volume,
	mount api.VolumeMount,
) (m hostapi.Machine, known []api.SandboxVolume, err error) {
	for _, has := range box.Volumes {
		switch {
		case has.MountPath == mount.MountPath:
			return m, nil, api.Errorf(api.Invalid, "mount_path: volume %s is mounted at %s already: use another path",
				has.Name, has.MountPath).With("field", "mount_path")
		case has.ID == api.VolumeID(v.ID):
			return m, nil, api.Errorf(api.Conflict, "the sandbox has volume %s at %s already", has.Name, has.MountPath)
		}
	}
	ctx, release, err := s.locks.Acquire(ctx, v.ID)
	if err != nil {
		return m, nil, err
	}
	defer release()
	var ask []hostapi.VolumeAttachment
	err = s.db.Write(ctx, "volume attach", func(ctx context.Context, tx *store.Tx) (err error) {
		ask, known, err = lease.Attach(ctx, tx, p.Workspace, p.Owner, box.ID, s.instance, []api.VolumeMount{mount})
		return err
	})
	if err != nil {
		return m, nil, err
	}
	m, err = s.host.AttachVolume(ctx, hostapi.MachineID(box.ID), ask[0])
	if errors.Is(err, hostapi.ErrUnsupported) {
		err = api.Wrap(api.Unsupported, err, fmt.Sprintf("sandbox %s has no place for one more volume: attach it when "+
			"the sandbox is created", box.ID))
	}
	if err != nil {
		s.settleAfter(ctx, v, err)
	}
	return m, known, err
}

// Detach takes a volume from a sandbox. With force also from one that does not run, or whose programs use it.
func (s *Service) Detach(
	ctx context.Context,
	p auth.Principal,
	box api.SandboxID,
	name string,
	force bool,
) (api.Sandbox, error) {
	if err := s.admit(ctx, p); err != nil {
		return api.Sandbox{}, err
	}
	var id string
	got, err := s.boxes.ChangeVolumes(ctx, p, box, lease.Change{
		Doing: "detach a volume from", Event: api.EventVolumeDetached,
		Do: func(ctx context.Context, b api.Sandbox) (hostapi.Machine, []api.SandboxVolume, error) {
			has, err := volumeOf(b, name)
			if err != nil {
				return hostapi.Machine{}, nil, err
			}
			if !has.ReadOnly && !has.Private {
				id = string(has.ID)
			}
			m, err := s.detach(ctx, b, has, force)
			return m, nil, err
		},
	})
	if err != nil {
		return api.Sandbox{}, api.AsError(err)
	}
	if id == "" {
		return got, nil
	}
	return got, s.settle(ctx, id)
}

// volumeOf finds a volume that a sandbox has, by name, id or mount point.
func volumeOf(box api.Sandbox, name string) (api.SandboxVolume, error) {
	for _, has := range box.Volumes {
		if has.Name == name || string(has.ID) == name {
			return has, nil
		}
	}
	return api.SandboxVolume{}, api.Errorf(api.NotFound, "sandbox %s has no volume %.70q", box.ID, name)
}

// onMachine finds the id on the host of a volume that a sandbox has.
func (s *Service) onMachine(ctx context.Context, box api.SandboxID, has api.SandboxVolume) (hostapi.VolumeID, error) {
	m, err := s.host.Get(ctx, hostapi.MachineID(box))
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(m.Volumes, func(a hostapi.AttachedVolume) bool { return a.Mount == has.MountPath })
	if i < 0 {
		return "", fmt.Errorf("volume %s at %s: %w", has.Name, has.MountPath, hostapi.ErrNotFound)
	}
	return m.Volumes[i].Volume, nil
}

// detach takes a volume from a sandbox whose lock is held.
func (s *Service) detach(
	ctx context.Context,
	box api.Sandbox,
	has api.SandboxVolume,
	force bool,
) (hostapi.Machine, error) {
	disk, err := s.onMachine(ctx, box.ID, has)
	if err != nil {
		return hostapi.Machine{}, err
	}
	v := store.Volume{ID: string(has.ID), Name: has.Name}
	if !has.ReadOnly && !has.Private {
		ctx, release, err := s.locks.Acquire(ctx, v.ID)
		if err != nil {
			return hostapi.Machine{}, err
		}
		defer release()
		err = s.db.Write(ctx, "volume detach", func(ctx context.Context, tx *store.Tx) (err error) {
			if v, err = tx.Volume(ctx, v.ID); err != nil {
				return err
			}
			v.Instance = s.instance
			return tx.UpdateVolume(ctx, &v, store.VolumeReady, v.Fence, "instance")
		})
		if err != nil {
			return hostapi.Machine{}, err
		}
	}
	m, err := s.host.DetachVolume(ctx, hostapi.MachineID(box.ID), disk, force)
	switch {
	case errors.Is(err, hostapi.ErrInUse):
		err = api.Wrap(api.VolumeInUse, err, fmt.Sprintf("programs of sandbox %s use volume %s: end them, or detach "+
			"it with force", box.ID, has.Name)).With("sandbox_id", box.ID).With("volume", has.Name)
	case errors.Is(err, hostapi.ErrWrongState):
		err = api.Wrap(api.WrongState, err, fmt.Sprintf("sandbox %s does not run: wake it, or detach volume %s with "+
			"force, which loses the memory of the sandbox", box.ID, has.Name)).With("volume", has.Name)
	}
	if err != nil && v.Instance != "" {
		s.settleAfter(ctx, v, err)
	}
	return m, err
}

// settleAfter settles a volume after a call of its host failed. Reconcile does it again if that fails, too.
func (s *Service) settleAfter(ctx context.Context, v store.Volume, why error) {
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := s.settleLocked(ctx, v.ID); err != nil {
		s.log.Warn("the writer of a volume is not known; its host is asked again", "volume", v.ID,
			"err", errors.Join(why, err))
	}
}

// settle ends an operation of a holder on a volume, by what the host says.
func (s *Service) settle(ctx context.Context, id string) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	ctx, release, err := s.locks.Acquire(ctx, id)
	if err != nil {
		return api.AsError(err)
	}
	defer release()
	if err := s.settleLocked(ctx, id); err != nil {
		s.log.Warn("the writer of a volume is not known; its host is asked again", "volume", id, "err", err)
	}
	return nil // what was asked for is done
}

// settleLocked is settle with the lock of the volume. Only the statement of the host that no machine writes to the
// volume takes the lease from a holder.
func (s *Service) settleLocked(ctx context.Context, id string) error {
	v, err := s.db.Read().Volume(ctx, id)
	if err != nil || v.Holder == "" || v.Instance == "" {
		return err
	}
	h, err := s.host.GetVolume(ctx, hostapi.VolumeID(v.Disk))
	if err != nil {
		return wrap(err, "look at", v)
	}
	return s.db.Write(ctx, "volume settle", func(ctx context.Context, tx *store.Tx) error {
		if h.Machine == "" {
			return lease.Give(ctx, tx, v)
		}
		v.Instance = ""
		return tx.UpdateVolume(ctx, &v, store.VolumeReady, v.Fence, "instance")
	})
}

// Promote makes a volume of its own of the private copy that a sandbox has. The sandbox keeps its copy.
func (s *Service) Promote(
	ctx context.Context,
	p auth.Principal,
	box api.SandboxID,
	name string,
	req api.VolumeCloneRequest,
) (api.Volume, error) {
	if err := s.admit(ctx, p); err != nil {
		return api.Volume{}, err
	}
	if err := req.Validate(); err != nil {
		return api.Volume{}, err
	}
	b, err := s.boxes.Get(ctx, p, box)
	if err != nil {
		return api.Volume{}, err
	}
	has, err := volumeOf(b, name)
	if err != nil {
		return api.Volume{}, err
	}
	if !has.Private {
		return api.Volume{}, api.Errorf(api.Invalid, "volume %s of sandbox %s is no private copy: clone the volume",
			has.Name, box)
	}
	disk, err := s.onMachine(ctx, box, has)
	if err != nil {
		return api.Volume{}, api.AsError(wrap(err, "copy", store.Volume{Name: has.Name}))
	}
	return s.create(ctx, p, api.CreateVolumeRequest{Name: req.Name, SizeMB: req.SizeMB}, hostapi.Owner{},
		source{from: disk, machine: hostapi.MachineID(box), sizeMiB: has.SizeMB})
}

// Keep makes a volume of the private copy that a sandbox has in place of a data disk.
//
// The volume belongs to another service's object. The sandbox, a persistent one, goes on writing to it, as its holder.
func (s *Service) Keep(
	ctx context.Context,
	p auth.Principal,
	owner hostapi.Owner,
	box api.SandboxID,
) (v api.Volume, err error) {
	if err := s.admit(ctx, p); err != nil {
		return v, err
	}
	_, err = s.boxes.ChangeVolumes(ctx, p, box, lease.Change{
		Doing: "keep the volume of", Event: api.EventVolumeAttached,
		Do: func(ctx context.Context, b api.Sandbox) (m hostapi.Machine, known []api.SandboxVolume, err error) {
			i := slices.IndexFunc(b.Volumes, func(has api.SandboxVolume) bool { return has.Private && !has.ReadOnly })
			if i < 0 {
				return m, nil, api.Errorf(api.WrongState, "sandbox %s has no private copy of a volume", box)
			}
			has := b.Volumes[i]
			disk, err := s.onMachine(ctx, box, has)
			if err != nil {
				return m, nil, err
			}
			v, err = s.create(ctx, p, api.CreateVolumeRequest{}, owner,
				source{from: disk, machine: hostapi.MachineID(box), keep: true, sizeMiB: has.SizeMB})
			if err != nil {
				return m, nil, err
			}
			m, err = s.host.Get(ctx, hostapi.MachineID(box))
			return m, []api.SandboxVolume{{ID: v.ID, Name: v.Name, MountPath: has.MountPath}}, err
		},
	})
	if err != nil {
		return v, api.AsError(err)
	}
	return v, nil
}
