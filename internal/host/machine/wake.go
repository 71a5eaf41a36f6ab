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
	mc, err := p.enter(ctx, id)
	if err != nil {
		return hostapi.Machine{}, err
	}
	if err := mc.need("wake", running, hibernated, failed); err != nil {
		return hostapi.Machine{}, err
	}
	if mc.in.State == running {
		return mc.view(), nil
	}
	image := mc.in.Base
	if mc.in.State == failed { // it may still need what it began on, for its disk
		image = ""
	}
	how, err := choose(want{op: "wake", image: image, haveMiB: mc.in.DiskMiB, kernel: m.cfg.Kernel != nil},
		m.deps.Driver.Capabilities())
	if err != nil {
		return hostapi.Machine{}, err
	}
	if err := m.wake(ctx, p, mc, how); err != nil {
		return hostapi.Machine{}, fmt.Errorf("wake machine %s: %w", id, noSpace(err))
	}
	p.told(mc, true)
	return mc.view(), nil
}

func (m *Manager) wake(ctx context.Context, p *plan, mc *machine, how start) error {
	if err := m.ledger.admit(mc.id, mc.in.MemoryMiB); err != nil {
		return err
	}
	p.back.Push("release memory", func(context.Context) error { m.ledger.release(mc.id); return nil })
	if err := m.stripped(ctx, p, mc); err != nil {
		return err
	}
	if err := m.rescue(ctx, p, mc); err != nil {
		return err
	}
	before, spent := mc.in.State, false
	p.back.Push("release image", func(context.Context) error {
		if !spent || how.image == "" {
			return nil
		}
		return m.deps.Store.Release(how.image)
	})
	if err := os.MkdirAll(filepath.Join(mc.dir, monitorDir), 0o711); err != nil {
		return err
	}
	if err := m.rig(ctx, p, mc); err != nil {
		return err
	}
	var err error
	if how.how == howBoot {
		err = m.wakeBoot(ctx, p, mc, how, &spent)
	} else {
		err = m.wakeImage(ctx, p, mc, how, &spent)
	}
	if err == nil || p.quit || mc.in.State == before {
		return err
	}
	return errors.Join(err, m.record(mc, ofHost, func(in *intent) {
		in.State, in.Slot, in.MAC = hibernated, -1, ""
		if spent {
			in.State, in.Base, in.Reason = failed, "", "wake: "+err.Error()
		}
	}))
}

// spend notes, durably, that the image of a machine's sleep may never be restored again. It comes before
// the first instruction of the guest. The intent says before that that it may come, for a process that
// finds the machine alive.
func (m *Manager) spend(p *plan, mc *machine, how start, spent *bool) error {
	err := m.record(mc, ofProcess, func(in *intent) {
		in.State, in.BootMode, in.Reason, in.Stream = waking, how.mode, "", false
		in.Generation++
	})
	if err != nil {
		return err
	}
	if err := p.did("intent"); err != nil {
		return err
	}
	if how.image != "" {
		if err := m.deps.Store.Spend(how.image); err != nil {
			return noSpace(err)
		}
	}
	*spent = true
	return p.did("spend")
}

func (m *Manager) wakeImage(ctx context.Context, p *plan, mc *machine, how start, spent *bool) error {
	snap, err := m.deps.Store.Get(how.image)
	if err != nil {
		return missing(err)
	}
	if snap.Spent() {
		return fmt.Errorf("%s was restored before: its memory is older than the disk", how.image)
	}
	if err := snapshot.Check(snap); err != nil {
		return err
	}
	if err := m.prepare(ctx, p, mc, snap.Image()); err != nil {
		return err
	}
	if err := m.spend(p, mc, how, spent); err != nil {
		return err
	}
	if err := m.greet(ctx, p, mc, false, nil); err != nil {
		return err
	}
	if err := mc.vm.Load(ctx, nil); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if err := p.did("load"); err != nil {
		return err
	}
	if err := m.confirm(ctx, p, mc, m.cfg.ReadyTimeout); err != nil {
		return err
	}
	return m.live(p, mc)
}

func (m *Manager) wakeBoot(ctx context.Context, p *plan, mc *machine, how start, spent *bool) error {
	*spent = true // there is no memory to go back to
	if err := m.spend(p, mc, how, spent); err != nil {
		return err
	}
	if err := m.ignite(ctx, p, mc, ""); err != nil {
		return err
	}
	return m.live(p, mc)
}

// ignite boots a machine cold from its disk. argument is a word more for the kernel's command line.
func (m *Manager) ignite(ctx context.Context, p *plan, mc *machine, argument string) error {
	if m.cfg.Kernel == nil {
		return fmt.Errorf("no kernel is configured: %w", hostapi.ErrUnsupported)
	}
	kernel, err := m.cfg.Kernel(ctx)
	if err != nil {
		return err
	}
	if err := m.ownAll(mc); err != nil {
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
	m.hold(p, mc, vm)
	if err := p.did("boot"); err != nil {
		return err
	}
	if err := m.greet(ctx, p, mc, true, mc.mounts()); err != nil {
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
	// Waits: the guest waits for its root (guestapi.WaitArgument), whatever Disk holds: it can be captured, and
	// nothing else.
	Waits bool
	// Ground is the snapshot of a machine that waits, with as many processors, disks and as much memory as this
	// one gets: it goes on from there instead of booting. "": it boots.
	Ground snapshot.Ref
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
	begin := func(mc *machine) error { return m.ignite(ctx, p, mc, waitArgument[req.Waits]) }
	if req.Ground != "" {
		ground, err := m.deps.Store.Hold(req.Ground)
		if err != nil {
			return hostapi.Machine{}, missing(err)
		}
		begin = func(mc *machine) error { return m.land(ctx, p, mc, ground) }
		p.back.Push("release snapshot", func(context.Context) error { return m.deps.Store.Release(req.Ground) })
	}
	have := int((info.Size() + mib - 1) / mib)
	how := start{how: howBoot, mode: hostapi.BootCold, diskMiB: max(have, req.DiskMiB), grow: req.DiskMiB > have}
	mc, err := m.admit(p, intent{
		ID: req.ID, State: creating, Template: req.Template, Base: req.Ground, VCPUs: req.VCPUs, MemoryMiB: req.MemoryMiB,
		DiskMiB: how.diskMiB, Data: data, Slot: -1, Hostname: string(req.ID), User: req.User, Workdir: req.Workdir, Env: req.Env,
		Scratch: !req.Listed, Labels: req.Labels, Egress: req.Egress, Generation: 1, BootMode: how.mode, Created: time.Now().UTC(),
	})
	if err != nil {
		return hostapi.Machine{}, err
	}
	if err := m.bootNew(ctx, p, mc, images, how, begin); err != nil {
		return hostapi.Machine{}, fmt.Errorf("boot machine %s: %w", req.ID, noSpace(err))
	}
	p.told(mc, true)
	return mc.view(), nil
}

func (m *Manager) bootNew(
	ctx context.Context,
	p *plan,
	mc *machine,
	images []string,
	how start,
	begin func(*machine) error,
) error {
	if err := m.place(p, mc); err != nil {
		return err
	}
	if err := m.rig(ctx, p, mc); err != nil {
		return err
	}
	if err := m.disk(p, mc, images, how); err != nil {
		return err
	}
	if err := begin(mc); err != nil {
		return err
	}
	return m.live(p, mc)
}

var waitArgument = map[bool]string{true: guestapi.WaitArgument}

// land brings a machine to life from one that waited for a disk. Everything from its root on is done as in a boot.
func (m *Manager) land(ctx context.Context, p *plan, mc *machine, ground snapshot.Snapshot) error {
	if err := snapshot.Check(ground); err != nil {
		return err
	}
	if err := m.prepare(ctx, p, mc, ground.Image()); err != nil {
		return err
	}
	if err := m.greet(ctx, p, mc, true, mc.mounts()); err != nil {
		return err
	}
	if err := mc.vm.Load(ctx, nil); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if err := p.did("load"); err != nil {
		return err
	}
	return m.confirm(ctx, p, mc, m.cfg.BootTimeout)
}
