package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/wal"
	"github.com/pandastack/pandastack/internal/lib/blob"
)

// Entry is an object with a segment of the log, or with its first bytes.
type Entry struct {
	Segment  wal.Segment
	Bytes    int       // of the log
	Stored   int64     // in the object store
	Modified time.Time // by the store's clock

	name string
}

// End returns the position after the last byte.
func (e Entry) End() wal.LSN { return e.Segment.Start() + wal.LSN(e.Bytes) }

// Partial reports whether the entry has only the first bytes of a segment.
func (e Entry) Partial() bool { return e.Bytes < wal.SegmentBytes }

// Catalog is what the archive of a database has at one moment.
type Catalog struct {
	Bases    []Base // oldest first
	Stored   int64  // bytes in the object store
	Segments map[wal.Segment]Entry

	paths   map[wal.Timeline]wal.Path
	partial []Entry              // that Segments has a longer entry for
	names   map[string][]string  // objects of bases, by id
	seen    map[string]time.Time // newest object of bases without a readable description, by id
	damaged []error              // of descriptions and histories
}

// Catalog lists what the archive has. It reads the descriptions of the bases and the histories of the timelines; those
// that are damaged are left out, and reported by Damaged.
func (a *Archive) Catalog(ctx context.Context) (*Catalog, error) {
	c := &Catalog{
		Segments: map[wal.Segment]Entry{}, paths: map[wal.Timeline]wal.Path{}, names: map[string][]string{},
		seen: map[string]time.Time{},
	}
	var metas []string
	histories := map[wal.Timeline]bool{}
	err := a.store.List(ctx, a.prefix, func(i blob.Info) error {
		name := strings.TrimPrefix(i.Key, a.prefix)
		c.Stored += i.Bytes
		if e, ok := entryOf(name); ok {
			e.Stored, e.Modified = i.Bytes, i.Modified
			c.add(e)
		}
		if id, ok := baseOf(name); ok {
			c.names[id] = append(c.names[id], name)
			if c.seen[id].Before(i.Modified) {
				c.seen[id] = i.Modified
			}
			if name == metaName(id) {
				metas = append(metas, id)
			}
		}
		if text, ok := strings.CutSuffix(name, "/history"); ok {
			if t, err := wal.ParseTimeline(text); err == nil {
				histories[t] = true
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for t := range histories {
		data, err := a.History(ctx, t)
		if err == nil {
			c.paths[t], err = wal.ParseHistory(t, data)
		}
		if err := c.damage(err); err != nil {
			return nil, err
		}
	}
	for _, id := range metas {
		b, err := a.readBase(ctx, id)
		if err == nil {
			c.Bases = append(c.Bases, b)
			delete(c.seen, id)
		}
		if err := c.damage(err); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(c.Bases, func(x, y Base) int {
		return cmp.Or(cmp.Compare(x.Start, y.Start), x.Finished.Compare(y.Finished), cmp.Compare(x.ID, y.ID))
	})
	c.paths[1] = wal.Path{{Timeline: 1}}
	return c, nil
}

// damage notes an error that concerns one object, and returns all others.
func (c *Catalog) damage(err error) error {
	if err == nil || errors.Is(err, blob.ErrNotFound) { // deleted meanwhile
		return nil
	}
	if errors.Is(err, ErrCorrupt) {
		c.damaged = append(c.damaged, err)
		return nil
	}
	return err
}

func (c *Catalog) add(e Entry) {
	known, ok := c.Segments[e.Segment]
	if ok && known.Bytes > e.Bytes {
		known, e = e, known
	}
	if ok {
		c.partial = append(c.partial, known)
	}
	c.Segments[e.Segment] = e
}

// Damaged returns the errors of descriptions that could not be read.
func (c *Catalog) Damaged() []error { return c.damaged }

// Path returns the path of a timeline; 0 means the newest.
func (c *Catalog) Path(t wal.Timeline) (wal.Path, error) {
	if t == 0 {
		t = c.Newest()
	}
	p, ok := c.paths[t]
	if !ok {
		return nil, fmt.Errorf("the archive has no history of timeline %d", t)
	}
	return p, nil
}

// Timelines lists the timelines whose history is known, in order.
func (c *Catalog) Timelines() []wal.Timeline { return slices.Sorted(maps.Keys(c.paths)) }

// Newest returns the newest timeline.
func (c *Catalog) Newest() wal.Timeline {
	newest := wal.Timeline(1)
	for t := range c.paths {
		newest = max(newest, t)
	}
	return newest
}

// Chain returns the entries with the log of a path from a position on, without a hole, and its end.
// The end is that position if there is no log.
func (c *Catalog) Chain(path wal.Path, from wal.LSN) ([]Entry, wal.LSN) {
	var chain []Entry
	end := from
	for n := uint64(from) / wal.SegmentBytes; ; n++ {
		e, clip, ok := c.pick(path, n)
		if !ok {
			return chain, end
		}
		chain = append(chain, e)
		end = max(end, e.End())
		if clip != 0 {
			return chain, max(from, min(end, clip))
		}
		if e.Partial() {
			return chain, end
		}
	}
}

// pick returns the entry of a path for a segment's number: that of the newest timeline which has begun in the segment
// or before. If the archive has none of a timeline that begins inside the segment, the log of its parent, up to clip,
// is in the parent's.
func (c *Catalog) pick(path wal.Path, number uint64) (e Entry, clip wal.LSN, ok bool) {
	for i := len(path) - 1; i >= 0; i-- {
		begin, _ := path.Begin(path[i].Timeline)
		first := uint64(begin) / wal.SegmentBytes
		if first > number {
			continue
		}
		if e, ok := c.Segments[wal.Segment{Timeline: path[i].Timeline, Number: number}]; ok {
			return e, clip, true
		}
		if first < number {
			break
		}
		clip = begin
	}
	return Entry{}, 0, false
}

// Complete reports whether the archive has the log that a base needs to become consistent.
func (c *Catalog) Complete(b Base) bool {
	path, err := c.Path(b.Timeline)
	if err != nil {
		return false
	}
	_, end := c.Chain(path, b.Start)
	return end >= b.Stop
}

// Window is a range of positions to each of which the database can be restored.
type Window struct {
	Timeline wal.Timeline `json:"timeline"`
	Base     string       `json:"base"` // the oldest of the range
	From     wal.LSN      `json:"from"`
	FromTime time.Time    `json:"from_time"`
	To       wal.LSN      `json:"to"`
	ToTime   time.Time    `json:"to_time,omitzero"` // zero if it is not known

	last Entry
}

// Windows returns the ranges of positions on a timeline's path that can be restored, oldest first.
// There is more than one if there is a hole between two bases. Timeline 0 means the newest.
func (c *Catalog) Windows(t wal.Timeline) ([]Window, error) {
	path, err := c.Path(t)
	if err != nil {
		return nil, err
	}
	var all []Window
	for _, b := range c.Bases {
		if !onPath(path, b) {
			continue
		}
		chain, end := c.Chain(path, b.Start)
		if end < b.Stop || len(all) > 0 && all[len(all)-1].To >= end {
			continue
		}
		all = append(all, Window{
			Timeline: path.Last(), Base: b.ID, From: b.Stop, FromTime: b.Finished, To: end, last: chain[len(chain)-1],
		})
	}
	return all, nil
}

// onPath reports whether a base can be used for targets on a path.
func onPath(path wal.Path, b Base) bool {
	end, ok := path.End(b.Timeline)
	return ok && (end == 0 || b.Stop <= end)
}

// OnPath returns the bases that lead to a path and have the log that they need, newest first.
func (c *Catalog) OnPath(path wal.Path) []Base {
	var all []Base
	for _, b := range slices.Backward(c.Bases) {
		if _, end := c.Chain(path, b.Start); onPath(path, b) && end >= b.Stop {
			all = append(all, b)
		}
	}
	return all
}

// FillTimes reads the times up to which the windows reach.
func (a *Archive) FillTimes(ctx context.Context, windows []Window) error {
	for i, w := range windows {
		_, coverage, err := a.ReadSegment(ctx, w.last)
		if err != nil {
			return err
		}
		windows[i].ToTime = coverage.At
	}
	return nil
}

// Hole is a part of the log that the archive lacks.
type Hole struct {
	Timeline wal.Timeline `json:"timeline"`
	From     wal.LSN      `json:"from"`
	To       wal.LSN      `json:"to"`
}

// Holes returns what is missing between the oldest base and the newest segment of each timeline.
func (c *Catalog) Holes() []Hole {
	var all []Hole
	for t, path := range c.paths {
		from := c.firstNeeded(path)
		last := from
		for s, e := range c.Segments {
			if s.Timeline == t {
				last = max(last, e.End())
			}
		}
		for from < last {
			_, end := c.Chain(path, from)
			if end >= last {
				break
			}
			next := last
			for s := range c.Segments {
				if s.Timeline == t && s.Start() >= end {
					next = min(next, s.Start())
				}
			}
			all = append(all, Hole{t, end, next})
			from = max(next, end+1)
		}
	}
	slices.SortFunc(all, func(x, y Hole) int {
		return cmp.Or(cmp.Compare(x.From, y.From), cmp.Compare(x.Timeline, y.Timeline))
	})
	return slices.Compact(all)
}

// firstNeeded returns the position from which bases need the log of a path, or where its log begins without any.
func (c *Catalog) firstNeeded(path wal.Path) wal.LSN {
	first := wal.LSN(0)
	lower := func(at wal.LSN) {
		if first == 0 || at < first {
			first = at
		}
	}
	for _, b := range c.Bases {
		if onPath(path, b) {
			lower(b.Start)
		}
	}
	if first != 0 {
		return first
	}
	for s := range c.Segments {
		if s.Timeline == path.Last() {
			lower(s.Start())
		}
	}
	return first
}
