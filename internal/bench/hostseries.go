package bench

import (
	"context"
	"errors"
)

// HostSeries measures a group of series that needs more than a client: the machine it runs on.
type HostSeries func(ctx context.Context, s *Sheet) error

// Sheet is where a More writes what it measured. It belongs to one goroutine.
type Sheet struct{ r *run }

// Series begins a series. What it holds is in the unit; a target may be nil.
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

// Times scales a number of measurements; there is at least one.
func (s *Sheet) Times(n int) int { return s.r.times(n) }

// Log says what is going on.
func (s *Sheet) Log(text string) { s.r.Report(text) }

var errNotHere = errors.New("it is measured by the command line on the node's own machine")

// more makes a part of a group that Options.More has.
func more(name string) part {
	return part{name, func(r *run, ctx context.Context) error {
		do := r.HostSeries[name]
		if do == nil {
			return errNotHere
		}
		return do(ctx, &Sheet{r})
	}}
}
