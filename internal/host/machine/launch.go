package machine

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/vmm"
)

// cleanupTimeout bounds what is done for a machine after the caller of an operation went away.
const cleanupTimeout = time.Minute

// makeDirectory makes a machine's directory and writes its intent, before anything else is taken for it.
func (m *Manager) makeDirectory(p *operation, mc *machine) error {
	if err := os.Mkdir(mc.dir, 0o711); errors.Is(err, os.ErrExist) {
		return fmt.Errorf(
			"machine %s: its directory holds a machine that could not be taken over: %w",
			mc.id,
			hostapi.ErrExists,
		)
	} else if err != nil {
		return wrapNoSpace(fmt.Errorf("make directory of machine %s: %w", mc.id, err))
	}
	p.cleanup.Push("remove directory", func(context.Context) error { return os.RemoveAll(mc.dir) })
	if err := os.Mkdir(filepath.Join(mc.dir, monitorDir), 0o711); err != nil {
		return wrapNoSpace(fmt.Errorf("make directory of machine %s: %w", mc.id, err))
	}
	if err := m.writeRecord(mc, surviveProcess, mc.rec); err != nil {
		return err
	}
	return p.done("intent")
}

// acquireHostResources takes a place in the network and a group for a machine.
func (m *Manager) acquireHostResources(ctx context.Context, p *operation, mc *machine) error {
	slot, err := m.deps.Network.Acquire(ctx, mc.rec.resourceName())
	if err != nil {
		return fmt.Errorf("take a network slot: %w", err)
	}
	p.cleanup.Push("give slot", func(ctx context.Context) error {
		mc.set(func() { mc.slot = nil })
		return slot.Release(ctx)
	})
	mc.set(func() { mc.slot, mc.rec.Slot, mc.rec.MAC = slot, slot.Info().Index, slot.Info().MAC.String() })
	if err := m.applyEgress(ctx, mc); err != nil {
		return err
	}
	if err := m.applyNetworkRates(ctx, mc); err != nil {
		return err
	}
	if err := p.done("slot"); err != nil {
		return err
	}
	group, err := m.deps.Cgroups.Create(ctx, mc.rec.resourceName(), m.limits(mc))
	if err != nil {
		return fmt.Errorf("make a group: %w", err)
	}
	p.cleanup.Push("destroy group", func(ctx context.Context) error {
		mc.set(func() { mc.cgroup = nil })
		return group.Destroy(ctx)
	})
	mc.set(func() { mc.cgroup = group })
	return p.done("group")
}

func (m *Manager) limits(mc *machine) Limits {
	over := m.ledger.adm.OverheadMiB
	// A fork's capture and the translator's buffers come on top; the limit is there to contain a broken
	// monitor, not to squeeze a sound one.
	return Limits{VCPUs: mc.rec.VCPUs, MemoryBytes: int64(mc.rec.MemoryMiB+4*over+256) * mib}
}

// applyEgress opens or closes a machine's way to the outside as it was asked for.
func (m *Manager) applyEgress(ctx context.Context, mc *machine) error {
	if mc.rec.Egress.IsZero() {
		return nil
	}
	if err := mc.slot.SetEgress(ctx, mc.rec.Egress); err != nil {
		return fmt.Errorf("set the egress policy: %w", err)
	}
	return nil
}

// spec is what a machine's monitor is made of.
func (m *Manager) spec(mc *machine) vmm.Spec {
	s := vmm.Spec{
		ID: mc.rec.resourceName(), Dir: filepath.Join(mc.dir, monitorDir), VCPUs: mc.rec.VCPUs, MemoryMiB: mc.rec.MemoryMiB,
		Disks: mc.diskSpecs(diskRate(mc.rec.Limits.ClampTo(m.cfg.Limits))),
	}
	if mc.rec.Slot >= 0 {
		s.Confine.UID, s.Confine.GID = m.cfg.Owner(mc.rec.Slot)
	}
	if mac, err := net.ParseMAC(mc.rec.MAC); err == nil {
		s.NIC = &vmm.NIC{MAC: mac}
	}
	if mc.slot != nil && s.NIC != nil {
		place := mc.slot.Info()
		s.NIC.Tap, s.NIC.Device, s.NIC.Netns = place.Tap, place.TapName, place.Netns
	}
	if mc.cgroup != nil {
		s.Confine.Enter, s.Confine.Jail = mc.cgroup.Enter, mc.cgroup.Jail()
	}
	return s
}

// prepare starts a monitor without a guest over an image.
func (m *Manager) prepare(ctx context.Context, p *operation, mc *machine, image vmm.Image) error {
	if err := m.chownFiles(mc); err != nil {
		return err
	}
	spec := m.spec(mc)
	spec.HugePages = m.usesHugePages(mc)
	vm, err := m.deps.Driver.Prepare(ctx, spec, image)
	if err != nil {
		return fmt.Errorf("prepare a monitor: %w", err)
	}
	m.attachMonitor(p, mc, vm)
	return p.done("prepare")
}

func (m *Manager) attachMonitor(p *operation, mc *machine, vm vmm.Machine) {
	p.cleanup.Push("kill monitor", func(ctx context.Context) error {
		mc.set(func() { mc.vm = nil })
		return vm.Kill(ctx)
	})
	mc.set(func() { mc.vm = vm })
}

// chownFiles gives a machine's files to the user that runs its monitor.
func (m *Manager) chownFiles(mc *machine) error {
	err := m.chown(mc, filepath.Join(mc.dir, monitorDir))
	for _, path := range mc.diskPaths() {
		err = errors.Join(err, m.chown(mc, path))
	}
	if err != nil {
		return fmt.Errorf("give the files of machine %s away: %w", mc.id, err)
	}
	return nil
}

// handshake opens the guest channel and writes who the guest is to become. The guest reads it when it runs. One
// that boots has mounts, which may be nil, to do.
func (m *Manager) handshake(ctx context.Context, p *operation, mc *machine, grow bool, mounts []guestapi.Mount) error {
	id := identity(mc, grow)
	id.Mounts = mounts
	if vm, ok := mc.vm.(vmm.MetadataSetter); ok {
		if err := vm.SetMetadata(ctx, metadata(id)); err != nil {
			return err
		}
	}
	conn, err := mc.vm.Dial(ctx)
	if err != nil {
		return fmt.Errorf("dial the guest: %w", err)
	}
	link, err := m.deps.Link(ctx, conn, Handshake{Generation: mc.rec.Generation, Identity: &id})
	if err != nil {
		return errors.Join(fmt.Errorf("greet the guest: %w", err), conn.Close())
	}
	p.cleanup.Push("close link", func(context.Context) error {
		mc.set(func() { mc.link = nil })
		return link.Close()
	})
	mc.set(func() { mc.link = link })
	return p.done("greet")
}

// identity is who a machine's guest becomes: entropy that no other has, and the time of this moment.
func identity(mc *machine, grow bool) guestapi.Identity {
	entropy := make([]byte, 64)
	_, _ = rand.Read(entropy) // never fails: it ends the program instead
	id := guestapi.Identity{
		MachineID: string(mc.id), Hostname: mc.rec.Hostname, Generation: mc.rec.Generation, Entropy: entropy,
		Env: mc.rec.Env, User: mc.rec.User, DiskGrow: grow,
	}
	if mc.slot != nil {
		network := mc.slot.Info().Guest
		id.Network = &network
	}
	for name, content := range mc.rec.Files {
		if id.Files == nil {
			id.Files = make(map[string][]byte, len(mc.rec.Files))
		}
		id.Files[name] = []byte(content)
	}
	id.Time = time.Now()
	return id
}

// metadata is what of an identity programs find that know the metadata services of clouds, under the names there.
func metadata(id guestapi.Identity) []byte {
	own := map[string]string{"instance-id": id.MachineID, "local-hostname": id.Hostname, "hostname": id.Hostname}
	text, _ := json.Marshal(map[string]any{"latest": map[string]any{"meta-data": own}}) // strings alone
	return text
}

// confirm waits until the guest has confirmed its identity, for at most limit. Its error ends with what the guest
// printed last.
func (m *Manager) confirm(ctx context.Context, p *operation, mc *machine, limit time.Duration) error {
	late := fmt.Errorf("the guest did not confirm its identity within %s", limit)
	limited, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	if err := waitReady(limited, mc.vm, mc.link); err != nil {
		return m.withConsole(ctx, mc, err)
	}
	return p.done("ready")
}

// consoleLimit bounds the wait for the console of a machine that failed to start.
const consoleLimit = 5 * time.Second

// withConsole adds what the guest printed last to the error of a start, unless the caller has gone away or the
// driver put it there. Without a console it returns err.
func (m *Manager) withConsole(ctx context.Context, mc *machine, err error) error {
	if ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, consoleLimit)
	defer cancel()
	printed, _ := m.console(ctx, mc) // a monitor that has ended returns what was read before
	tail := vmm.ConsoleTail(printed)
	if tail == "" || strings.Contains(err.Error(), tail) {
		return err
	}
	return fmt.Errorf("%w; the guest's console ends with: %s", err, tail)
}

// endLimit bounds the wait for the end of a monitor whose guest channel broke: the channel ends first.
const endLimit = 2 * time.Second

// waitReady waits for a link, the death of its monitor, or the end of ctx, whichever is first. If the guest channel
// breaks because the monitor ends, the error is that of the monitor.
func waitReady(ctx context.Context, vm vmm.Machine, link Link) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	answer := make(chan error, 1)
	go func() { answer <- link.Ready(ctx) }()
	select {
	case err := <-answer:
		if err != nil && context.Cause(ctx) != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, guestapi.ErrLost) && endsWithin(ctx, vm, endLimit) {
			return ended(vm)
		}
		return err
	case <-vm.Done():
		dead := ended(vm)
		cancel(dead)
		<-answer
		return dead
	}
}

// endsWithin reports whether a monitor ends within limit and before ctx does.
func endsWithin(ctx context.Context, vm vmm.Machine, limit time.Duration) bool {
	select {
	case <-vm.Done():
		return true
	case <-time.After(limit):
	case <-ctx.Done():
	}
	return false
}

// ended returns the error of a machine whose monitor has ended.
func ended(vm vmm.Machine) error {
	return fmt.Errorf("the monitor ended: %w", cmpErr(vm.Err(), vmm.ErrGone))
}

func cmpErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
