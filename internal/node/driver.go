package node

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker"
	"github.com/pandastack/pandastack/internal/vmm/qemu"
)

// driver creates the VMM driver: the configured one, or the one that probing selects.
func (n *node) driver(ctx context.Context) (vmm.Driver, error) {
	choice, err := n.chooseDriver(ctx)
	if err != nil {
		return nil, err
	}
	n.Log.Info("using VMM driver", "driver", choice.Driver, "accelerator", choice.Accelerator, "why", choice.Why)
	c := n.Config.VMM
	if choice.Driver == probe.FirecrackerDriver {
		d, err := firecracker.New(ctx, firecracker.Config{
			Binary:           c.Firecracker,
			Jailer:           c.Jailer,
			Dir:              n.path("captures"),
			HotplugMemoryMiB: c.HotplugMemoryMiB,
			HotplugDisks:     c.HotplugDisks,
		})
		if err != nil {
			return nil, fmt.Errorf("open the Firecracker driver: %w", err)
		}
		return d, nil
	}
	d, err := qemu.New(
		ctx,
		qemu.Config{
			Binary: c.QEMU, Accelerator: choice.Accelerator, Dir: n.path("qemu"), Log: n.Log,
			AllowSyscalls: c.AllowedSyscalls(),
		},
	)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("QEMU is not installed: %w; run 'pandastack setup'", err)
	}
	if err != nil {
		return nil, fmt.Errorf("QEMU: %w", err)
	}
	return d, nil
}

// tapOwner returns a function that maps a slot to the user that opens its tap by name, or nil for a driver that
// receives taps as open files.
func (n *node) tapOwner(driver vmm.Driver, jails *jail.Manager) func(slot int) (uid, gid int) {
	if !driver.Capabilities().NIC.OpensTapByName {
		return nil
	}
	return n.monitorUser(jails)
}

// chooseDriver selects driver and accelerator by probing the host. If the configuration sets an accelerator for QEMU,
// it is used without a probe.
func (n *node) chooseDriver(ctx context.Context) (probe.DriverChoice, error) {
	c := n.Config.VMM
	if c.Accelerator != probe.Auto && c.Driver != probe.FirecrackerDriver {
		return probe.DriverChoice{
			Driver:      probe.QEMUDriver,
			Accelerator: vmm.Accelerator(c.Accelerator),
			Why:         "vmm.accelerator is set",
		}, nil
	}
	return probe.ChooseDriver(ctx, probe.Config{
		DataDir:     n.Config.DataDir,
		QEMU:        c.QEMU,
		Driver:      c.Driver,
		Firecracker: c.Firecracker,
		GuestAgent:  n.Config.Agent(),
	})
}
