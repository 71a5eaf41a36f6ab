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

// driver makes the driver of the monitors: the one that is configured, or the one that was found by trying.
func (n *node) driver(ctx context.Context) (vmm.Driver, error) {
	choice, err := n.choose(ctx)
	if err != nil {
		return nil, err
	}
	n.Log.Info("machines run", "driver", choice.Driver, "accelerator", choice.Accelerator, "why", choice.Why)
	c := n.Config.VMM
	if choice.Driver == probe.FirecrackerDriver {
		d, err := firecracker.New(ctx, firecracker.Config{
			Binary: c.Firecracker, Jailer: c.Jailer, Dir: n.path("captures"), HotplugMemoryMiB: c.HotplugMemoryMiB, HotplugDisks: c.HotplugDisks,
		})
		if err != nil {
			return nil, fmt.Errorf("start with Firecracker: %w", err)
		}
		return d, nil
	}
	d, err := qemu.New(
		ctx,
		qemu.Config{Binary: c.QEMU, Accelerator: choice.Accelerator, Dir: n.path("qemu"), Log: n.Log},
	)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("QEMU is not installed: %w; run pandastack setup", err)
	}
	if err != nil {
		return nil, fmt.Errorf("QEMU: %w", err)
	}
	return d, nil
}

// hand says who opens taps by their names; nil for a driver that is given them open.
func (n *node) hand(driver vmm.Driver, cell *jail.Manager) func(slot int) (uid, gid int) {
	if !driver.Capabilities().NIC.OpensTapByName {
		return nil
	}
	return n.owner(cell)
}

// choose finds out how machines run here. QEMU with an accelerator that the configuration names is not tried.
func (n *node) choose(ctx context.Context) (probe.DriverChoice, error) {
	c := n.Config.VMM
	if c.Accelerator != probe.Auto && c.Driver != probe.FirecrackerDriver {
		return probe.DriverChoice{
			Driver:      probe.QEMUDriver,
			Accelerator: vmm.Accelerator(c.Accelerator),
			Why:         "vmm.accelerator is set",
		}, nil
	}
	return probe.ChooseDriver(ctx, probe.Config{
		DataDir: n.Config.DataDir, QEMU: c.QEMU, Driver: c.Driver, Firecracker: c.Firecracker, GuestAgent: n.Config.Agent(),
	})
}
