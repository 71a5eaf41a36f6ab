package qemu

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// diskRates returns the rate limits of the disks, or nil if there are none.
func diskRates(disks []vmm.Disk) []vmm.Rate {
	all := make([]vmm.Rate, len(disks))
	for i, d := range disks {
		all[i] = d.Rate
	}
	if !slices.ContainsFunc(all, func(r vmm.Rate) bool { return r != (vmm.Rate{}) }) {
		return nil
	}
	return all
}

// throttleOptions returns the -drive options for a rate limit.
func throttleOptions(r vmm.Rate) string {
	text := ""
	if r.Bytes > 0 {
		text += fmt.Sprintf(",throttling.bps-total=%d", r.Bytes)
	}
	if r.Ops > 0 {
		text += fmt.Sprintf(",throttling.iops-total=%d", r.Ops)
	}
	return text
}

// setThrottles sets this machine's disk limits in a monitor that was restored from another
// monitor's checkpoint. held are the limits of that other machine, which are usually the same.
func (m *machine) setThrottles(ctx context.Context, held []vmm.Rate) error {
	for i, d := range m.spec.Disks {
		var before vmm.Rate
		if i < len(held) {
			before = held[i]
		}
		if before == d.Rate {
			continue
		}
		args := map[string]any{"device": "d" + strconv.Itoa(i), "bps": max(0, d.Rate.Bytes), "bps_rd": 0, "bps_wr": 0,
			"iops": max(0, d.Rate.Ops), "iops_rd": 0, "iops_wr": 0}
		if err := m.do(ctx, "block_set_io_throttle", args, nil); err != nil {
			return fmt.Errorf("set rate limit of disk %d: %w", i, err)
		}
	}
	return nil
}

// updateThrottles sets the disk limits of an adopted machine, which may have changed while it was
// not managed.
func (m *machine) updateThrottles(ctx context.Context) error {
	held := diskRates(m.spec.Disks)
	if slices.Equal(held, m.record.DiskRates) {
		return nil
	}
	if err := m.setThrottles(ctx, m.record.DiskRates); err != nil {
		return err
	}
	m.record.DiskRates, m.manifest.DiskRates = held, held
	return vmmproc.WriteRecord(m.spec.Dir, m.record)
}
