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
)

// Wake brings a hibernated machine back to life, or boots a failed one from its disk. A running machine
// is fine. Until the image of its sleep is marked used, a failure leaves the machine hibernated and it
// can be woken again; after that its memory is lost and it is failed, with its disk kept.
func (m *Manager) Wake(ctx context.Context, id hostapi.MachineID) (_ hostapi.Machine, err error) {
	p := m.begin("wake")
	defer func() { err = p.end(ctx, err) }()
	mc, err := p.lock(ctx, id)
	if err != nil {
		return hostapi.Machine{}, err
	}
	if err := mc.requireState("wake", running, hibernated, failed); err != nil {
		return hostapi.Machine{}, err
	}
	if mc.rec.State == running {
		return mc.view(), nil
	}
	image := mc.rec.Base
	if mc.rec.State == failed { // it may still need what it began on, for its disk
		image = ""
	}
	how, err := planStart(startRequest{op: "wake", image: image, haveMiB: mc.rec.DiskMiB, kernel: m.cfg.Kernel != nil},
		m.deps.Driver.Capabilities())
	if err != nil {
		return hostapi.Machine{}, err
	}
	if err := m.wake(ctx, p, mc, how); err != nil {
		return hostapi.Machine{}, fmt.Errorf("wake machine %s: %w", id, wrapNoSpace(err))
	}
	p.logPhases(mc, true)
	return mc.view(), nil
}

func (m *Manager) wake(ctx context.Context, p *operation, mc *machine, how startPlan) error {
	if err := m.ledger.reserve(mc.id, mc.rec.MemoryMiB); err != nil {
		return err
	}
	p.cleanup.Push("release memory", func(context.Context) error { m.ledger.release(mc.id); return nil })
	if err := m.releaseLeftovers(ctx, p, mc); err != nil {
		return err
	}
	if err := m.completeDisks(ctx, p, mc); err != nil {
		return err
	}
	before, spent := mc.rec.State, false
	p.cleanup.Push("release image", func(context.Context) error {
		if !spent || how.image == "" {
			return nil
		}
		return m.deps.Store.Release(how.image)
	})
	if err := os.MkdirAll(filepath.Join(mc.dir, monitorDir), 0o711); err != nil {
		return err
	}
	if err := m.acquireHostResources(ctx, p, mc); err != nil {
		return err
	}
	var err error
	if how.method == methodColdBoot {
		err = m.wakeBoot(ctx, p, mc, how, &spent)
	} else {
		err = m.wakeImage(ctx, p, mc, how, &spent)
	}
	if err == nil || p.abandoned || mc.rec.State == before {
		return err
	}
	return errors.Join(err, m.update(mc, surviveHost, func(in *record) {
		in.State, in.Slot, in.MAC = hibernated, -1, ""
		if spent {
			in.State, in.Base, in.Reason = failed, "", "wake: "+err.Error()
		}
	}))
}

// consumeImage notes, durably, that the image of a machine's sleep may never be restored again. It comes before
// the first instruction of the guest. The intent says before that that it may come, for a process that
// finds the machine alive.
func (m *Manager) consumeImage(p *operation, mc *machine, how startPlan, spent *bool) error {
	err := m.update(mc, surviveProcess, func(in *record) {
		in.State, in.BootMode, in.Reason, in.Lazy = waking, how.mode, "", false
		in.Generation++
	})
	if err != nil {
		return err
	}
	if err := p.done("intent"); err != nil {
		return err
	}
	if how.image != "" {
		if err := m.deps.Store.MarkConsumed(how.image); err != nil {
			return wrapNoSpace(err)
		}
	}
	*spent = true
	return p.done("spend")
}

func (m *Manager) wakeImage(ctx context.Context, p *operation, mc *machine, how startPlan, spent *bool) error {
	snap, err := m.deps.Store.Get(how.image)
	if err != nil {
		return wrapStoreError(err)
	}
	if snap.Consumed() {
		return fmt.Errorf("%s was restored before: its memory is older than the disk", how.image)
	}
	if err := snapshot.Check(snap); err != nil {
		return err
	}
	if err := m.prepare(ctx, p, mc, snap.Image()); err != nil {
		return err
	}
	if err := m.consumeImage(p, mc, how, spent); err != nil {
		return err
	}
	if err := m.handshake(ctx, p, mc, false, nil); err != nil {
		return err
	}
	if err := mc.vm.Load(ctx, nil); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if err := p.done("load"); err != nil {
		return err
	}
	if err := m.confirm(ctx, p, mc, m.cfg.ReadyTimeout); err != nil {
		return err
	}
	return m.publish(p, mc)
}

func (m *Manager) wakeBoot(ctx context.Context, p *operation, mc *machine, how startPlan, spent *bool) error {
	*spent = true // there is no memory to go back to
	if err := m.consumeImage(p, mc, how, spent); err != nil {
		return err
	}
	if err := m.coldBoot(ctx, p, mc, ""); err != nil {
		return err
	}
	return m.publish(p, mc)
}

// coldBoot boots a machine cold from its disk. argument is a word more for the kernel's command line.
func (m *Manager) coldBoot(ctx context.Context, p *operation, mc *machine, argument string) error {
	if m.cfg.Kernel == nil {
		return fmt.Errorf("no kernel is configured: %w", hostapi.ErrUnsupported)
	}
	kernel, err := m.cfg.Kernel(ctx)
	if err != nil {
		return err
	}
	if err := m.chownFiles(mc); err != nil {
		return err
	}
	spec := m.spec(mc)
	spec.Kernel, spec.Initramfs, spec.Cmdline = kernel.Kernel, kernel.Initramfs, strings.TrimSpace(
		kernel.Cmdline+" "+argument,
	)
	vm, err := m.deps.Driver.Boot(ctx, spec)
	if err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	m.attachMonitor(p, mc, vm)
	if err := p.done("boot"); err != nil {
		return err
	}
	if err := m.handshake(ctx, p, mc, true, mc.mounts()); err != nil {
		return err
	}
	return m.confirm(ctx, p, mc, m.cfg.BootTimeout)
}

// Boot asks for a machine that begins with nothing but a clone of a disk image: it boots cold, or is made of one
// that booted and waits for a disk.
type Boot struct {
	ID        hostapi.MachineID
	Template  hostapi.TemplateName
	Disk      string // path of the image to clone
	Data      []BootDisk
	VCPUs     int
	MemoryMiB int
	DiskMiB   int // at least the image's size
	User      string
	Workdir   string
	Env       map[string]string
	// WaitForRoot: the guest waits for its root (guestapi.WaitArgument), whatever Disk holds: it can be captured, and
	// nothing else.
	WaitForRoot bool
	// From is the snapshot of a machine that waits, with as many processors, disks and as much memory as this
	// one gets: it goes on from there instead of booting. "": it boots.
	From snapshot.Ref
	// Listed: the machine is in List, with Labels and Egress, and another process takes it over. Any other
	// is of no use to another process: Recover destroys it.
	Listed bool
	Labels map[string]string
	Egress hostapi.Egress
}

// BootDisk is a data disk of a machine that boots cold.
type BootDisk struct {
	snapshot.DataDisk        // MiB is the image's, whatever is said
	Path              string // of the image to clone
}

// data gives the data disks that are asked for, as they are, and all images to clone.
func (req Boot) data() (all []snapshot.DataDisk, images []string, err error) {
	images = []string{req.Disk}
	for _, d := range req.Data {
		info, err := os.Stat(d.Path)
		if err != nil {
			return nil, nil, err
		}
		d.MiB = int(info.Size() / mib)
		all, images = append(all, d.DataDisk), append(images, d.Path)
	}
	return all, images, snapshot.CheckDataDisks(all)
}

// Boot makes a machine of a disk image.
func (m *Manager) Boot(ctx context.Context, req Boot) (_ hostapi.Machine, err error) {
	p := m.begin("boot")
	defer func() { err = p.end(ctx, err) }()
	if err := m.deps.Network.CheckEgress(req.Egress); err != nil {
		return hostapi.Machine{}, fmt.Errorf("boot machine %s: %w", req.ID, err)
	}
	info, err := os.Stat(req.Disk)
	if err != nil {
		return hostapi.Machine{}, fmt.Errorf("boot machine %s: %w", req.ID, err)
	}
	data, images, err := req.data()
	if err != nil {
		return hostapi.Machine{}, fmt.Errorf("boot machine %s: %w", req.ID, err)
	}
	begin := func(mc *machine) error { return m.coldBoot(ctx, p, mc, waitArgument[req.WaitForRoot]) }
	if req.From != "" {
		ground, err := m.deps.Store.Acquire(req.From)
		if err != nil {
			return hostapi.Machine{}, wrapStoreError(err)
		}
		begin = func(mc *machine) error { return m.restorePreMount(ctx, p, mc, ground) }
		p.cleanup.Push("release snapshot", func(context.Context) error { return m.deps.Store.Release(req.From) })
	}
	have := int((info.Size() + mib - 1) / mib)
	how := startPlan{method: methodColdBoot, mode: hostapi.BootCold, diskMiB: max(have, req.DiskMiB), grow: req.DiskMiB > have}
	mc, err := m.admit(p, record{
		ID: req.ID, State: creating, Template: req.Template, Base: req.From, VCPUs: req.VCPUs, MemoryMiB: req.MemoryMiB,
		DiskMiB: how.diskMiB, Data: data, Slot: -1, Hostname: string(req.ID), User: req.User, Workdir: req.Workdir, Env: req.Env,
		Ephemeral: !req.Listed, Labels: req.Labels, Egress: req.Egress, Generation: 1, BootMode: how.mode, Created: time.Now().UTC(),
	})
	if err != nil {
		return hostapi.Machine{}, err
	}
	if err := m.bootNew(ctx, p, mc, images, how, begin); err != nil {
		return hostapi.Machine{}, fmt.Errorf("boot machine %s: %w", req.ID, wrapNoSpace(err))
	}
	p.logPhases(mc, true)
	return mc.view(), nil
}

func (m *Manager) bootNew(
	ctx context.Context,
	p *operation,
	mc *machine,
	images []string,
	how startPlan,
	begin func(*machine) error,
) error {
	if err := m.makeDirectory(p, mc); err != nil {
		return err
	}
	if err := m.acquireHostResources(ctx, p, mc); err != nil {
		return err
	}
	if err := m.cloneDisks(p, mc, images, how); err != nil {
		return err
	}
	if err := begin(mc); err != nil {
		return err
	}
	return m.publish(p, mc)
}

var waitArgument = map[bool]string{true: guestapi.WaitForRootArgument}

// restorePreMount brings a machine to life from one that waited for a disk. Everything from its root on is done as in a boot.
func (m *Manager) restorePreMount(ctx context.Context, p *operation, mc *machine, ground snapshot.Snapshot) error {
	if err := snapshot.Check(ground); err != nil {
		return err
	}
	if err := m.prepare(ctx, p, mc, ground.Image()); err != nil {
		return err
	}
	if err := m.handshake(ctx, p, mc, true, mc.mounts()); err != nil {
		return err
	}
	if err := mc.vm.Load(ctx, nil); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if err := p.done("load"); err != nil {
		return err
	}
	return m.confirm(ctx, p, mc, m.cfg.BootTimeout)
}
