package firecracker

import (
	"context"
	"fmt"
	"slices"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// diskRates returns the rate limits of the disks, or nil if there are none.
func diskRates(spec vmm.Spec) []vmm.Rate {
	all := make([]vmm.Rate, len(spec.Disks))
	some := false
	for i, d := range spec.Disks {
		all[i], some = d.Rate, some || d.Rate != (vmm.Rate{})
	}
	if !some {
		return nil
	}
	return all
}

func hasRates(spec vmm.Spec) bool {
	if diskRates(spec) != nil {
		return true
	}
	return spec.NIC != nil && (spec.NIC.In != (vmm.Rate{}) || spec.NIC.Out != (vmm.Rate{}))
}

// limiter returns a rate limiter for a rate per second. Firecracker treats a bucket of size 0 as
// unlimited.
func limiter(r vmm.Rate) *fcapi.RateLimiter {
	bucket := func(n int64) *fcapi.TokenBucket {
		if n <= 0 {
			return &fcapi.TokenBucket{}
		}
		return &fcapi.TokenBucket{Size: n, RefillMillis: 1000}
	}
	return &fcapi.RateLimiter{Bandwidth: bucket(r.Bytes), Ops: bucket(r.Ops)}
}

// updateRateLimits sets the disk limits of an adopted machine, which may have changed while it was
// not managed.
func (m *machine) updateRateLimits(ctx context.Context) error {
	held := diskRates(m.spec)
	if slices.Equal(held, m.record.DiskRates) {
		return nil
	}
	for i, d := range m.spec.Disks {
		if err := m.api.ChangeDrive(ctx, fcapi.DrivePatch{ID: driveName(i), Limiter: limiter(d.Rate)}); err != nil {
			return fmt.Errorf("set rate limit of disk %d: %w", i, err)
		}
	}
	m.record.DiskRates, m.record.Shape.Rates = held, hasRates(m.spec)
	return vmmproc.WriteRecord(m.spec.Dir, m.record)
}
