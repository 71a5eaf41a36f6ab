package machine

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/vmm"
)

// diskPaths are the files of a machine's disks, in the guest's order: its root disk, then its data disks.
func (mc *machine) diskPaths() []string { return snapshot.DiskPaths(mc.dir, mc.rec.Data) }

// diskSpecs are what a machine's monitor has as disks.
func (mc *machine) diskSpecs(rate vmm.Rate) []vmm.Disk {
	paths := mc.diskPaths()
	if mc.lazy != nil {
		paths = mc.lazy.DiskPaths()
	}
	disks := make([]vmm.Disk, len(paths))
	for i, path := range paths {
		// A machine that is not kept is gone after a crash of the host. One that is to be kept while it
		// runs has disks that do not lose what the guest flushed from its next start on.
		disks[i] = vmm.Disk{Path: path, Volatile: !mc.rec.Persistent, Rate: rate}
	}
	return disks
}

// mounts are what the guest of a machine that boots cold mounts.
func (mc *machine) mounts() []guestapi.Mount {
	var all []guestapi.Mount
	for i, d := range mc.rec.Data {
		all = append(all, guestapi.Mount{Disk: i + 1, Dir: d.Mount, Options: d.Options})
	}
	return all
}

// cloneDisks gives a new machine its disks: clones of sources, the root disk grown if asked for.
func (m *Manager) cloneDisks(p *operation, mc *machine, sources []string, how startPlan) error {
	own := mc.diskPaths()
	if len(sources) != len(own) {
		return fmt.Errorf("clone the disks: there are %d for %d", len(sources), len(own))
	}
	for i, src := range sources {
		if err := m.deps.Disks.Clone(src, own[i]); err != nil {
			return fmt.Errorf("clone the disk: %w", err)
		}
		if err := os.Chmod(own[i], 0o600); err != nil {
			return err
		}
	}
	if how.grow {
		if err := m.deps.Disks.Grow(own[0], int64(how.diskMiB)*mib); err != nil {
			return fmt.Errorf("grow the disk: %w", err)
		}
	}
	return p.done("disk")
}

// allocateDisks gives a new machine empty disks.
func (m *Manager) allocateDisks(mc *machine, how startPlan) error {
	for i, path := range mc.diskPaths() {
		size := how.diskMiB
		if i > 0 {
			size = mc.rec.Data[i-1].MiB
		}
		if err := m.deps.Disks.Allocate(path, int64(size)*mib); err != nil {
			return fmt.Errorf("allocate a disk: %w", err)
		}
	}
	return nil
}

// cloneIntoChildren clones the parent's disks into the files that the children's monitors have open already.
func (m *Manager) cloneIntoChildren(parent *machine, kids []forkChild) error {
	var g errgroup.Group
	g.SetLimit(m.cfg.Parallel)
	from := parent.diskPaths()
	for i := range kids {
		if kids[i].err != nil {
			continue
		}
		for n, path := range kids[i].mc.diskPaths() {
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

// cloneIntoDraft clones a machine's disks into a draft.
func (m *Manager) cloneIntoDraft(mc *machine, draft *snapshot.Draft) error {
	to := draft.DiskPaths(mc.rec.Data)
	for i, path := range mc.diskPaths() {
		if err := m.deps.Disks.Clone(path, to[i]); err != nil {
			return fmt.Errorf("clone the disk: %w", err)
		}
	}
	return nil
}

// syncDisks makes what a machine's disks hold durable.
func (mc *machine) syncDisks() error {
	var err error
	for _, path := range mc.diskPaths() {
		err = errors.Join(err, durable.Sync(path))
	}
	return err
}

// dataDisks are data disks as others see them.
func dataDisks(all []snapshot.DataDisk) []hostapi.DataDisk {
	var out []hostapi.DataDisk
	for _, d := range all {
		out = append(out, hostapi.DataDisk{Name: d.Name, SizeMiB: d.MiB, Mount: d.Mount})
	}
	return out
}
