package machine

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/vmm"
)

// diskKind says whose a disk is, and so what starts, forks, snapshots and the end of a machine do with it.
type diskKind string

const (
	diskRoot   diskKind = "root"   // the guest's root file system
	diskData   diskKind = "data"   // a disk that the template brings beside it
	diskVolume diskKind = "volume" // a disk that outlives the machine and is only attached to it
)

// ownedByMachine reports whether disks of the kind are files in the machine's directory. They are cloned for its
// children and snapshots, and removed with it. No operation clones or removes another disk.
func (k diskKind) ownedByMachine() bool { return k == diskRoot || k == diskData }

// disk is one disk of a machine.
type disk struct {
	kind    diskKind
	path    string
	sizeMiB int
	mount   string // where the guest mounts it; "": the guest agent does not
	options []string
}

// disks returns a machine's disks in the guest's order: the root disk, then the data disks.
func (mc *machine) disks() []disk {
	paths := snapshot.DiskPaths(mc.dir, mc.rec.Data)
	all := []disk{{kind: diskRoot, path: paths[0], sizeMiB: mc.rec.DiskMiB}}
	for i, d := range mc.rec.Data {
		all = append(all, disk{kind: diskData, path: paths[i+1], sizeMiB: d.MiB, mount: d.Mount, options: d.Options})
	}
	return all
}

// ownPaths returns the paths of the disks that belong to the machine, in order.
func ownPaths(disks []disk) []string {
	var paths []string
	for _, d := range disks {
		if d.kind.ownedByMachine() {
			paths = append(paths, d.path)
		}
	}
	return paths
}

// ownDiskPaths returns the paths of the disks that belong to the machine, in the order of a snapshot's.
func (mc *machine) ownDiskPaths() []string { return ownPaths(mc.disks()) }

// diskSpecs returns the disks of a machine's monitor.
func (mc *machine) diskSpecs(rate vmm.Rate) []vmm.Disk {
	var specs []vmm.Disk
	for _, d := range mc.disks() {
		// A machine that is not persistent does not survive a crash of the host, so its own disks need not. One that
		// is made persistent while it runs has disks that keep what the guest flushed from its next start on.
		volatile := d.kind.ownedByMachine() && !mc.rec.Persistent
		specs = append(specs, vmm.Disk{Path: d.path, Volatile: volatile, Rate: rate})
	}
	if mc.lazy != nil {
		for i, path := range mc.lazy.DiskPaths() {
			specs[i].Path = path
		}
	}
	return specs
}

// mounts returns what the guest of a machine mounts when it boots.
func (mc *machine) mounts() []guestapi.Mount {
	var all []guestapi.Mount
	for i, d := range mc.disks() {
		if d.mount != "" {
			all = append(all, guestapi.Mount{Disk: i, Dir: d.mount, Options: d.options})
		}
	}
	return all
}

// cloneDisks gives a new machine its disks: clones of sources, the root disk larger if the plan says so.
func (m *Manager) cloneDisks(mc *machine, sources []string, plan startPlan) error {
	own := mc.ownDiskPaths()
	if len(sources) != len(own) {
		return fmt.Errorf("clone the disks: got %d sources for %d disks", len(sources), len(own))
	}
	for i, src := range sources {
		if err := m.deps.Disks.Clone(src, own[i]); err != nil {
			return fmt.Errorf("clone the disk: %w", err)
		}
		if err := os.Chmod(own[i], 0o600); err != nil {
			return err
		}
	}
	if plan.growDisk {
		if err := m.deps.Disks.Grow(own[0], int64(plan.diskMiB)*mib); err != nil {
			return fmt.Errorf("grow the disk: %w", err)
		}
	}
	return nil
}

// allocateDisks gives a new machine empty disks of its own.
func (m *Manager) allocateDisks(mc *machine) error {
	for _, d := range mc.disks() {
		if !d.kind.ownedByMachine() {
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
	from := parent.ownDiskPaths()
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
	to := draft.DiskPaths(mc.rec.Data)
	for i, path := range mc.ownDiskPaths() {
		if err := m.deps.Disks.Clone(path, to[i]); err != nil {
			return fmt.Errorf("clone the disk: %w", err)
		}
	}
	return nil
}

// syncDisks makes the content of a machine's disks durable.
func (mc *machine) syncDisks() error {
	var err error
	for _, d := range mc.disks() {
		err = errors.Join(err, durable.Sync(d.path))
	}
	return err
}
