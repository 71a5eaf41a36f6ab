package machine

import (
	"fmt"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// Disks of machines are sparse files of a fixed size that share the blocks of their template. Two bounds apply beside
// the levels of the space keeper: the sizes of all disks together stay within the file system times
// Config.DiskOvercommit, and what the machines of a group have written stays within the bound of SetGroupBounds.
//
// The second is measured, not enforced by quotas of the file system: those count the shared blocks of a clone in full
// for each clone, a file belongs to one of them, and not every kernel has them. So a group can exceed its bound by what
// it writes in about a second.

// SetGroupBounds replaces the bounds of groups.
func (m *Manager) SetGroupBounds(bounds hostapi.GroupBounds) { m.bounds.Store(&bounds) }

// groupBounds returns the bounds of groups.
func (m *Manager) groupBounds() hostapi.GroupBounds {
	if b := m.bounds.Load(); b != nil {
		return *b
	}
	return hostapi.GroupBounds{}
}

// requirePromise returns ErrNoSpace, with the numbers, if the disks of all machines are larger than what may be
// promised, or the group of a machine that is to be made has used up its part. The machine is in the list.
func (m *Manager) requirePromise(mc *machine) error {
	all := m.allMachines()
	if use := groupUse(all); m.groupOver(mc, use) {
		return fmt.Errorf("machine %s: the disks of its group take %d MiB, and %d MiB are allowed: %w",
			mc.id, use[mc.group]/mib, m.groupBounds().Of(mc.group), hostapi.ErrNoSpace)
	}
	if m.cfg.DiskOvercommit == 0 {
		return nil
	}
	total, _, err := m.cfg.FreeSpace(m.cfg.Dir)
	if err != nil {
		return err
	}
	promised := int64(0)
	for _, one := range all {
		promised += one.diskSize()
	}
	if limit := total * int64(m.cfg.DiskOvercommit); promised > limit {
		return fmt.Errorf("machine %s: with it the disks of all machines have %d MiB, and %d MiB may be promised, "+
			"%d times the file system of %s; delete machines or ask for a smaller disk: %w",
			mc.id, promised/mib, limit/mib, m.cfg.DiskOvercommit, m.cfg.Dir, hostapi.ErrNoSpace)
	}
	return nil
}

// diskSize returns the size of a machine's disks, as its guest sees them, in bytes.
func (mc *machine) diskSize() int64 {
	mc.mu.Lock()
	defer mc.mu.Unlock()
	sum := int64(mc.rec.DiskMiB)
	for _, d := range mc.rec.Data {
		sum += int64(d.MiB)
	}
	return sum * mib
}

// groupUse returns how many bytes the machines of each group take, as last measured.
func groupUse(all []*machine) map[string]int64 {
	use := map[string]int64{}
	for _, mc := range all {
		mc.mu.Lock()
		if mc.group != "" {
			use[mc.group] += mc.diskBytes
		}
		mc.mu.Unlock()
	}
	return use
}

// groupOver reports whether the group of a machine takes as much as it may.
func (m *Manager) groupOver(mc *machine, use map[string]int64) bool {
	bound := m.groupBounds().Of(mc.group)
	return mc.group != "" && bound > 0 && use[mc.group] >= bound*mib
}

// In intervals of the space keeper: the time between measurements for the bound of groups, when one has used more than
// half of it and when none has.
const (
	groupNearInterval = 5
	groupFarInterval  = 50
)

// groupsDue reports whether it is time to measure the machines for the bound of groups.
func (k *spaceKeeper) groupsDue() bool {
	if k.m.groupBounds().IsZero() {
		return false
	}
	wait := groupFarInterval * k.m.cfg.SpaceInterval
	if k.groupNear {
		wait = groupNearInterval * k.m.cfg.SpaceInterval
	}
	return time.Since(k.measured) >= wait
}
