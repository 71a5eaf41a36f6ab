//go:build vm

package qemu

import (
	"context"

	"github.com/pandastack/pandastack/internal/vmm"
)

// Throttled returns the disk limits that the monitor of m applies.
func Throttled(ctx context.Context, m vmm.Machine) ([]vmm.Rate, error) {
	var blocks []struct {
		Inserted struct {
			BPS  int64 `json:"bps"`
			IOPS int64 `json:"iops"`
		} `json:"inserted"`
	}
	if err := m.(*machine).do(ctx, "query-block", nil, &blocks); err != nil {
		return nil, err
	}
	var all []vmm.Rate
	for _, b := range blocks {
		all = append(all, vmm.Rate{Bytes: b.Inserted.BPS, Ops: b.Inserted.IOPS})
	}
	return all, nil
}
