package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// A machine has a number of drives behind its disks, places, to which it attaches volumes. They are in its template's
// snapshot, so that a machine with volumes is restored like any other: the file of a volume takes the place of that of
// the drive before the guest runs, and the guest learns of the new size and mounts it before its workload continues.
//
// The writer of a volume has its file; the record names it, and the volume's own record the machine. A read-only
// attachment is a private copy, a disk of the machine's own. So is what children and snapshots have of the volumes of
// their source.

// placeFile is the name of the file of a drive without a volume.
const placeFile = "place-%d.img"

// placeBytes is the size of such a drive.
const placeBytes = 4096

// volumeRecord is a volume that a machine writes to.
type volumeRecord struct {
	ID    hostapi.VolumeID `json:"id"`
	Place int              `json:"place,omitempty"` // from 1; 0: that of the data disk Disk
	Disk  string           `json:"disk,omitempty"`
	Mount string           `json:"mount"`
	Fence uint64           `json:"fence"`
	MiB   int              `json:"mib"`
	Count uint64           `json:"count"` // of the volume, since the machine became its writer
}

// attached returns the volumes of a machine and its private copies.
func (in record) attached() []hostapi.AttachedVolume {
	var all []hostapi.AttachedVolume
	for _, v := range in.Volumes {
		all = append(all, hostapi.AttachedVolume{Volume: v.ID, Mount: v.Mount, SizeMiB: v.MiB})
	}
	for _, d := range in.Data {
		if d.Volume != "" && !slices.ContainsFunc(in.Volumes, func(v volumeRecord) bool { return v.Disk == d.Name }) {
			all = append(all, hostapi.AttachedVolume{
				Volume: hostapi.VolumeID(d.Volume), Mount: d.Mount, ReadOnly: d.ReadOnly, Private: true, SizeMiB: d.MiB,
			})
		}
	}
	return all
}

func (mc *machine) volumePath(id hostapi.VolumeID) string {
	if mc.volumes == nil {
		return filepath.Join(mc.dir, "no-volume") // a machine of a host without volumes has none
	}
	return mc.volumes.Path(id)
}

// makePlaces makes the files of drives without volumes.
func makePlaces(mc *machine) error {
	for _, d := range mc.disks() {
		if d.kind != diskPlace {
			continue
		}
		f, err := os.OpenFile(d.path, os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Truncate(placeBytes), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// privateCopy is a copy of a volume that was made for a machine, outside its directory.
type privateCopy struct {
	path  string
	place int
	check bool
}

// volumesRequest is what is to be attached to a machine.
type volumesRequest struct {
	copies []privateCopy
	places []int    // all places that are attached
	disks  []string // names of data disks that volumes take the place of
}

// planVolumes puts the requested volumes into the record of a new machine. It makes the private copies, since no other
// machine may be waited for once this one is owned.
func (m *Manager) planVolumes(ctx context.Context, l *launch, all []hostapi.VolumeAttachment) error {
	for _, a := range all {
		var made privateCopy
		var err error
		if a.ReadOnly {
			made, err = m.copyForMachine(ctx, l.op, a.Volume)
		}
		if err == nil {
			err = m.planVolume(&l.rec, &l.volumes, a, made, l.snap)
		}
		if err != nil {
			return fmt.Errorf("volume %s: %w", a.Volume, err)
		}
	}
	return nil
}

// copyForMachine makes a private copy of a volume, which is removed with the operation unless a machine takes it.
func (m *Manager) copyForMachine(ctx context.Context, op *operation, id hostapi.VolumeID) (privateCopy, error) {
	if m.deps.Volumes == nil {
		return privateCopy{}, errNoVolumes
	}
	path, of, remove, err := m.CopyVolume(ctx, id)
	if err != nil {
		return privateCopy{}, err
	}
	op.cleanup.Push("remove the copy of a volume", func(context.Context) error { return remove() })
	return privateCopy{path: path, check: of.Dirty}, nil
}

// errNoVolumes is the error of a host without volumes.
var errNoVolumes = fmt.Errorf("this host has no volumes: %w", hostapi.ErrUnsupported)

// planVolume puts a volume into the record of a machine; made is its private copy, if it is read-only.
func (m *Manager) planVolume(in *record, req *volumesRequest, a hostapi.VolumeAttachment, made privateCopy,
	snap snapshot.Snapshot) error {
	if m.deps.Volumes == nil {
		return errNoVolumes
	}
	of, err := m.deps.Volumes.Get(a.Volume)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(in.attached(), func(v hostapi.AttachedVolume) bool { return v.Volume == a.Volume }) {
		return fmt.Errorf("it is attached to this machine, or a copy of it is: %w", hostapi.ErrInUse)
	}
	in.Data, in.Volumes = slices.Clone(in.Data), slices.Clone(in.Volumes)
	if a.Disk != "" {
		return planDiskVolume(in, req, a, of.SizeMiB, of.Source, snap)
	}
	if err := in.checkVolumeMount(a.Mount); err != nil {
		return err
	}
	place := in.freePlace()
	if place == 0 {
		return fmt.Errorf("the machine has %d places for volumes, and none is free: %w", in.Places,
			hostapi.ErrUnsupported)
	}
	req.places = append(req.places, place)
	if !a.ReadOnly {
		in.Volumes = append(in.Volumes,
			volumeRecord{ID: a.Volume, Place: place, Mount: a.Mount, Fence: a.Fence, MiB: of.SizeMiB})
		return nil
	}
	made.place = place
	req.copies = append(req.copies, made)
	in.Data = append(in.Data, snapshot.DataDisk{
		Name: snapshot.PlaceName(place), MiB: of.SizeMiB, Mount: a.Mount, Place: place, Volume: string(a.Volume),
		ReadOnly: true,
	})
	return nil
}

// planDiskVolume plans a volume in place of a data disk of a template: a copy of that disk without a writer so far,
// since the memory of the template has it mounted.
func planDiskVolume(in *record, req *volumesRequest, a hostapi.VolumeAttachment, sizeMiB int, source string,
	snap snapshot.Snapshot) error {
	i := slices.IndexFunc(in.Data, func(d snapshot.DataDisk) bool { return d.Name == a.Disk && d.Place == 0 })
	switch {
	case i < 0:
		return fmt.Errorf("the template has no data disk %q: %w", a.Disk, hostapi.ErrInvalid)
	case a.ReadOnly || a.Mount != "":
		return fmt.Errorf("a volume in place of a data disk is writable, where that is mounted: %w", hostapi.ErrInvalid)
	case snap.RemoteBacked():
		return fmt.Errorf("the template is not completely downloaded to this host yet: %w", hostapi.ErrUnsupported)
	case source != DiskSource(snap.Ref, a.Disk):
		return fmt.Errorf("it is no untouched copy of disk %q of the template as it is baked; make a new one: %w",
			a.Disk, hostapi.ErrInvalid)
	}
	in.Volumes = append(in.Volumes,
		volumeRecord{ID: a.Volume, Disk: a.Disk, Mount: in.Data[i].Mount, Fence: a.Fence, MiB: sizeMiB})
	req.disks = append(req.disks, a.Disk)
	return nil
}

// DiskSource names a data disk of a snapshot, for volume.Request.
func DiskSource(ref snapshot.Ref, disk string) string { return string(ref) + "/" + disk }

// freePlace returns a place without a volume; 0: there is none.
func (in record) freePlace() int {
	for place := 1; place <= in.Places; place++ {
		taken := slices.ContainsFunc(in.Volumes, func(v volumeRecord) bool { return v.Place == place }) ||
			slices.ContainsFunc(in.Data, func(d snapshot.DataDisk) bool { return d.Place == place })
		if !taken {
			return place
		}
	}
	return 0
}

// checkVolumeMount returns ErrInvalid unless a volume can be mounted at dir beside the other disks of the machine.
func (in record) checkVolumeMount(dir string) error {
	if !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" {
		return fmt.Errorf("mount point %q is not a clean absolute path below /: %w", dir, hostapi.ErrInvalid)
	}
	for _, v := range in.Volumes {
		if v.Mount == dir {
			return fmt.Errorf("volume %s is mounted at %s: %w", v.ID, dir, hostapi.ErrInvalid)
		}
	}
	for _, d := range in.Data {
		if d.Mount == dir {
			return fmt.Errorf("disk %s is mounted at %s: %w", d.Name, dir, hostapi.ErrInvalid)
		}
	}
	return nil
}

// attachVolumes makes the machine the writer of its volumes and moves its private copies to it. A machine at rest is
// their writer already; if one has had another since, the machine's memory does not fit.
func (l *launch) attachVolumes(context.Context) error {
	m, mc := l.m, l.mc
	if m.deps.Volumes == nil {
		return errNoVolumes
	}
	for _, c := range l.volumes.copies {
		if err := os.Rename(c.path, filepath.Join(mc.dir, placeDiskFile(c.place))); err != nil {
			return err
		}
	}
	for i, v := range mc.rec.Volumes {
		now, err := m.deps.Volumes.Attach(v.ID, mc.id, v.Fence)
		if err != nil {
			return err
		}
		if v.Count != 0 && v.Count != now.Count {
			return fmt.Errorf("volume %s had another writer since the machine ran: %w", v.ID, hostapi.ErrWrongState)
		}
		if v.Count == 0 {
			l.op.cleanup.Push("detach volume", func(context.Context) error {
				return m.deps.Volumes.Detach(v.ID, mc.id, false)
			})
		}
		if err := l.op.done("lease"); err != nil {
			return err
		}
		mc.set(func() {
			mc.rec.Volumes = slices.Clone(mc.rec.Volumes)
			mc.rec.Volumes[i].Count, mc.rec.Volumes[i].MiB = now.Count, now.SizeMiB
		})
	}
	return nil
}

func placeDiskFile(place int) string {
	return snapshot.DataDisk{Name: snapshot.PlaceName(place), Place: place}.File()
}

// beginVolumes records that the guest may write to the volumes from here on, and returns those that it mounts.
func (l *launch) beginVolumes() ([]guestapi.VolumeMount, error) {
	mc := l.mc
	boots := l.plan.method.guestBoots()
	for i, d := range mc.disks() {
		check := boots // a private copy of a machine that has run
		if d.kind == diskVolume {
			before, err := l.m.deps.Volumes.MarkDirty(d.volume, mc.id)
			if err != nil {
				return nil, err
			}
			check = before.Dirty
		}
		if c := slices.IndexFunc(l.volumes.copies, func(c privateCopy) bool { return c.place == d.place }); c >= 0 {
			check = l.volumes.copies[c].check
		}
		fresh := d.place > 0 && slices.Contains(l.volumes.places, d.place)
		if d.volume == "" || d.kind == diskPlace || !fresh && !boots {
			continue
		}
		if d.kind == diskData && d.place == 0 { // a child's copy of a volume in place of a data disk: see mounts
			continue
		}
		l.mount = append(l.mount, guestapi.VolumeMount{
			Disk: i, Dir: d.mount, ReadOnly: d.ro, Bytes: int64(d.sizeMiB) * mib, Check: check,
		})
	}
	if len(mc.rec.Volumes) > 0 { // the fences and counts, before the guest runs
		return l.mount, l.m.writeRecord(mc, surviveProcess, mc.rec)
	}
	return l.mount, nil
}

// finishVolumes records what checks of volumes found, and lets file systems grow of volumes that grew at rest.
func (l *launch) finishVolumes(ctx context.Context) error {
	mc := l.mc
	for _, v := range l.mount {
		if err := l.m.recordCheck(ctx, mc, v); err != nil {
			return err
		}
	}
	if l.plan.method != methodWake {
		return nil
	}
	known := l.snap.Manifest.DiskBytes
	for i, d := range mc.disks() {
		bytes := int64(d.sizeMiB) * mib
		if d.kind != diskVolume || i < len(known) && known[i] == bytes {
			continue
		}
		if err := l.m.growInGuest(ctx, mc, i, d); err != nil {
			return err
		}
	}
	return nil
}

// recordCheck stores what the check of a volume found that was just mounted.
func (m *Manager) recordCheck(ctx context.Context, mc *machine, v guestapi.VolumeMount) error {
	d := mc.disks()[v.Disk]
	if !v.Check || d.kind != diskVolume {
		return nil
	}
	report, err := mc.link.Volume(ctx, guestapi.VolumeRequest{Action: guestapi.VolumeLastCheck, Volume: v})
	if err != nil {
		return fmt.Errorf("check of volume %s: %w", d.volume, err)
	}
	result := map[guestapi.CheckResult]string{
		guestapi.CheckClean: "clean", guestapi.CheckRepaired: "repaired", guestapi.CheckDamaged: "damaged",
	}[report.Check]
	if result == "" { // the image has no e2fsck: the kernel has replayed the journal
		result = "clean"
	}
	return m.deps.Volumes.SetCheck(d.volume,
		hostapi.VolumeCheck{Time: time.Now().UTC(), Result: result, Log: report.Log})
}

// noteDamage records that a guest could not mount a volume because its file system is damaged, if that is err.
func (m *Manager) noteDamage(mc *machine, mounts []guestapi.VolumeMount, err error) error {
	if !errors.Is(err, guestapi.ErrDamaged) {
		return err
	}
	for _, v := range mounts {
		if d := mc.disks()[v.Disk]; v.Check && d.kind == diskVolume && len(mounts) == 1 {
			err = errors.Join(err, m.deps.Volumes.SetCheck(d.volume,
				hostapi.VolumeCheck{Time: time.Now().UTC(), Result: "damaged", Log: err.Error()}))
		}
	}
	return err
}

// checkWriter returns an error if a volume of a machine had another writer since the machine ran.
func (m *Manager) checkWriter(mc *machine) error {
	for _, v := range mc.rec.Volumes {
		now, err := m.deps.Volumes.Get(v.ID)
		if err == nil && (now.Machine != mc.id || now.Count != v.Count) {
			err = fmt.Errorf("volume %s had another writer since the machine ran: %w", v.ID, hostapi.ErrWrongState)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// growVolumes makes the disks of volumes as large as they are recorded: an image may have them as they were.
func (m *Manager) growVolumes(mc *machine) error {
	for _, d := range mc.disks() {
		if d.kind != diskVolume {
			continue
		}
		if err := m.deps.Disks.Grow(d.path, int64(d.sizeMiB)*mib); err != nil {
			return fmt.Errorf("grow volume %s: %w", d.volume, err)
		}
	}
	return nil
}

// growInGuest lets the guest grow the file system of a volume to its disk.
func (m *Manager) growInGuest(ctx context.Context, mc *machine, n int, d disk) error {
	link, err := m.ensureLink(ctx, mc)
	if err != nil {
		return err
	}
	_, err = link.Volume(ctx, guestapi.VolumeRequest{
		Action: guestapi.VolumeGrow, Volume: guestapi.VolumeMount{Disk: n, Bytes: int64(d.sizeMiB) * mib},
	})
	if errors.Is(err, guestapi.ErrNotFound) { // a program of the guest has unmounted it
		return nil
	}
	if err != nil {
		return fmt.Errorf("grow the file system of volume %s: %w", d.volume, err)
	}
	return nil
}

// syncVolumes asks the guest of a running machine to write back its volumes.
func (m *Manager) syncVolumes(ctx context.Context, mc *machine) error {
	for i, d := range mc.disks() {
		if d.kind != diskVolume {
			continue
		}
		if err := m.syncVolume(ctx, mc, i); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) syncVolume(ctx context.Context, mc *machine, n int) error {
	link, err := m.ensureLink(ctx, mc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, m.cfg.FreezeTimeout+m.cfg.SyncTimeout,
		errors.New("the guest did not write back a volume in time"))
	defer cancel()
	_, err = link.Volume(ctx,
		guestapi.VolumeRequest{Action: guestapi.VolumeSync, Volume: guestapi.VolumeMount{Disk: n}})
	if err != nil && !errors.Is(err, guestapi.ErrNotFound) {
		return fmt.Errorf("write back the volume: %w", err)
	}
	return nil
}

// unmountVolumes unmounts the volumes of a running machine that is about to end, if its guest replies in time: what
// programs wrote is then complete.
func (m *Manager) unmountVolumes(ctx context.Context, mc *machine) {
	if mc.rec.State != running || mc.waiting() != nil || len(mc.rec.Volumes) == 0 || !linkOpen(mc.link) {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, m.cfg.FreezeTimeout, errNoReply)
	defer cancel()
	mc.unmounted = map[hostapi.VolumeID]bool{}
	for i, d := range mc.disks() {
		if d.kind != diskVolume {
			continue
		}
		report, err := mc.link.Volume(ctx, guestapi.VolumeRequest{
			Action: guestapi.VolumeUnmount, Volume: guestapi.VolumeMount{Disk: i}, Force: true,
		})
		if err != nil {
			m.log.Warn("volume not unmounted", "machine", mc.id, "volume", d.volume, "err", err)
		}
		mc.unmounted[d.volume] = err == nil && report.Clean
	}
}

// detachVolumes ends a machine's access to its volumes. Its monitor has ended.
func (m *Manager) detachVolumes(op *operation, mc *machine) error {
	for _, v := range mc.rec.Volumes {
		if m.deps.Volumes == nil {
			return fmt.Errorf("volume %s: this host has no volumes: %w", v.ID, hostapi.ErrUnsupported)
		}
		err := m.deps.Disks.Sync(mc.volumePath(v.ID)) // of a clean volume nothing may be lost in a crash of the host
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		if err = errors.Join(err, m.deps.Volumes.Detach(v.ID, mc.id, mc.unmounted[v.ID])); err != nil {
			return fmt.Errorf("detach volume %s: %w", v.ID, err)
		}
		if err := op.done("detach"); err != nil {
			return err
		}
	}
	return nil
}

// sweepVolumes detaches the volumes of machines that are gone. Those of a machine that was left alone stay its own.
func (m *Manager) sweepVolumes() error {
	if m.deps.Volumes == nil {
		return nil
	}
	return m.deps.Volumes.Sweep(func(id hostapi.MachineID, volume hostapi.VolumeID) bool {
		mc := m.find(id)
		if mc == nil {
			_, err := os.Stat(filepath.Join(m.cfg.Dir, string(id)))
			return err == nil
		}
		mc.mu.Lock()
		defer mc.mu.Unlock()
		return slices.ContainsFunc(mc.rec.Volumes, func(v volumeRecord) bool { return v.ID == volume })
	})
}
