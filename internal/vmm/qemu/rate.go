package qemu

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// rates are the bounds of disks; nil when none has any.
func rates(disks []vmm.Disk) []vmm.Rate {
	all := make([]vmm.Rate, len(disks))
	for i, d := range disks {
		all[i] = d.Rate
	}
	if !slices.ContainsFunc(all, func(r vmm.Rate) bool { return r != (vmm.Rate{}) }) {
		return nil
	}
	return all
}

// throttling is what a drive's option says of its bounds.
func throttling(r vmm.Rate) string {
	text := ""
	if r.Bytes > 0 {
		text += fmt.Sprintf(",throttling.bps-total=%d", r.Bytes)
	}
	if r.Ops > 0 {
		text += fmt.Sprintf(",throttling.iops-total=%d", r.Ops)
	}
	return text
}

// throttle gives a monitor that was made of another the bounds of this machine's disks. held are those of the
// other, which are usually the same: then there is nothing to say.
func (m *machine) throttle(ctx context.Context, held []vmm.Rate) error {
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
			return fmt.Errorf("bound disk %d: %w", i, err)
		}
	}
	return nil
}

// bound gives a monitor that was taken over the bounds of its machine's disks, which may have changed meanwhile.
func (m *machine) bound(ctx context.Context) error {
	held := rates(m.spec.Disks)
	if slices.Equal(held, m.record.DiskRates) {
		return nil
	}
	if err := m.throttle(ctx, m.record.DiskRates); err != nil {
		return err
	}
	m.record.DiskRates, m.manifest.DiskRates = held, held
	return vmmproc.WriteRecord(m.spec.Dir, m.record)
}
