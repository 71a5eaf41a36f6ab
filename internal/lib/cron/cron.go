// Package cron computes the moments of cron expressions in time zones.
//
// An expression has five fields (minute, hour, day of month, month, day of week), or six with seconds in front. Lists,
// ranges, steps, names of months and days, 7 for Sunday, L, W and # are understood, and macros such as @daily.
// "@every 90s" is a fixed interval. If day of month and day of week are both restricted, one of them suffices, as in
// Vixie's cron.
//
// Clocks that are set forward and back follow the rules of ISC cron. An expression whose fields for hour and minute
// both begin with a number fires once for each time of day that it names: a time that is skipped fires at the first
// moment behind the gap that the clock would have shown, and a time that is repeated fires the first time. All other
// expressions fire whenever the clock shows what they name, and so not in a gap, and again in a repeated hour.
//
// The syntax is that of package gronx, which finds moments on a clock that is never set.
package cron

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/adhocore/gronx"
)

// Bounds of expressions.
const (
	maxText = 200 // bytes

	// MinEvery and MaxEvery bound the interval of @every.
	MinEvery = time.Second
	MaxEvery = 366 * 24 * time.Hour

	// horizon is how far a moment is looked for: the 29th of February is up to eight years away.
	horizon = 9 * 366 * 24 * time.Hour
	// maxSet bounds how far a clock is set at once; some places have skipped a whole day.
	maxSet = 25 * time.Hour
)

// ErrNever says that an expression names no moment, such as the 30th of February.
var ErrNever = errors.New("it names no moment, such as the 30th of February")

// Expression is a cron expression in a time zone. The zero value is not valid; Parse makes one.
type Expression struct {
	text  string
	zone  *time.Location
	every time.Duration // of @every; 0: text has fields
	fixed bool          // hour and minute begin with a number
}

// Parse reads an expression. zone is an IANA name, "" for UTC. The errors are for users.
func Parse(text, zone string) (Expression, error) {
	where := time.UTC
	if zone != "" {
		var err error
		// "Local" is the zone of this host, which means nothing to users.
		if where, err = time.LoadLocation(zone); err != nil || zone == "Local" {
			return Expression{}, fmt.Errorf("%.60q is not a time zone: use an IANA name such as Europe/Berlin", zone)
		}
	}
	x := Expression{text: strings.Join(strings.Fields(text), " "), zone: where}
	switch {
	case len(text) > maxText:
		return Expression{}, fmt.Errorf("the expression has %d characters: use at most %d", len(text), maxText)
	case x.text == "":
		return Expression{}, errors.New("the expression is empty: write one such as 0 9 * * 1-5")
	case strings.HasPrefix(x.text, "@every"):
		return parseEvery(x)
	}
	fields, err := gronx.Segments(x.text)
	if err != nil || len(fields) > 6 || !gronx.IsValid(x.text) {
		return Expression{}, fmt.Errorf("%.200q is not a cron expression: write five fields (minute, hour, "+
			"day of month, month, day of week), six with seconds in front, or @hourly, @daily or @every 90s", text)
	}
	x.fixed = startsWithDigit(fields[1]) && startsWithDigit(fields[2])
	if x.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return Expression{}, fmt.Errorf("%.200q: %w", text, ErrNever)
	}
	return x, nil
}

func parseEvery(x Expression) (Expression, error) {
	d, err := time.ParseDuration(strings.TrimSpace(strings.TrimPrefix(x.text, "@every")))
	if err != nil || d < MinEvery || d > MaxEvery || d%time.Second != 0 {
		return Expression{}, fmt.Errorf("%.200q is not an interval: write whole seconds, at least one, such as "+
			"@every 90s or @every 1h30m", x.text)
	}
	x.every = d
	return x, nil
}

func startsWithDigit(field string) bool { return field != "" && field[0] >= '0' && field[0] <= '9' }

// String returns the expression as it was written, with single spaces.
func (x Expression) String() string { return x.text }

// Next returns the first moment after a moment, in whole seconds. It is zero if there is none within nine years.
//
// For @every it is the interval later.
func (x Expression) Next(after time.Time) time.Time {
	after = after.Truncate(time.Second)
	switch {
	case x.every > 0:
		return after.Add(x.every)
	case x.fixed:
		return x.nextFixed(after.In(x.zone))
	}
	return x.nextShown(after.In(x.zone))
}

// Upcoming returns the first n moments after a moment; fewer if there are no more.
func (x Expression) Upcoming(after time.Time, n int) []time.Time {
	var out []time.Time
	for range n {
		if after = x.Next(after); after.IsZero() {
			break
		}
		out = append(out, after)
	}
	return out
}

// Last returns the last n of the moments of x from first to until, oldest first. first is a moment of x.
func (x Expression) Last(first, until time.Time, n int) []time.Time {
	if x.every > 0 {
		if until.Before(first) {
			return nil
		}
		last := int64(until.Sub(first) / x.every)
		var out []time.Time
		for k := max(0, last-int64(n)+1); k <= last; k++ {
			out = append(out, first.Add(time.Duration(k)*x.every))
		}
		return out
	}
	// Most of a long time is not looked at.
	for back := time.Minute; ; back *= 4 {
		from, whole := until.Add(-back), false
		if !from.After(first) {
			from, whole = first.Add(-time.Second), true
		}
		var out []time.Time
		for at := x.Next(from); !at.IsZero() && !at.After(until); at = x.Next(at) {
			if out = append(out, at); len(out) > n {
				out = out[1:]
			}
		}
		if whole || len(out) == n {
			return out
		}
	}
}

// onClock returns the first time after a time on a clock that is never set, or at it; false if there is none.
func (x Expression) onClock(after time.Time, inclusive bool) (time.Time, bool) {
	next, err := gronx.NextTickAfter(x.text, after, inclusive)
	return next, err == nil && (next.After(after) || inclusive && next.Equal(after)) && next.Sub(after) < horizon
}

// nextShown returns the first moment after a moment at which the clock of the zone shows what x names. It looks at
// one stretch of time after the other in which that clock is not set.
func (x Expression) nextShown(after time.Time) time.Time {
	for inclusive, end := false, after.Add(horizon); after.Before(end); inclusive = true {
		name, offset := after.Zone()
		next, ok := x.onClock(after.In(time.FixedZone(name, offset)), inclusive)
		_, set := after.ZoneBounds()
		if ok && (set.IsZero() || next.Before(set)) {
			return next.In(x.zone)
		}
		if set.IsZero() {
			break
		}
		after = set.In(x.zone)
	}
	return time.Time{}
}

// nextFixed returns the first moment after a moment of those that the times of day of x stand for. If the clock was set
// lately, times that it skipped may be still to come although it shows a later one.
func (x Expression) nextFixed(after time.Time) time.Time {
	clock := wall(after)
	if set, _ := after.ZoneBounds(); !set.IsZero() && after.Sub(set) < maxSet {
		clock = clock.Add(-maxSet)
	}
	for {
		next, ok := x.onClock(clock, false)
		if !ok {
			return time.Time{}
		}
		if at := x.moment(next); at.After(after) {
			return at
		}
		clock = next
	}
}

// wall returns what a clock shows at a moment, as a time of a clock that is never set.
func wall(at time.Time) time.Time {
	_, offset := at.Zone()
	return at.UTC().Add(time.Duration(offset) * time.Second)
}

// moment returns when the clock of the zone shows a time: the first such moment if there are two. If there is none,
// because the clock is set forward over that time, it is as long behind the gap as the time is inside it.
func (x Expression) moment(clock time.Time) time.Time {
	y, m, d := clock.Date()
	at := time.Date(y, m, d, clock.Hour(), clock.Minute(), clock.Second(), 0, x.zone)
	// time.Date does not promise which of the two offsets it uses beside a change of the clock.
	set, next := at.ZoneBounds()
	for _, change := range []time.Time{set, next} {
		if change.IsZero() {
			continue
		}
		_, offset := change.Add(-time.Second).In(x.zone).Zone()
		before := clock.Add(-time.Duration(offset) * time.Second) // by the clock as it was before the change
		_, later := change.In(x.zone).Zone()
		skipped := later > offset && !before.Before(change) &&
			before.Before(change.Add(time.Duration(later-offset)*time.Second))
		repeated := later < offset && before.Before(change) &&
			!before.Before(change.Add(time.Duration(later-offset)*time.Second))
		if skipped || repeated {
			return before.In(x.zone)
		}
	}
	return at
}
