package bench

import (
	"context"
	"errors"
)

// HostSeries measures a group of series that needs access to the host of the node.
type HostSeries func(ctx context.Context, s *Sheet) error

// Sheet records the measurements of a HostSeries. It must not be used concurrently.
type Sheet struct{ r *run }

// Series adds a series to the report. unit is the unit of its values; target may be nil.
func (s *Sheet) Series(name, what, unit string, target *Target) *Series {
	out := s.r.series(name, what, target)
	out.Unit = unit
	return out
}

// Add records one value of a series.
func (s *Sheet) Add(to *Series, value float64) {
	to.Values = append(to.Values, value)
	to.close()
}

// Times returns n scaled by Options.Scale, and at least 1.
func (s *Sheet) Times(n int) int { return s.r.times(n) }

// Log reports progress.
func (s *Sheet) Log(text string) { s.r.Report(text) }

// errNotHere is the reason for skipping a group without a HostSeries.
var errNotHere = errors.New("needs access to the node's host; run 'pandastack bench' there")

// hostPart returns the part that runs an entry of Options.HostSeries.
func hostPart(name string) part {
	return part{name, func(r *run, ctx context.Context) error {
		do := r.HostSeries[name]
		if do == nil {
			return errNotHere
		}
		return do(ctx, &Sheet{r})
	}}
}
