package firecracker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// Sizes for hotpluggable memory (virtio-mem): KVM memory slots on the host, and blocks in the
// guest.
const (
	slotMiB  = 128
	blockMiB = 2
)

// guestCID is the vsock context ID of every guest. No other guest can see it.
const guestCID = 3

const networkID = "eth0"

// ChannelPort is the vsock port on which the guest agent listens.
const ChannelPort = 5252

// cmdline returns the kernel command line: what every guest needs, and then the caller's part.
func (d *Driver) cmdline(more string) string {
	words := []string{
		"reboot=k", "panic=1", "i8042.noaux", "i8042.nomux", "i8042.dumbkbd", "swiotlb=noforce", "random.trust_cpu=on",
		"memhp_default_state=online_movable", fmt.Sprintf("pandastack.channel=vsock:%d", ChannelPort),
	}
	if d.config.Console {
		words = append(words, "console=ttyS0")
	} else {
		words = append(words, "8250.nr_uarts=0", "quiet", "loglevel=1")
	}
	if more != "" {
		words = append(words, more)
	}
	return strings.Join(words, " ")
}

// step is one API request.
type step func(context.Context) error

func runSteps(ctx context.Context, steps []step) error {
	for _, s := range steps {
		if err := s(ctx); err != nil {
			return err
		}
	}
	return nil
}

// boot configures the machine and starts it.
func (m *machine) boot(ctx context.Context) error {
	ctx, cancel := m.driver.monitors.WithTimeout(ctx, "start of the machine")
	defer cancel()
	if err := runSteps(ctx, m.bootSteps()); err != nil {
		return err
	}
	m.record.Cold = true
	m.record.MaxMemoryMiB = m.spec.MemoryMiB + m.record.Shape.HotplugMiB
	m.record.MaxDisks = len(m.record.Shape.ReadOnly)
	m.manifest.MaxMemoryMiB, m.manifest.MaxDisks = m.record.MaxMemoryMiB, m.record.MaxDisks
	if err := vmmproc.WriteRecord(m.spec.Dir, m.record); err != nil {
		return err
	}
	if err := m.api.Start(ctx); err != nil {
		return err
	}
	m.setPhase(vmmproc.Running)
	return errors.Join(os.RemoveAll(m.inRoot(kernelFile)), os.RemoveAll(m.inRoot(initrdFile)))
}

// bootSteps returns the requests that configure the machine before InstanceStart.
func (m *machine) bootSteps() []step {
	spec, sh, api := m.spec, m.record.Shape, m.api
	source := fcapi.BootSource{Kernel: kernelFile, Args: m.driver.cmdline(spec.Cmdline)}
	if spec.Initramfs != "" {
		source.Initrd = initrdFile
	}
	steps := []step{
		func(ctx context.Context) error { return api.SetBootSource(ctx, source) },
		func(ctx context.Context) error {
			return api.SetMachine(
				ctx,
				fcapi.MachineConfig{VCPUs: spec.VCPUs, MemoryMiB: spec.MemoryMiB, HugePages: fcapi.PagesSmall},
			)
		},
		func(ctx context.Context) error {
			return api.SetVsock(ctx, fcapi.Vsock{CID: guestCID, Path: vsockSocket})
		},
		func(ctx context.Context) error { return api.SetEntropy(ctx, fcapi.Entropy{}) },
		func(ctx context.Context) error {
			return api.SetBalloon(ctx, fcapi.Balloon{DeflateOnOOM: true, Reporting: true})
		},
	}
	for i, readOnly := range sh.ReadOnly {
		// All drives use Writeback, including volatile disks, which could use Unsafe. The cache
		// type cannot be changed after a restore, and a machine restored from this one may need it.
		d := fcapi.Drive{
			ID: driveName(i), Path: driveName(i), Root: i == 0 && spec.Initramfs == "", ReadOnly: readOnly,
			Cache: fcapi.CacheWriteback, Engine: "Sync",
		}
		if i < len(spec.Disks) && spec.Disks[i].Rate != (vmm.Rate{}) {
			d.Limiter = limiter(spec.Disks[i].Rate)
		}
		steps = append(steps, func(ctx context.Context) error { return api.AddDrive(ctx, d) })
	}
	if nic := spec.NIC; nic != nil {
		n := fcapi.NetworkInterface{ID: networkID, Device: nic.Device, MAC: nic.MAC.String()}
		if nic.In != (vmm.Rate{}) {
			n.In = limiter(nic.In)
		}
		if nic.Out != (vmm.Rate{}) {
			n.Out = limiter(nic.Out)
		}
		steps = append(steps, func(ctx context.Context) error { return api.AddNetwork(ctx, n) },
			func(ctx context.Context) error {
				return api.SetMetadataService(
					ctx,
					fcapi.MetadataService{Version: fcapi.MetadataTokens, Networks: []string{networkID}},
				)
			})
	}
	if sh.HotplugMiB > 0 {
		steps = append(steps, func(ctx context.Context) error {
			return api.SetHotplugMemory(
				ctx,
				fcapi.HotplugMemory{TotalMiB: sh.HotplugMiB, SlotMiB: slotMiB, BlockMiB: blockMiB},
			)
		})
	}
	return steps
}
