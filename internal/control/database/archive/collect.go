package archive

import (
	"context"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/wal"
	"github.com/pandastack/pandastack/internal/lib/blob"
)

// Retention says what to keep. Every moment of the period stays restorable, so the newest base from before it stays,
// too. At least one base stays.
type Retention struct {
	Period time.Duration // restorable until this long ago
	Count  int           // keep at least this many bases
}

// abandoned is the age from which the objects of a base without description have no writer any more.
const abandoned = 24 * time.Hour

// Removal is what Collect removes.
type Removal struct {
	Bases    []Base
	Segments []Entry
	Objects  int   // of abandoned bases, and superfluous partial segments
	Bytes    int64 // of segments, in the object store
}

// Plan returns the bases and segments that a retention does not need at a time. It removes nothing.
//
// A base is kept if it is the newest usable one from before the period, or newer than that one. The log is kept from
// the first segment on that a kept base needs. Without a usable base from before the period, every base is kept;
// without any base, the whole log.
func (c *Catalog) Plan(r Retention, now time.Time) Removal {
	var done Removal
	oldest := 0
	begin := now.Add(-r.Period)
	for i, b := range c.Bases {
		if !b.Finished.After(begin) && c.Complete(b) && len(c.Bases)-i >= max(r.Count, 1) {
			oldest = i
		}
	}
	done.Bases = append(done.Bases, c.Bases[:oldest]...)
	kept := c.Bases[oldest:]
	if len(kept) == 0 || len(c.damaged) > 0 {
		return done // the log may be needed by what could not be read
	}
	first := kept[0].Start
	for _, b := range kept {
		first = min(first, b.Start)
	}
	for s, e := range c.Segments {
		if s.Number < wal.SegmentAt(s.Timeline, first).Number {
			done.Segments = append(done.Segments, e)
			done.Bytes += e.Stored
		}
	}
	return done
}

// Collect removes what a retention does not need at a time, and what failed writers have left. A kill at any moment
// leaves an archive that can be restored as before.
func (a *Archive) Collect(ctx context.Context, r Retention, now time.Time) (Removal, error) {
	if r.Period < 0 || r.Count < 0 {
		return Removal{}, fmt.Errorf("retention of %v and %d bases: want no negative values", r.Period, r.Count)
	}
	c, err := a.Catalog(ctx)
	if err != nil {
		return Removal{}, err
	}
	done := c.Plan(r, now)
	for _, b := range done.Bases {
		if err := a.removeBase(ctx, b.ID); err != nil {
			return done, err
		}
	}
	// The log goes last: no base that needs it is left.
	for _, e := range done.Segments {
		if err := a.delete(ctx, e.name); err != nil {
			return done, err
		}
	}
	for _, e := range c.partial {
		if err := a.delete(ctx, e.name); err != nil {
			return done, err
		}
		done.Objects++
	}
	for id, at := range c.seen {
		if now.Sub(at) < abandoned || c.unreadable(id) {
			continue
		}
		if err := a.removeBase(ctx, id); err != nil {
			return done, err
		}
		done.Objects += len(c.names[id])
	}
	return done, nil
}

// unreadable reports whether a base has a description that could not be read. It is left for an operator.
func (c *Catalog) unreadable(id string) bool {
	for _, name := range c.names[id] {
		if name == metaName(id) {
			return true
		}
	}
	return false
}

// RemoveBase removes a base backup.
func (a *Archive) RemoveBase(ctx context.Context, b Base) error { return a.removeBase(ctx, b.ID) }

// removeBase removes the objects of a base, its description first, so that no incomplete base is listed.
func (a *Archive) removeBase(ctx context.Context, id string) error {
	if err := a.delete(ctx, metaName(id)); err != nil {
		return err
	}
	var names []string
	err := a.store.List(ctx, a.prefix+baseName(id), func(i blob.Info) error {
		names = append(names, i.Key[len(a.prefix):])
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := a.delete(ctx, name); err != nil {
			return err
		}
	}
	return nil
}
