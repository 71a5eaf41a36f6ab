package machine

import (
	"context"
	"fmt"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/vmm"
)

// LineBytes is what a line of so many Mbit/s carries in a second.
func LineBytes(mbit int) int64 { return int64(mbit) * 1e6 / 8 }

// diskRate is how limits bound each disk.
func diskRate(l hostapi.Limits) vmm.Rate {
	return vmm.Rate{Bytes: int64(l.DiskMiB) * mib, Ops: int64(l.DiskOps)}
}

// checkLimits refuses limits that a machine here cannot have.
func (m *Manager) checkLimits(l hostapi.Limits) error {
	if err := l.Check(m.cfg.Limits); err != nil {
		return err
	}
	if c := m.deps.Driver.Capabilities(); diskRate(l) != (vmm.Rate{}) && !c.Disks.Rates {
		return unsupported("bound what goes through disks", c)
	}
	return nil
}

// applyNetworkRates bounds what goes through a machine's slot, which has the host's bounds, as the machine asked for.
func (m *Manager) applyNetworkRates(ctx context.Context, mc *machine) error {
	l := mc.rec.Limits
	if l.NetworkInMbit == 0 && l.NetworkOutMbit == 0 {
		return nil
	}
	if err := mc.slot.SetRates(ctx, LineBytes(l.NetworkInMbit), LineBytes(l.NetworkOutMbit)); err != nil {
		return fmt.Errorf("bound the network: %w", err)
	}
	return nil
}
