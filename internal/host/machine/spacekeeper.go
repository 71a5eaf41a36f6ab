package machine

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// Disk space has three levels. Below the reserve, nothing new is made. Below half of it, machines that grow are
// stopped, so that what is left serves the node: records, the database, deletions. They continue when the reserve is
// free again. If the file system fills up all the same, monitors that can stop their guests do, and no write is lost.
const (
	spaceInterval      = 200 * time.Millisecond // between checks when space is short
	spaceQuietInterval = time.Second            // when it is not
	growthBytes        = 1 << 20                // of a machine between two checks that make it one that grows
)

// lowSpace returns the bytes of free disk below which machines that grow are stopped.
func (m *Manager) lowSpace() int64 { return int64(m.cfg.DiskReserveMiB) * mib / 2 }

// spaceKeeper stops machines before the disk is full and lets machines continue that wait for space. One goroutine
// uses it.
type spaceKeeper struct {
	m         *Manager
	work      sync.WaitGroup
	allocated map[*machine]int64 // at the last measurement; empty while none is needed
	measured  time.Time          // the time of that
	groupNear bool               // a group had used more than half of its bound then
	failed    bool               // the last check could not read the free space
}

// keepSpace runs a space keeper until ctx ends.
func (m *Manager) keepSpace(ctx context.Context) {
	k := &spaceKeeper{m: m, allocated: map[*machine]int64{}}
	defer k.work.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			timer.Reset(k.check(ctx))
		}
	}
}

// check looks at the free space once and returns when to look again.
func (k *spaceKeeper) check(ctx context.Context) time.Duration {
	m := k.m
	_, free, err := m.cfg.FreeSpace(m.cfg.Dir)
	if err != nil {
		if !k.failed {
			m.log.Error("free disk space not known", "err", err)
		}
		k.failed = true
		return m.cfg.SpaceInterval
	}
	k.failed = false
	reserve := int64(m.cfg.DiskReserveMiB) * mib
	if free < reserve && m.cfg.ReclaimSpace != nil {
		free += m.cfg.ReclaimSpace(reserve - free)
	}
	all := m.allMachines()
	var growth map[*machine]int64
	if free < 2*reserve || k.groupsDue() {
		growth = k.growth(all)
	} else if m.groupBounds().IsZero() {
		clear(k.allocated)
	}
	use, waiting := groupUse(all), false
	k.groupNear = false
	for group, bytes := range use {
		bound := m.groupBounds().Of(group)
		k.groupNear = k.groupNear || bound > 0 && bytes > bound*mib/2
	}
	for _, mc := range all {
		if w := mc.waiting(); w != nil {
			waiting = true
			k.tryContinue(ctx, mc, w, free >= reserve && !m.groupOver(mc, use))
		}
	}
	low := free < m.lowSpace()
	k.haltGrowing(ctx, growth, func(mc *machine, bytes int64) bool {
		return low && bytes >= growthBytes || m.groupOver(mc, use) && bytes > 0
	})
	if free < 2*reserve || waiting {
		return m.cfg.SpaceInterval
	}
	return max(m.cfg.SpaceInterval, spaceQuietInterval)
}

// allMachines returns the machines of the manager, ephemeral ones too.
func (m *Manager) allMachines() []*machine {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]*machine, 0, len(m.machines))
	for _, mc := range m.machines {
		all = append(all, mc)
	}
	return all
}

// growth measures all machines that run and returns by how much they have grown since the last check.
func (k *spaceKeeper) growth(all []*machine) map[*machine]int64 {
	seen, grown := map[*machine]int64{}, map[*machine]int64{}
	for _, mc := range all {
		bytes, ok := k.m.measureDisks(mc)
		if !ok {
			continue
		}
		seen[mc] = bytes
		if before, ok := k.allocated[mc]; ok {
			grown[mc] = bytes - before
		}
	}
	k.allocated, k.measured = seen, time.Now()
	return grown
}

// haltGrowing stops the machines that have grown too much since the last measurement, those first that have grown most.
func (k *spaceKeeper) haltGrowing(
	ctx context.Context,
	growth map[*machine]int64,
	tooMuch func(mc *machine, bytes int64) bool,
) {
	var growing []*machine
	for mc, bytes := range growth {
		if tooMuch(mc, bytes) {
			growing = append(growing, mc)
		}
	}
	slices.SortFunc(growing, func(a, b *machine) int { return cmp.Compare(growth[b], growth[a]) })
	for _, mc := range growing {
		if mc.waiting() != nil || !mc.tryLock() {
			continue
		}
		k.work.Go(func() {
			defer mc.unlock()
			k.m.haltForSpace(ctx, mc)
		})
	}
}

// haltForSpace stops a running machine that the caller owns until there is space.
func (m *Manager) haltForSpace(ctx context.Context, mc *machine) {
	vm := mc.vm
	if mc.removed || mc.rec.State != running || vm == nil || mc.waiting() != nil {
		return
	}
	if err := haltGuest(ctx, vm); err != nil {
		m.log.Warn("machine that fills the disk not stopped", "machine", mc.id, "err", err)
		return
	}
	m.startWaiting(mc, &spaceWait{vm: vm, halted: true})
	m.recordHalted(mc, true)
}

// tryContinue lets a waiting machine continue if there is space and it is time, and finds out whether an earlier
// attempt succeeded.
func (k *spaceKeeper) tryContinue(ctx context.Context, mc *machine, w *spaceWait, space bool) {
	now := time.Now()
	mc.mu.Lock()
	tried, next := w.continued, w.next
	mc.mu.Unlock()
	if !tried.IsZero() && now.Sub(tried) < k.m.spaceSettles() && !monitorWaits(w.vm) {
		return // the monitor may be repeating the write
	}
	runs := !w.halted && !monitorWaits(w.vm) // an operation that was in progress let it continue
	if tried.IsZero() && !runs && (!space || now.Before(next)) || !mc.tryLock() {
		return
	}
	k.work.Go(func() {
		defer mc.unlock()
		if mc.removed || mc.waiting() != w {
			return
		}
		if w.continued.IsZero() && !runs && (!k.m.letContinue(ctx, mc, w) || !w.halted) {
			return
		}
		if !w.halted && monitorWaits(w.vm) {
			mc.set(func() {
				w.continued = time.Time{}
				w.delay = min(2*w.delay, maxSpaceDelay*k.m.cfg.SpaceInterval)
				w.next = time.Now().Add(w.delay)
			})
			return
		}
		k.m.stopWaiting(mc, w)
		if w.frozen {
			if err := k.m.resume(ctx, mc); err != nil { // Guest tries again
				k.m.log.Warn("machine that continues does not reply", "machine", mc.id, "err", err)
			}
		}
	})
}

// letContinue lets the guest of a waiting machine run and reports whether it does. A later check finds out whether
// there was space for the write that its monitor repeats.
func (m *Manager) letContinue(ctx context.Context, mc *machine, w *spaceWait) bool {
	if err := w.vm.Resume(ctx); err != nil {
		m.log.Warn("machine that waited for disk space does not continue", "machine", mc.id, "err", err)
		mc.set(func() { w.next = time.Now().Add(w.delay) })
		return false
	}
	mc.set(func() { w.continued = time.Now() })
	return true
}

// tryLock makes the caller the owner of a machine unless an operation is in progress.
func (mc *machine) tryLock() bool {
	select {
	case mc.busy <- struct{}{}:
		return true
	default:
		return false
	}
}

// measureDisks measures the disks that a machine writes to, its volumes too, in bytes: what removing its own would
// free is stored in it. It reports false for a machine whose disks cannot be measured now.
func (m *Manager) measureDisks(mc *machine) (int64, bool) {
	if m.cfg.Allocated == nil {
		return 0, false
	}
	mc.mu.Lock()
	disks, at := mc.disks(), mc.rec.State
	mc.mu.Unlock()
	if at == creating || at == destroying {
		return 0, false
	}
	var own, volumes int64
	for _, d := range disks {
		if !d.kind.captured() {
			continue
		}
		bytes, err := m.cfg.Allocated(d.path)
		switch {
		case err != nil:
			return 0, false
		case d.kind.ownedByMachine():
			own += bytes
		default:
			volumes += bytes
		}
	}
	mc.set(func() { mc.diskBytes = own })
	return own + volumes, true
}

// Waiting returns how many machines wait for disk space.
func (m *Manager) Waiting() int {
	n := 0
	for _, mc := range m.allMachines() {
		if mc.waiting() != nil {
			n++
		}
	}
	return n
}

// DiskReserveMiB returns how much disk stays free.
func (m *Manager) DiskReserveMiB() int { return m.cfg.DiskReserveMiB }
