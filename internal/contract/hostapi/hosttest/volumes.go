package hosttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// volume is a volume of a simulated host. While a machine writes to it, its files are those of the machine below the
// mount point.
type volume struct {
	hostapi.Volume
	files map[string]file // by path below its root, if no machine writes to it
}

// below returns copies of the files below dir, by their paths from there.
func (in *guestState) below(dir string) map[string]file {
	in.mu.Lock()
	defer in.mu.Unlock()
	files := map[string]file{}
	for p, f := range in.files {
		if rest, ok := strings.CutPrefix(p, dir+"/"); ok {
			f.data = bytes.Clone(f.data)
			files[rest] = f
		}
	}
	return files
}

// mount makes files appear below dir, which is made if it is missing.
func (in *guestState) mount(dir string, files map[string]file, readOnly bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.files[dir] = file{dir: true, mode: 0o755, at: time.Now()}
	for rest, f := range copyFiles(files) {
		in.files[dir+"/"+rest] = f
	}
	if readOnly {
		in.readOnly = append(slices.Clone(in.readOnly), dir)
	}
}

// unmount removes the files below dir.
func (in *guestState) unmount(dir string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	maps.DeleteFunc(in.files, func(p string, _ file) bool { return strings.HasPrefix(p, dir+"/") })
	in.readOnly = slices.DeleteFunc(slices.Clone(in.readOnly), func(d string) bool { return d == dir })
}

// attachment returns how a machine has a volume.
func (m *machine) attachment(id hostapi.VolumeID) (hostapi.AttachedVolume, bool) {
	i := slices.IndexFunc(m.Volumes, func(v hostapi.AttachedVolume) bool { return v.Volume == id })
	if i < 0 {
		return hostapi.AttachedVolume{}, false
	}
	return m.Volumes[i], true
}

// privateVolumes returns volumes as those that get copies have them.
func privateVolumes(all []hostapi.AttachedVolume) []hostapi.AttachedVolume {
	all = slices.Clone(all)
	for i := range all {
		all[i].Private = true
	}
	return all
}

// volumeFiles returns what a volume has now.
func (h *Host) volumeFiles(v *volume) map[string]file {
	if m := h.machines[v.Machine]; m != nil {
		if at, ok := m.attachment(v.ID); ok {
			return m.state.below(at.Mount)
		}
	}
	return copyFiles(v.files)
}

func errNoVolume(id hostapi.VolumeID) error {
	return fmt.Errorf("volume %s: %w", id, hostapi.ErrNotFound)
}

// withVolume runs one operation on an existing volume, with the host's lock.
func (h *Host) withVolume(ctx context.Context, op string, id hostapi.VolumeID, f func(*volume) error) error {
	return h.runOp(ctx, op, string(id), func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		v := h.volumes[id]
		if v == nil {
			return errNoVolume(id)
		}
		return f(v)
	})
}

// CreateVolume implements hostapi.VolumeHost.
func (h *Host) CreateVolume(ctx context.Context, req hostapi.CreateVolume) (hostapi.Volume, error) {
	var made hostapi.Volume
	err := h.runOp(ctx, "createvolume", string(req.ID), func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		files, sizeMiB, err := h.volumeSource(req)
		if err == nil && req.Fence != 0 {
			err = h.checkKeep(req)
		}
		if err == nil {
			made, err = h.addVolume(req, files, sizeMiB)
		}
		if err == nil && req.Fence != 0 {
			made = h.keep(req)
		}
		return err
	})
	return made, err
}

// volumeSource returns the files of what a volume is made from, and its size.
func (h *Host) volumeSource(req hostapi.CreateVolume) (map[string]file, int, error) {
	switch {
	case req.From != "" && req.Machine != "":
		m := h.machines[req.Machine]
		if m == nil {
			return nil, 0, fmt.Errorf("machine %s: %w", req.Machine, hostapi.ErrNotFound)
		}
		at, ok := m.attachment(req.From)
		if !ok || !at.Private {
			return nil, 0, fmt.Errorf("volume %s of machine %s: %w", req.From, m.ID, hostapi.ErrNotFound)
		}
		return m.state.below(at.Mount), at.SizeMiB, nil
	case req.From != "":
		v := h.volumes[req.From]
		if v == nil {
			return nil, 0, errNoVolume(req.From)
		}
		return h.volumeFiles(v), v.SizeMiB, nil
	case req.Template != "":
		for _, d := range h.templates[req.Template].Disks {
			if d.Name == req.Disk {
				return map[string]file{}, d.SizeMiB, nil
			}
		}
		return nil, 0, fmt.Errorf("disk %q of template %s: %w", req.Disk, req.Template, hostapi.ErrNotFound)
	}
	return map[string]file{}, 0, nil
}

// checkKeep reports why a private copy cannot become a volume.
func (h *Host) checkKeep(req hostapi.CreateVolume) error {
	m := h.machines[req.Machine]
	at, _ := m.attachment(req.From)
	inPlace := slices.ContainsFunc(m.Disks, func(d hostapi.DataDisk) bool { return d.Mount == at.Mount })
	if !at.Private || at.ReadOnly || !inPlace || !m.Persistent {
		return fmt.Errorf("volume %s of machine %s: %w", req.From, m.ID, hostapi.ErrInvalid)
	}
	return nil
}

// keep makes a machine the writer of the volume that its private copy has become.
func (h *Host) keep(req hostapi.CreateVolume) hostapi.Volume {
	m, v := h.machines[req.Machine], h.volumes[req.ID]
	v.Machine, v.Fence, v.files = m.ID, req.Fence, nil
	m.Volumes = slices.Clone(m.Volumes)
	for i := range m.Volumes {
		if m.Volumes[i].Volume == req.From {
			m.Volumes[i].Volume, m.Volumes[i].Private = v.ID, false
		}
	}
	return v.Volume
}

// addVolume adds a volume with these files, made from a source of a size.
func (h *Host) addVolume(
	req hostapi.CreateVolume,
	files map[string]file,
	sourceMiB int,
) (hostapi.Volume, error) {
	size := max(req.SizeMiB, sourceMiB)
	switch {
	case h.volumes[req.ID] != nil:
		return hostapi.Volume{}, fmt.Errorf("volume %s: %w", req.ID, hostapi.ErrExists)
	case size <= 0:
		return hostapi.Volume{}, fmt.Errorf("volume %s: size: %w", req.ID, hostapi.ErrInvalid)
	case req.SizeMiB != 0 && req.SizeMiB < sourceMiB:
		return hostapi.Volume{}, fmt.Errorf("volume %s: smaller than its source: %w", req.ID, hostapi.ErrInvalid)
	}
	v := &volume{Volume: hostapi.Volume{ID: req.ID, Host: h.id, SizeMiB: size, Bytes: 1 << 20, Frozen: req.Frozen,
		Group: req.Group, Labels: maps.Clone(req.Labels), Created: time.Now()}, files: files}
	h.volumes[v.ID] = v
	return v.Volume, nil
}

// GetVolume implements hostapi.VolumeHost.
func (h *Host) GetVolume(ctx context.Context, id hostapi.VolumeID) (got hostapi.Volume, err error) {
	err = h.withVolume(ctx, "getvolume", id, func(v *volume) error {
		got = v.Volume
		return nil
	})
	return got, err
}

// Volumes implements hostapi.VolumeHost.
func (h *Host) Volumes(ctx context.Context) ([]hostapi.Volume, error) {
	all := []hostapi.Volume{}
	err := h.runOp(ctx, "volumes", "", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, id := range slices.Sorted(maps.Keys(h.volumes)) {
			all = append(all, h.volumes[id].Volume)
		}
		return nil
	})
	return all, err
}

// ResizeVolume implements hostapi.VolumeHost.
func (h *Host) ResizeVolume(
	ctx context.Context,
	id hostapi.VolumeID,
	sizeMiB int,
) (grown hostapi.Volume, err error) {
	err = h.withVolume(ctx, "resizevolume", id, func(v *volume) error {
		if v.Frozen || sizeMiB < v.SizeMiB {
			return fmt.Errorf("volume %s has %d MiB: %w", id, v.SizeMiB, hostapi.ErrInvalid)
		}
		v.SizeMiB = sizeMiB
		if m := h.machines[v.Machine]; m != nil {
			m.Volumes = slices.Clone(m.Volumes)
			for i := range m.Volumes {
				if m.Volumes[i].Volume == id {
					m.Volumes[i].SizeMiB = sizeMiB
				}
			}
		}
		grown = v.Volume
		return nil
	})
	return grown, err
}

// DeleteVolume implements hostapi.VolumeHost.
func (h *Host) DeleteVolume(ctx context.Context, id hostapi.VolumeID) error {
	err := h.withVolume(ctx, "deletevolume", id, func(v *volume) error {
		if v.Machine != "" {
			return errVolumeInUse(v)
		}
		delete(h.volumes, id)
		return nil
	})
	if errors.Is(err, hostapi.ErrNotFound) {
		return nil
	}
	return err
}

func errVolumeInUse(v *volume) error {
	return fmt.Errorf("volume %s is written by machine %s (fence %d): %w", v.ID, v.Machine, v.Fence, hostapi.ErrInUse)
}

// AttachVolume implements hostapi.VolumeHost.
func (h *Host) AttachVolume(
	ctx context.Context,
	id hostapi.MachineID,
	req hostapi.VolumeAttachment,
) (got hostapi.Machine, err error) {
	err = h.withMachine(ctx, "attachvolume", id, func(m *machine) error {
		if m.State != hostapi.Running {
			return wrongState(m)
		}
		if err := h.checkAttach(m, req); err != nil {
			return err
		}
		h.attach(m, req)
		got = m.Machine
		return nil
	})
	return got, err
}

// maxVolumes is how many volumes a machine can have.
const maxVolumes = 8

// mountOf returns where an attachment is mounted.
func mountOf(m *machine, req hostapi.VolumeAttachment) string {
	for _, d := range m.Disks {
		if req.Disk != "" && d.Name == req.Disk {
			return d.Mount
		}
	}
	return req.Mount
}

// checkAttach reports why a volume cannot be attached.
func (h *Host) checkAttach(m *machine, req hostapi.VolumeAttachment) error {
	v := h.volumes[req.Volume]
	if v == nil {
		return errNoVolume(req.Volume)
	}
	dir := mountOf(m, req)
	if !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" {
		return fmt.Errorf("mount point %q: %w", dir, hostapi.ErrInvalid)
	}
	for _, other := range m.Volumes {
		if other.Mount == dir || other.Volume == req.Volume {
			return fmt.Errorf("volume %s at %s: %w", other.Volume, other.Mount, hostapi.ErrInvalid)
		}
	}
	switch {
	case len(m.Volumes) >= maxVolumes:
		return fmt.Errorf("machine %s has %d volumes: %w", m.ID, len(m.Volumes), hostapi.ErrUnsupported)
	case req.ReadOnly:
		return nil
	case v.Frozen:
		return fmt.Errorf("volume %s is frozen: %w", v.ID, hostapi.ErrInvalid)
	case v.Machine != "" || req.Fence < v.Fence:
		return errVolumeInUse(v)
	}
	return nil
}

// attach attaches a volume that checkAttach admitted.
func (h *Host) attach(m *machine, req hostapi.VolumeAttachment) {
	v, dir := h.volumes[req.Volume], mountOf(m, req)
	m.state.mount(dir, h.volumeFiles(v), req.ReadOnly)
	m.Volumes = append(slices.Clone(m.Volumes), hostapi.AttachedVolume{
		Volume: v.ID, Mount: dir, ReadOnly: req.ReadOnly, Private: req.ReadOnly, SizeMiB: v.SizeMiB})
	if req.ReadOnly {
		return
	}
	v.Machine, v.Fence, v.files = m.ID, req.Fence, nil
	if v.Dirty {
		v.Dirty, v.Check = false, &hostapi.VolumeCheck{Time: time.Now(), Result: "clean"}
	}
}

// attachAll attaches the volumes of a new machine, or none.
func (h *Host) attachAll(m *machine, all []hostapi.VolumeAttachment) error {
	for i, req := range all {
		if err := h.checkAttach(m, req); err != nil {
			for _, before := range all[:i] {
				h.detach(m, before.Volume, false)
			}
			return err
		}
		h.attach(m, req)
	}
	return nil
}

// detach takes a volume from a machine. What the guest wrote is in it.
func (h *Host) detach(m *machine, id hostapi.VolumeID, dirty bool) {
	at, _ := m.attachment(id)
	if v := h.volumes[id]; v != nil && !at.Private && v.Machine == m.ID {
		v.files = m.state.below(at.Mount)
		v.Machine, v.Dirty, v.Written = "", dirty, time.Now()
	}
	m.state.unmount(at.Mount)
	m.Volumes = slices.DeleteFunc(slices.Clone(m.Volumes), func(a hostapi.AttachedVolume) bool {
		return a.Volume == id
	})
}

// detachAll takes all volumes from a machine that ends.
func (h *Host) detachAll(m *machine) {
	dirty := m.State == hostapi.Paused || m.State == hostapi.Failed
	for _, at := range m.Volumes {
		h.detach(m, at.Volume, dirty)
	}
}

// SetVolumeBusy makes programs of the guests use a volume, or ends that.
func (h *Host) SetVolumeBusy(id hostapi.VolumeID, busy bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.busyVolumes[id] = busy
}

// LoseVolume removes a volume as if its disk had been replaced.
func (h *Host) LoseVolume(id hostapi.VolumeID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.volumes, id)
}

// DetachVolume implements hostapi.VolumeHost.
func (h *Host) DetachVolume(
	ctx context.Context,
	id hostapi.MachineID,
	volume hostapi.VolumeID,
	force bool,
) (got hostapi.Machine, err error) {
	err = h.withMachine(ctx, "detachvolume", id, func(m *machine) error {
		if _, ok := m.attachment(volume); !ok {
			return fmt.Errorf("volume %s of machine %s: %w", volume, id, hostapi.ErrNotFound)
		}
		switch {
		case m.State != hostapi.Running && !force:
			return wrongState(m)
		case h.busyVolumes[volume] && !force:
			return fmt.Errorf("volume %s is used by programs: %w", volume, hostapi.ErrInUse)
		}
		dirty := m.State != hostapi.Running
		if dirty {
			m.stopGuest(hostapi.Hibernated)
			m.stopped = true
		}
		h.detach(m, volume, dirty)
		got = m.Machine
		return nil
	})
	return got, err
}

// backup is a backup of a volume in the object store.
type backup struct {
	hostapi.Backup
	files map[string]file
}

// BackupVolume implements hostapi.VolumeHost.
func (h *Host) BackupVolume(
	ctx context.Context,
	workspace string,
	id hostapi.VolumeID,
	name hostapi.BackupID,
	labels map[string]string,
) (out hostapi.BackupResult, err error) {
	err = h.withObjects(ctx, "backupvolume", string(name), func(o *Objects) error {
		v := h.volumes[id]
		if v == nil {
			return errNoVolume(id)
		}
		if known, ok := o.backups[workspace+"/"+string(name)]; ok {
			if known.Volume != id {
				return fmt.Errorf("backup %s is of volume %s: %w", name, known.Volume, hostapi.ErrExists)
			}
			out = hostapi.BackupResult{Moment: known.Moment, SizeMiB: known.SizeMiB, Stored: known.Stored}
			return nil
		}
		b := backup{files: h.volumeFiles(v)}
		moment := time.Now().Truncate(time.Microsecond)
		out = hostapi.BackupResult{Moment: moment, SizeMiB: v.SizeMiB, Took: time.Millisecond}
		for _, f := range b.files {
			out.Stored += int64(len(f.data))
		}
		out.Bytes, out.Uploaded = out.Stored, out.Stored
		b.Backup = hostapi.Backup{ID: name, Volume: id, SizeMiB: v.SizeMiB, Moment: out.Moment, Stored: out.Stored,
			Labels: maps.Clone(labels)}
		o.backups[workspace+"/"+string(name)] = b
		return nil
	})
	return out, err
}

// Backups implements hostapi.VolumeHost.
func (h *Host) Backups(ctx context.Context, workspace string) ([]hostapi.Backup, error) {
	all := []hostapi.Backup{}
	err := h.withObjects(ctx, "backups", workspace, func(o *Objects) error {
		for _, key := range slices.Sorted(maps.Keys(o.backups)) {
			if strings.HasPrefix(key, workspace+"/") {
				all = append(all, o.backups[key].Backup)
			}
		}
		return nil
	})
	return all, err
}

// RestoreVolume implements hostapi.VolumeHost.
func (h *Host) RestoreVolume(
	ctx context.Context,
	workspace string,
	name hostapi.BackupID,
	req hostapi.CreateVolume,
) (made hostapi.Volume, err error) {
	err = h.withObjects(ctx, "restorevolume", string(req.ID), func(o *Objects) error {
		b, ok := o.backups[workspace+"/"+string(name)]
		if !ok {
			return fmt.Errorf("backup %s: %w", name, hostapi.ErrNotFound)
		}
		made, err = h.addVolume(req, copyFiles(b.files), b.SizeMiB)
		return err
	})
	return made, err
}

// DeleteBackup implements hostapi.VolumeHost.
func (h *Host) DeleteBackup(ctx context.Context, workspace string, name hostapi.BackupID) error {
	return h.withObjects(ctx, "deletebackup", string(name), func(o *Objects) error {
		delete(o.backups, workspace+"/"+string(name))
		return nil
	})
}

// VolumeBackups lists the backups of all workspaces, as "workspace/id".
func (o *Objects) VolumeBackups() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(maps.Keys(o.backups))
}
