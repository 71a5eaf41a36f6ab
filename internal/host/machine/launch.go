package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/vmm"
)

// cleanupTimeout bounds what is done for a machine after the caller of an operation has left.
const cleanupTimeout = time.Minute

// launch brings one machine to life by the steps of a plan. Create, Fork, Wake, Boot and the warm pool all use it.
type launch struct {
	m    *Manager
	op   *operation
	plan startPlan
	todo []step

	rec      record            // of the machine that admit makes
	mc       *machine          // nil until admit, unless the machine exists already
	snap     snapshot.Snapshot // that prepare starts a monitor over; acquired
	disks    []string          // files to clone the disks from, in the guest's order
	warm     *warmMonitor      // that adopt takes over
	capture  vmm.Capture       // that load loads; nil: the image's own state
	argument string            // added to the kernel's command line by boot
	volumes  volumesRequest    // that attach attaches to a new machine
	mount    []guestapi.VolumeMount
	consumed bool // the machine cannot return to where it started from
}

// stepFuncs has the function of every step. A function acquires one thing and registers its cleanup.
var stepFuncs = map[step]func(*launch, context.Context) error{
	stepAdmit:     (*launch).admit,
	stepRepair:    (*launch).repair,
	stepDirectory: (*launch).makeDirectory,
	stepAdopt:     (*launch).adopt,
	stepEgress:    func(l *launch, ctx context.Context) error { return l.m.applyEgress(ctx, l.mc) },
	stepSlot:      (*launch).acquireSlot,
	stepCgroup:    (*launch).createCgroup,
	stepAttach:    (*launch).attachVolumes,
	stepSwap:      (*launch).swapDisks,
	stepDisks:     (*launch).makeDisks,
	stepStream:    func(l *launch, ctx context.Context) error { return l.m.attachLazy(ctx, l.op, l.mc, l.snap) },
	stepPrepare:   (*launch).prepare,
	stepWaking:    (*launch).recordWaking,
	stepConsume:   (*launch).consumeImage,
	stepBoot:      (*launch).boot,
	stepStart:     (*launch).start,
	stepLoad:      (*launch).load,
	stepConfirm:   (*launch).confirm,
	stepPublish: func(l *launch, _ context.Context) error {
		return l.m.update(l.mc, surviveProcess, func(in *record) { in.State, in.Reason = running, "" })
	},
}

// newLaunch returns a launch that has done no step of its plan.
func (m *Manager) newLaunch(op *operation, plan startPlan) *launch {
	return &launch{m: m, op: op, plan: plan, todo: plan.steps}
}

// run performs the steps of the plan that are left, through the step last. When that publishes the machine, the
// machine is watched from then on.
func (l *launch) run(ctx context.Context, last step) (err error) {
	defer func() {
		if l.mc != nil {
			err = l.mc.wrapDoomed(l.mc.wrapStreamError(err))
		}
	}()
	for len(l.todo) > 0 {
		if l.mc != nil && l.mc.isDoomed() {
			return errDoomed
		}
		s := l.todo[0]
		l.todo = l.todo[1:]
		if s == stepStart { // from here on the guest reads what the stream serves
			fed, cancel := l.mc.withStreamFailure(ctx)
			defer cancel()
			ctx = fed
		}
		if err := stepFuncs[s](l, ctx); err != nil {
			return err
		}
		if err := l.op.done(string(s)); err != nil {
			return err
		}
		if s == stepPublish {
			l.m.published(l.mc)
			if l.plan.method == methodWake {
				l.m.removeDisksLater(l.plan.image)
			}
		}
		if s == last {
			return nil
		}
	}
	return nil
}

// published watches a machine that runs. Run makes the record of a persistent machine durable a moment later: a crash
// of the host ends every machine, and what it can lose is one that was made in this moment.
func (m *Manager) published(mc *machine) {
	m.watch(mc)
	if mc.rec.Persistent {
		m.syncLater(mc.dir)
	}
}

// acquireSnapshot acquires a snapshot for the operation and checks its files.
func (m *Manager) acquireSnapshot(op *operation, ref snapshot.Ref) (snapshot.Snapshot, error) {
	snap, err := m.deps.Store.Acquire(ref)
	if err != nil {
		return snapshot.Snapshot{}, wrapStoreError(err)
	}
	op.cleanup.Push("release snapshot", func(context.Context) error { return m.deps.Store.Release(ref) })
	return snap, snapshot.Check(snap)
}

// admit reserves memory for the machine. A new one is put into the list first; the operation owns it.
func (l *launch) admit(context.Context) error {
	m, op := l.m, l.op
	if l.mc != nil {
		mc := l.mc
		if err := m.ledger.reserve(mc.id, mc.rec.MemoryMiB); err != nil {
			return err
		}
		op.cleanup.Push("release memory", func(context.Context) error { m.ledger.release(mc.id); return nil })
		return nil
	}
	mc, err := m.insert(l.rec)
	if err != nil {
		return err
	}
	op.owned = append(op.owned, mc)
	op.cleanup.Push("forget machine", func(context.Context) error { m.forget(mc); return nil })
	l.mc = mc
	if err := m.requireSpace(fmt.Sprintf("machine %s", mc.id), 0); err != nil {
		return err
	}
	if err := m.requirePromise(mc); err != nil {
		return err
	}
	return m.ledger.reserve(mc.id, mc.rec.MemoryMiB) // forget releases it
}

// repair makes a machine at rest ready to start: it has no monitor, and its disks are complete.
func (l *launch) repair(ctx context.Context) error {
	if err := l.m.releaseLeftovers(ctx, l.op, l.mc); err != nil {
		return err
	}
	if err := l.m.completeDisks(ctx, l.op, l.mc); err != nil {
		return err
	}
	return os.MkdirAll(filepath.Join(l.mc.dir, monitorDir), 0o711)
}

// makeDirectory makes a machine's directory and writes its record, before anything else is acquired for it.
func (l *launch) makeDirectory(context.Context) error {
	mc := l.mc
	if err := os.Mkdir(mc.dir, 0o711); errors.Is(err, os.ErrExist) {
		return fmt.Errorf("machine %s: its directory holds a machine that could not be taken over: %w",
			mc.id, hostapi.ErrExists)
	} else if err != nil {
		return wrapNoSpace(fmt.Errorf("make directory of machine %s: %w", mc.id, err))
	}
	l.op.cleanup.Push("remove directory", func(context.Context) error { return os.RemoveAll(mc.dir) })
	if err := os.Mkdir(filepath.Join(mc.dir, monitorDir), 0o711); err != nil {
		return wrapNoSpace(fmt.Errorf("make directory of machine %s: %w", mc.id, err))
	}
	return l.m.writeRecord(mc, surviveProcess, mc.rec)
}

// adopt gives the machine what its warm monitor has, and records that.
func (l *launch) adopt(context.Context) error {
	mc, from := l.mc, l.warm.mc
	mc.set(func() {
		mc.vm, mc.slot, mc.cgroup = from.vm, from.slot, from.cgroup
		mc.rec.Slot, mc.rec.MAC = from.rec.Slot, from.rec.MAC
	})
	return l.m.writeRecord(mc, surviveProcess, mc.rec)
}

// swapDisks gives an adopted monitor the disks of the machine that are not those of its warm monitor: volumes, and
// disks whose flushes reach the medium. The monitor ends before volumes are detached if the start fails.
func (l *launch) swapDisks(ctx context.Context) error {
	m, mc := l.m, l.mc
	l.attachMonitor(mc.vm)
	rate := diskRate(mc.rec.Limits.ClampTo(m.cfg.Limits))
	had := l.warm.mc.diskSpecs(rate)
	for n, disk := range mc.diskSpecs(rate) {
		if disk == had[n] {
			continue
		}
		vm, ok := mc.vm.(vmm.DiskSwapper)
		if !ok {
			return unsupported("replace the disks of a prepared machine", m.deps.Driver.Capabilities())
		}
		if err := m.chown(mc, disk.Path); err != nil {
			return fmt.Errorf("change the owner of disk %d: %w", n, err)
		}
		if err := vm.SwapDisk(ctx, n, disk); err != nil {
			return err
		}
		if disk.Path != had[n].Path { // a place, or the clone of a data disk
			if err := os.Remove(had[n].Path); err != nil {
				return err
			}
		}
		if err := l.op.done("swap-disk"); err != nil {
			return err
		}
	}
	return nil
}

// acquireSlot acquires a network slot and applies the machine's egress policy and rates to it.
func (l *launch) acquireSlot(ctx context.Context) error {
	m, mc := l.m, l.mc
	slot, err := m.deps.Network.Acquire(ctx, mc.rec.resourceName())
	if err != nil {
		return fmt.Errorf("acquire a network slot: %w", err)
	}
	l.op.cleanup.Push("release slot", func(ctx context.Context) error {
		mc.set(func() { mc.slot = nil })
		return slot.Release(ctx)
	})
	mc.set(func() { mc.slot, mc.rec.Slot, mc.rec.MAC = slot, slot.Info().Index, slot.Info().MAC.String() })
	if err := m.applyEgress(ctx, mc); err != nil {
		return err
	}
	return m.applyNetworkRates(ctx, mc)
}

// createCgroup creates the cgroup that the monitor will be in.
func (l *launch) createCgroup(ctx context.Context) error {
	mc := l.mc
	group, err := l.m.deps.Cgroups.Create(ctx, mc.rec.resourceName(), l.m.limits(mc))
	if err != nil {
		return fmt.Errorf("create a cgroup: %w", err)
	}
	l.op.cleanup.Push("destroy cgroup", func(ctx context.Context) error {
		mc.set(func() { mc.cgroup = nil })
		return group.Destroy(ctx)
	})
	mc.set(func() { mc.cgroup = group })
	return nil
}

// limits returns the limits of a machine's cgroup. A fork's capture and the translator's buffers come on top of the
// guest's memory: the limit is there to contain a broken monitor, not to squeeze a sound one.
func (m *Manager) limits(mc *machine) Limits {
	over := m.ledger.adm.OverheadMiB
	return Limits{VCPUs: mc.rec.VCPUs, MemoryBytes: int64(mc.rec.MemoryMiB+4*over+256) * mib}
}

// makeDisks gives the machine the disks that its plan says. The directory's cleanup removes them.
func (l *launch) makeDisks(context.Context) error {
	switch l.plan.disks {
	case disksClone:
		return l.m.cloneDisks(l.mc, l.disks, l.plan)
	case disksImage:
		return l.m.restoreDisks(l.mc, l.snap)
	case disksKeep, disksEmpty, disksLazy:
	}
	if err := l.m.allocateDisks(l.mc, l.sources()); err != nil || l.plan.disks != disksLazy {
		return err
	}
	return markDisksIncomplete(l.mc)
}

// sources returns the number of disks that the machine has from elsewhere.
func (l *launch) sources() int {
	if l.plan.disks == disksLazy {
		return 1 + len(l.snap.Data)
	}
	return 1 + len(l.mc.rec.Data)
}

// applyEgress applies a machine's egress policy to its slot. A slot that was just acquired allows all.
func (m *Manager) applyEgress(ctx context.Context, mc *machine) error {
	if mc.rec.Egress.IsZero() {
		return nil
	}
	if err := mc.slot.SetEgress(ctx, mc.rec.Egress); err != nil {
		return fmt.Errorf("set the egress policy: %w", err)
	}
	return nil
}

// prepare starts a monitor without a guest over the image of the snapshot.
func (l *launch) prepare(ctx context.Context) error {
	m, mc := l.m, l.mc
	image := l.snap.Image()
	if mc.lazy != nil {
		image.Memory = mc.lazy.Memory()
	}
	if err := errors.Join(makePlaces(mc), m.chownFiles(mc)); err != nil {
		return err
	}
	spec := m.spec(mc)
	spec.HugePages = m.usesHugePages(mc)
	vm, err := m.deps.Driver.Prepare(ctx, spec, image)
	if err != nil {
		return fmt.Errorf("prepare a monitor: %w", err)
	}
	l.attachMonitor(vm)
	return nil
}

// boot starts a monitor that boots the guest cold from the machine's disks.
func (l *launch) boot(ctx context.Context) error {
	m, mc := l.m, l.mc
	kernel, err := m.cfg.Kernel(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(makePlaces(mc), m.chownFiles(mc)); err != nil {
		return err
	}
	spec := m.spec(mc)
	spec.Kernel, spec.Initramfs = kernel.Kernel, kernel.Initramfs
	spec.Cmdline = strings.TrimSpace(kernel.Cmdline + " " + l.argument)
	vm, err := m.deps.Driver.Boot(ctx, spec)
	if err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	l.attachMonitor(vm)
	return nil
}

// attachMonitor registers the cleanup of a monitor and makes it the machine's.
func (l *launch) attachMonitor(vm vmm.Machine) {
	mc := l.mc
	l.op.cleanup.Push("kill monitor", func(ctx context.Context) error {
		mc.set(func() { mc.vm = nil })
		return vm.Kill(ctx)
	})
	mc.set(func() { mc.vm = vm })
}

// recordWaking records that the guest may run from here on, for a process that finds the machine alive. A machine
// that boots has no memory to return to.
func (l *launch) recordWaking(context.Context) error {
	l.consumed = l.plan.image == ""
	return l.m.update(l.mc, surviveProcess, func(in *record) {
		in.State, in.BootMode, in.Reason, in.Lazy = waking, l.plan.mode, "", false
		if l.plan.method == methodReboot {
			in.Places = max(in.Places, l.m.cfg.Places)
		}
		in.Generation++
	})
}

// consumeImage records, durably, that the image the machine hibernated in may never be restored again: from here on
// the machine's own disks are the newer ones. Until then the image has memory and disks of the moment of hibernation,
// and whatever the guest has done since is forgotten if the wake fails.
func (l *launch) consumeImage(context.Context) error {
	l.consumed = true
	return wrapNoSpace(l.m.deps.Store.MarkConsumed(l.plan.image))
}

// start opens the guest channel and sends the identity, which the guest reads as soon as it runs.
func (l *launch) start(ctx context.Context) error {
	mc := l.mc
	id := identity(mc, l.plan.growFS)
	if l.plan.method.guestBoots() {
		id.Mounts = mc.mounts()
	}
	var err error
	if id.Volumes, err = l.beginVolumes(); err != nil {
		return err
	}
	if vm, ok := mc.vm.(vmm.MetadataSetter); ok {
		if err := vm.SetMetadata(ctx, metadata(id)); err != nil {
			return err
		}
	}
	conn, err := mc.vm.Dial(ctx)
	if err != nil {
		return fmt.Errorf("dial the guest: %w", err)
	}
	link, err := l.m.deps.Link(ctx, conn, Handshake{Generation: mc.rec.Generation, Identity: &id})
	if err != nil {
		return errors.Join(fmt.Errorf("open the guest channel: %w", err), conn.Close())
	}
	l.op.cleanup.Push("close link", func(context.Context) error {
		mc.set(func() { mc.link = nil })
		return link.Close()
	})
	mc.set(func() { mc.link = link })
	return nil
}

// load loads the guest's state and lets it run.
func (l *launch) load(ctx context.Context) error {
	if err := l.mc.vm.Load(ctx, l.capture); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	return nil
}
