package volume

import (
	"context"
	"fmt"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
)

// checkHeadroom refuses volumes for which the host has no room: its disk is short, or the sizes of all volumes would be
// more than its share of it.
func (s *Service) checkHeadroom(ctx context.Context, moreMiB int) error {
	c, err := s.host.Capacity(ctx)
	if err != nil {
		return hosterror.Wrap(err, "ask the host for", "its capacity")
	}
	if c.DiskShort || c.DiskFreeMiB < c.DiskReserveMiB {
		return s.noSpaceOf(ctx, c, "reserve", nil)
	}
	if s.cfg.Oversubscription == 0 {
		return nil
	}
	_, provisioned, err := s.db.Read().VolumeSums(ctx, "")
	if err != nil {
		return err
	}
	if provisioned+int64(moreMiB) > int64(c.DiskMiB-c.DiskReserveMiB)*int64(s.cfg.Oversubscription)/100 {
		return s.noSpaceOf(ctx, c, "oversubscribed", nil)
	}
	return nil
}

// noSpace returns the error for a volume that the host has no room for, with the numbers that the host can tell.
func (s *Service) noSpace(ctx context.Context, reason string, cause error) error {
	c, err := s.host.Capacity(ctx)
	if err != nil {
		c = hostapi.Capacity{} // the refusal is what matters
	}
	return s.noSpaceOf(ctx, c, reason, cause)
}

// noSpaceOf is noSpace with the numbers. The published clients read them beside the message.
func (s *Service) noSpaceOf(ctx context.Context, c hostapi.Capacity, reason string, cause error) error {
	_, provisioned, err := s.db.Read().VolumeSums(ctx, "")
	if err != nil {
		provisioned = 0 // the refusal is what matters
	}
	hint := "delete volumes, snapshots or sandboxes, or ask the operator for a larger disk"
	what := "its disk is almost full"
	if reason == "oversubscribed" {
		what = "the sizes of all volumes together are as much as it allows"
		hint = "use a smaller size_mb, delete volumes, or ask the operator to raise volume.oversubscription_percent"
	}
	e := api.Wrap(api.NoSpace, cause, fmt.Sprintf("the host has no room for this volume: %s: %s", what, hint))
	for _, f := range []struct {
		name  string
		value any
	}{
		{"reason", reason}, {"hint", hint},
		{"fs_size_bytes", int64(c.DiskMiB) << 20}, {"fs_free_bytes", int64(c.DiskFreeMiB) << 20},
		{"free_reserve_bytes", int64(c.DiskReserveMiB) << 20}, {"provisioned_bytes", provisioned << 20},
		{"oversub_factor", float64(s.cfg.Oversubscription) / 100},
	} {
		e = e.WithBeside(f.name, f.value)
	}
	return e
}
