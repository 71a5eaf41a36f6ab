package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/vmm"
)

// diskKind says whose a disk is, and so what starts, forks, snapshots and the end of a machine do with it.
type diskKind string

const (
	diskRoot   diskKind = "root"   // the guest's root file system
	diskData   diskKind = "data"   // a disk that the template brings beside it, or a private copy of a volume
	diskVolume diskKind = "volume" // a disk that outlives the machine and is only attached to it
	diskPlace  diskKind = "place"  // a drive without content, which a volume can take the place of
)

// ownedByMachine reports whether disks of the kind are files in the machine's directory with content. They are cloned
// for its children and snapshots, and removed with it. No operation removes another disk.
func (k diskKind) ownedByMachine() bool { return k == diskRoot || k == diskData }

// captured reports whether disks of the kind belong to what a guest is at a moment: snapshots and children have
// clones of them.
func (k diskKind) captured() bool { return k.ownedByMachine() || k == diskVolume }

// disk is one disk of a machine.
type disk struct {
	kind    diskKind
	path    string
	sizeMiB int
	index   int    // of its source among the disks of a snapshot: 0 is the root disk, others are those of record.Data
	mount   string // where the guest mounts it; "": the guest agent does not
	options []string
	place   int              // for volumes, from 1; 0: it is none
	volume  hostapi.VolumeID // that it is, or is a private copy of
	ro      bool
}

// disks returns a machine's disks in the guest's order: the root disk, the data disks, then the places for volumes.
func (mc *machine) disks() []disk {
	in, paths := mc.rec, snapshot.DiskPaths(mc.dir, mc.rec.Data)
	all := []disk{{kind: diskRoot, path: paths[0], sizeMiB: in.DiskMiB}}
	places := make([]disk, in.Places)
	for i := range places {
		places[i] = disk{kind: diskPlace, path: filepath.Join(mc.dir, fmt.Sprintf(placeFile, i+1)), place: i + 1}
	}
	for i, d := range in.Data {
		one := disk{
			kind: diskData, path: paths[i+1], sizeMiB: d.MiB, index: i + 1, mount: d.Mount, options: d.Options,
			place: d.Place, volume: hostapi.VolumeID(d.Volume), ro: d.ReadOnly,
		}
		if d.Place > 0 && d.Place <= len(places) {
			places[d.Place-1] = one
			continue
		}
		for _, v := range in.Volumes {
			if v.Disk != "" && v.Disk == d.Name {
				one.kind, one.path, one.sizeMiB, one.volume = diskVolume, mc.volumePath(v.ID), v.MiB, v.ID
			}
		}
		all = append(all, one)
	}
	for _, v := range in.Volumes {
		if v.Place > 0 && v.Place <= len(places) {
			places[v.Place-1] = disk{kind: diskVolume, path: mc.volumePath(v.ID), sizeMiB: v.MiB, mount: v.Mount,
				place: v.Place, volume: v.ID}
		}
	}
	return append(all, places...)
}

// ownPaths returns the paths of the disks that belong to the machine, in order.
func ownPaths(disks []disk) []string { return pathsOf(disks, diskKind.ownedByMachine) }

func pathsOf(disks []disk, of func(diskKind) bool) []string {
	var paths []string
	for _, d := range disks {
		if of(d.kind) {
			paths = append(paths, d.path)
		}
	}
	return paths
}

// ownDiskPaths returns the paths of the disks that belong to the machine, in the guest's order.
func (mc *machine) ownDiskPaths() []string { return ownPaths(mc.disks()) }

// snapshotDiskPaths returns the paths of the machine's own disks that are those of its snapshot, in the order of the
// snapshot's.
func (mc *machine) snapshotDiskPaths(snap snapshot.Snapshot) []string {
	paths := make([]string, 1+len(snap.Data))
	for _, d := range mc.disks() {
		if d.kind.ownedByMachine() && d.index < len(paths) {
			paths[d.index] = d.path
		}
	}
	return paths
}

// captured returns the paths of the disks of which snapshots and children have clones, in the guest's order, and what
// those are without the root disk.
func (mc *machine) captured() (paths []string, data []snapshot.DataDisk) {
	for _, d := range mc.disks() {
		if !d.kind.captured() {
			continue
		}
		paths = append(paths, d.path)
		switch {
		case d.kind == diskVolume && d.place > 0:
			data = append(data, snapshot.DataDisk{
				Name: snapshot.PlaceName(d.place), MiB: d.sizeMiB, Mount: d.mount, Place: d.place,
				Volume: string(d.volume),
			})
		case d.kind != diskRoot:
			one := mc.rec.Data[d.index-1]
			one.MiB, one.Volume = d.sizeMiB, string(d.volume)
			data = append(data, one)
		}
	}
	return paths, data
}

// diskSpecs returns the disks of a machine's monitor.
func (mc *machine) diskSpecs(rate vmm.Rate) []vmm.Disk {
	var specs []vmm.Disk
	var lazy []string
	if mc.lazy != nil {
		lazy = mc.lazy.DiskPaths()
	}
	for _, d := range mc.disks() {
		// A machine that is not persistent does not survive a crash of the host, so its own disks need not. One that
		// is made persistent while it runs has disks that keep what the guest flushed from its next start on.
		volatile := d.kind.ownedByMachine() && !mc.rec.Persistent
		path := d.path
		if d.kind.ownedByMachine() && d.index < len(lazy) {
			path = lazy[d.index]
		}
		specs = append(specs, vmm.Disk{Path: path, Volatile: volatile, Empty: d.kind == diskPlace, Rate: rate})
	}
	return specs
}

// mounts returns what the guest of a machine mounts when it boots, without volumes.
func (mc *machine) mounts() []guestapi.Mount {
	var all []guestapi.Mount
	for i, d := range mc.disks() {
		if d.mount != "" && d.kind == diskData && d.place == 0 {
			all = append(all, guestapi.Mount{Disk: i, Dir: d.mount, Options: d.options})
		}
	}
	return all
}

// cloneDisks gives a new machine its disks: clones of sources, the root disk larger if the plan says so.
func (m *Manager) cloneDisks(mc *machine, sources []string, plan startPlan) error {
	disks := mc.disks()
	for _, d := range disks {
		if !d.kind.ownedByMachine() || d.index >= len(sources) { // a private copy of a volume is there already
			continue
		}
		if err := m.deps.Disks.Clone(sources[d.index], d.path); err != nil {
			return fmt.Errorf("clone the disk: %w", err)
		}
		if err := os.Chmod(d.path, 0o600); err != nil {
			return err
		}
	}
	if plan.growDisk {
		if err := m.deps.Disks.Grow(disks[0].path, int64(plan.diskMiB)*mib); err != nil {
			return fmt.Errorf("grow the disk: %w", err)
		}
	}
	return nil
}

// allocateDisks gives a new machine empty disks of its own, as many as its source has.
func (m *Manager) allocateDisks(mc *machine, sources int) error {
	for _, d := range mc.disks() {
		if !d.kind.ownedByMachine() || d.index >= sources {
			continue
		}
		if err := m.deps.Disks.Allocate(d.path, int64(d.sizeMiB)*mib); err != nil {
			return fmt.Errorf("allocate a disk: %w", err)
		}
	}
	return nil
}

// cloneIntoChildren clones the parent's disks into the files that the children's monitors have open already.
func (m *Manager) cloneIntoChildren(parent *machine, children []forkChild) error {
	var g errgroup.Group
	g.SetLimit(m.cfg.Parallel)
	from, _ := parent.captured()
	for _, c := range children {
		if c.err != nil {
			continue
		}
		for n, path := range c.launch.mc.ownDiskPaths() {
			g.Go(func() error {
				f, err := os.OpenFile(path, os.O_WRONLY, 0)
				if err != nil {
					return err
				}
				return errors.Join(m.deps.Disks.CloneInto(from[n], f), f.Close())
			})
		}
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("clone the disk: %w", err)
	}
	return nil
}

// cloneIntoDraft clones a machine's disks into a draft of a snapshot.
func (m *Manager) cloneIntoDraft(mc *machine, draft *snapshot.Draft) error {
	paths, data := mc.captured()
	to := draft.DiskPaths(data)
	for i, path := range paths {
		if err := m.deps.Disks.Clone(path, to[i]); err != nil {
			return fmt.Errorf("clone the disk: %w", err)
		}
	}
	return nil
}

// syncDisks makes the content of a machine's disks durable.
func (m *Manager) syncDisks(mc *machine) error {
	var err error
	for _, path := range pathsOf(mc.disks(), diskKind.captured) {
		err = errors.Join(err, m.deps.Disks.Sync(path))
	}
	return err
}
