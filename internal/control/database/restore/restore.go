// Package restore rebuilds a data directory, as of a moment, from an archive.
//
// Find resolves a target to a position of the log, and chooses a base backup and the segments from there to that
// position. Write sends the data directory to a Sink: the files of the base, verified against its manifest, the
// segments in pg_wal, and the settings with which the server applies them and ends the recovery at the position. A
// server that starts on the directory needs nothing else: no restore_command that fetches, and no credentials.
//
// Targets are resolved here and not by the server, by reading the log: so a target that does not exist is refused
// before anything is written, and the same target always means the same position.
package restore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/wal"
)

// Errors of Find, to be compared with errors.Is.
var (
	ErrNoBase   = errors.New("there is no complete base backup")
	ErrTooEarly = errors.New("the target is before the oldest base backup")
	ErrTooLate  = errors.New("the target is after the end of the log in the archive")
	ErrUnknown  = errors.New("the archive does not have the target")
	ErrHole     = errors.New("the archive lacks a part of the log before the target")
	ErrVariant  = errors.New("the base backup is of another build of PostgreSQL")
)

// Target is the moment to restore. At most one of Time, LSN, XID and Name is set; without any it is the end of the log.
type Target struct {
	Time time.Time // every transaction that committed by then
	LSN  wal.LSN   // every record that begins before
	XID  uint32    // up to the commit or abort of this transaction, which is included
	Name string    // up to the restore point of this name, the last if there are several
	// Timeline is the history to follow; 0 means the newest.
	Timeline wal.Timeline
	// CoveredUntil is a time up to which no transaction can be missing at the end of the log, if the caller knows one
	// later than the archive does: a relay's Status.Covered after Flush, or the time at which the server was stopped.
	CoveredUntil time.Time
	// Variant and Collation are those of the server that will use the files; the base's must be equal. Empty ones fit
	// all.
	Variant, Collation string
}

// String returns the target as in messages.
func (t Target) String() string {
	switch {
	case !t.Time.IsZero():
		return "time " + t.Time.UTC().Format(time.RFC3339Nano)
	case t.LSN != 0:
		return "position " + t.LSN.String()
	case t.XID != 0:
		return fmt.Sprintf("transaction %d", t.XID)
	case t.Name != "":
		return fmt.Sprintf("restore point %q", t.Name)
	}
	return "the end of the log"
}

func (t Target) check() error {
	n := 0
	for _, set := range []bool{!t.Time.IsZero(), t.LSN != 0, t.XID != 0, t.Name != ""} {
		if set {
			n++
		}
	}
	if n > 1 {
		return errors.New("restore: give one of a time, a position, a transaction and a name")
	}
	return nil
}

// Plan says how to restore a target.
type Plan struct {
	Target Target
	Base   archive.Base
	// Stop is the position before which the recovery ends; 0 is the end of the log.
	Stop wal.LSN
	// End is the end of the log that the plan uses. What the archive gets later is not restored.
	End wal.LSN

	a         *archive.Archive
	path      wal.Path
	entries   []archive.Entry
	histories []wal.Timeline // of the archive
}

// Bytes returns how much room the data directory needs before the server starts.
func (p *Plan) Bytes() int64 { return p.Base.Bytes + int64(len(p.entries))*wal.SegmentBytes }

// Timeline returns the history that the plan follows.
func (p *Plan) Timeline() wal.Timeline { return p.path.Last() }

// Find plans the restore of a target. Its errors wrap those of this package, and say what there is instead.
func Find(ctx context.Context, a *archive.Archive, target Target) (*Plan, error) {
	if err := target.check(); err != nil {
		return nil, err
	}
	c, err := a.Catalog(ctx)
	if err != nil {
		return nil, err
	}
	path, err := c.Path(target.Timeline)
	if err != nil {
		return nil, err
	}
	f := &finder{a: a, c: c, path: path, target: target, bases: c.OnPath(path)}
	if len(f.bases) == 0 {
		return nil, errors.Join(append([]error{ErrNoBase}, c.Damaged()...)...)
	}
	plan, err := f.find(ctx)
	if err != nil {
		return nil, fmt.Errorf("restore %v: %w", target, err)
	}
	for _, t := range c.Timelines() {
		if t > 1 {
			plan.histories = append(plan.histories, t)
		}
	}
	return plan, f.checkVariant(plan.Base)
}

// finder looks for a target.
type finder struct {
	a      *archive.Archive
	c      *archive.Catalog
	path   wal.Path
	target Target
	bases  []archive.Base // newest first
}

func (f *finder) checkVariant(b archive.Base) error {
	for _, one := range []struct{ what, have, want string }{
		{"variant", b.Variant, f.target.Variant}, {"collation version", b.Collation, f.target.Collation},
	} {
		if one.have != "" && one.want != "" && one.have != one.want {
			return fmt.Errorf("%w: its %s is %q, not %q", ErrVariant, one.what, one.have, one.want)
		}
	}
	return nil
}

// plan makes a plan that stops before a position, or at the end of the log if that is 0. The server reads the record
// after the position, which is next.
func (f *finder) plan(b archive.Base, stop wal.LSN, next *wal.Record) *Plan {
	entries, end := f.c.Chain(f.path, b.Start)
	if next != nil {
		for i, e := range entries {
			if e.Segment.Start() >= next.End {
				entries, end = entries[:i], entries[i-1].End()
				break
			}
		}
		end = max(end, next.End) // a longer object has replaced the last one since the catalogue was read
	}
	return &Plan{Target: f.target, Base: b, Stop: stop, End: end, a: f.a, path: f.path, entries: entries}
}

func (f *finder) find(ctx context.Context) (*Plan, error) {
	switch t := f.target; {
	case !t.Time.IsZero():
		return f.findTime(ctx)
	case t.LSN != 0:
		return f.findLSN(ctx)
	case t.XID != 0:
		return f.findRecord(ctx, func(r wal.Record) bool {
			return r.XID == t.XID && (r.Kind == wal.Commit || r.Kind == wal.Abort)
		})
	case t.Name != "":
		return f.findRecord(ctx, func(r wal.Record) bool { return r.Kind == wal.RestorePoint && r.Name == t.Name })
	}
	b := f.bases[0]
	if err := f.checkHole(b); err != nil {
		return nil, err
	}
	return f.plan(b, 0, nil), nil
}

// checkHole returns an error if the archive has log beyond the end of what follows a base without a hole.
func (f *finder) checkHole(b archive.Base) error {
	_, end := f.c.Chain(f.path, b.Start)
	for s, e := range f.c.Segments {
		if s.Timeline == f.path.Last() && e.End() > end {
			return fmt.Errorf("%w: it ends at %v, and continues later", ErrHole, end)
		}
	}
	return nil
}

// findTime looks for the first transaction that ended after the target.
func (f *finder) findTime(ctx context.Context) (*Plan, error) {
	t := f.target.Time
	for _, b := range f.bases {
		if b.Finished.After(t) {
			continue
		}
		after, s, err := f.first(ctx, b, func(r wal.Record) bool {
			return (r.Kind == wal.Commit || r.Kind == wal.Abort) && r.Time.After(t)
		})
		switch {
		case err != nil:
			return nil, err
		case after == nil:
			return f.endsBefore(b, s)
		case after.Start >= b.Stop:
			return f.plan(b, after.Start, after), nil
		}
		// The server's clock was ahead of this host's: transactions of this base are newer than the target.
	}
	oldest := f.bases[len(f.bases)-1]
	return nil, fmt.Errorf("%w, which is of %s", ErrTooEarly, oldest.Finished.Format(time.RFC3339Nano))
}

// endsBefore plans for a time after the last transaction of the log: its end, if nothing can be missing there.
func (f *finder) endsBefore(b archive.Base, s *scan) (*Plan, error) {
	if err := f.checkHole(b); err != nil {
		return nil, err
	}
	covered := s.coverage.At
	for _, one := range []time.Time{f.target.CoveredUntil, s.lastTime, b.Finished} {
		if one.After(covered) {
			covered = one
		}
	}
	if f.target.Time.After(covered) {
		return nil, fmt.Errorf("%w, which reaches to %s", ErrTooLate, covered.Format(time.RFC3339Nano))
	}
	return f.plan(b, 0, nil), nil
}

func (f *finder) findLSN(ctx context.Context) (*Plan, error) {
	for _, b := range f.bases {
		if b.Stop > f.target.LSN {
			continue
		}
		next, s, err := f.first(ctx, b, func(r wal.Record) bool { return r.Start >= f.target.LSN })
		switch {
		case err != nil:
			return nil, err
		case next != nil:
			return f.plan(b, f.target.LSN, next), nil
		case f.target.LSN <= s.scanner.End():
			return f.plan(b, 0, nil), f.checkHole(b)
		}
		if err := f.checkHole(b); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w, which ends at %v", ErrTooLate, s.scanner.End())
	}
	return nil, fmt.Errorf("%w, which is of %v", ErrTooEarly, f.bases[len(f.bases)-1].Stop)
}

// findRecord looks for the last record that matches.
func (f *finder) findRecord(ctx context.Context, match func(wal.Record) bool) (*Plan, error) {
	var found, next *wal.Record
	end := wal.LSN(0)
	for _, b := range f.oldestOfWindows() {
		_, s, err := f.first(ctx, b, func(r wal.Record) bool {
			if match(r) {
				found, next = &r, nil
			} else if found != nil && next == nil && r.Start >= found.End {
				next = &r
			}
			return false
		})
		if err != nil {
			return nil, err
		}
		end = s.scanner.End()
	}
	if found == nil {
		oldest := f.bases[len(f.bases)-1]
		return nil, fmt.Errorf("%w in the log from %v to %v", ErrUnknown, oldest.Stop, end)
	}
	for _, b := range f.bases {
		if b.Stop > found.Start {
			continue
		}
		if next == nil {
			return f.plan(b, 0, nil), nil
		}
		return f.plan(b, next.Start, next), nil
	}
	return nil, fmt.Errorf("%w, which is of %v; the target is at %v", ErrTooEarly, f.bases[len(f.bases)-1].Stop,
		found.Start)
}

// oldestOfWindows returns, oldest first, the bases from which together the whole log of the archive is read once.
func (f *finder) oldestOfWindows() []archive.Base {
	var all []archive.Base
	var reached wal.LSN
	for i := len(f.bases) - 1; i >= 0; i-- {
		if _, end := f.c.Chain(f.path, f.bases[i].Start); end > reached {
			all, reached = append(all, f.bases[i]), end
		}
	}
	return all
}
