package machine

import (
	"context"
	"fmt"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/vmm"
)

// LineBytes returns how many bytes per second are mbit Mbit/s.
func LineBytes(mbit int) int64 { return int64(mbit) * 1e6 / 8 }

// diskRate returns the rate of each disk under limits.
func diskRate(l hostapi.Limits) vmm.Rate {
	return vmm.Rate{Bytes: int64(l.DiskMiB) * mib, Ops: int64(l.DiskOps)}
}

// checkLimits returns an error for limits that a machine on this host cannot have.
func (m *Manager) checkLimits(l hostapi.Limits) error {
	if err := l.Check(m.cfg.Limits); err != nil {
		return err
	}
	if c := m.deps.Driver.Capabilities(); diskRate(l) != (vmm.Rate{}) && !c.Disks.Rates {
		return unsupported("limit the rate of disks", c)
	}
	return nil
}

// applyNetworkRates applies a machine's own network limits to its slot, which has the host's.
func (m *Manager) applyNetworkRates(ctx context.Context, mc *machine) error {
	l := mc.rec.Limits
	if l.NetworkInMbit != 0 || l.NetworkOutMbit != 0 {
		if err := mc.slot.SetRates(ctx, LineBytes(l.NetworkInMbit), LineBytes(l.NetworkOutMbit)); err != nil {
			return fmt.Errorf("limit the network rate: %w", err)
		}
	}
	if l.Connections != 0 || l.NewConnections != 0 {
		if err := mc.slot.SetConnections(ctx, l.Connections, l.NewConnections); err != nil {
			return fmt.Errorf("limit the connections: %w", err)
		}
	}
	return nil
}
