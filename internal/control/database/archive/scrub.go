package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"

	"github.com/pandastack/pandastack/internal/control/database/manifest"
	"github.com/pandastack/pandastack/internal/control/database/wal"
	"github.com/pandastack/pandastack/internal/lib/blob"
)

// Scrub says how much to verify.
type Scrub struct {
	// Share is the part of the bases and segments to read, between 0 and 1. The newest base, and the newest segment of
	// each timeline, are always read.
	Share float64
	Seed  uint64 // of the sample
}

// Verdict is the result of a scrub.
type Verdict struct {
	Bases    int     `json:"bases"` // that were read
	Segments int     `json:"segments"`
	Bytes    int64   `json:"bytes"` // after decompression
	Holes    []Hole  `json:"holes"`
	Damage   []error `json:"-"` // one for each damaged or missing object
}

// Intact reports whether nothing is damaged or missing.
func (v Verdict) Intact() bool { return len(v.Damage) == 0 && len(v.Holes) == 0 }

// Scrub reads a sample of the archive and verifies it: every file of a base against its manifest, and the checksums of
// every record of a segment. Damage is in the verdict; an error means that the store could not be read.
func (a *Archive) Scrub(ctx context.Context, opt Scrub) (Verdict, error) {
	c, err := a.Catalog(ctx)
	if err != nil {
		return Verdict{}, err
	}
	v := Verdict{Holes: c.Holes(), Damage: slices.Clone(c.damaged)}
	sample := rand.New(rand.NewPCG(opt.Seed, 0))
	for i, b := range c.Bases {
		if i < len(c.Bases)-1 && sample.Float64() >= opt.Share {
			continue
		}
		v.Bases++
		v.Bytes += b.Bytes
		if err := v.note(a.verifyBase(ctx, b)); err != nil {
			return v, err
		}
		if !c.Complete(b) {
			v.Damage = append(v.Damage, fmt.Errorf("base %s lacks the log from %v to %v", b.ID, b.Start, b.Stop))
		}
	}
	newest := map[wal.Timeline]uint64{}
	entries := make([]Entry, 0, len(c.Segments))
	for s, e := range c.Segments {
		newest[s.Timeline] = max(newest[s.Timeline], s.Number)
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(x, y Entry) int { return cmp.Compare(x.name, y.name) })
	for _, e := range entries {
		if e.Segment.Number < newest[e.Segment.Timeline] && sample.Float64() >= opt.Share {
			continue
		}
		v.Segments++
		v.Bytes += int64(e.Bytes)
		if err := v.note(a.verifySegment(ctx, e)); err != nil {
			return v, err
		}
	}
	return v, nil
}

// note takes an error that shows damage. It returns all others.
func (v *Verdict) note(err error) error {
	if errors.Is(err, ErrCorrupt) || errors.Is(err, blob.ErrNotFound) || errors.Is(err, manifest.ErrMismatch) ||
		errors.Is(err, wal.ErrCorrupt) {
		v.Damage = append(v.Damage, err)
		return nil
	}
	return err
}

// verifyBase reads a base and compares it with its manifest.
func (a *Archive) verifyBase(ctx context.Context, b Base) error {
	text, err := a.ReadManifest(ctx, b)
	if err != nil {
		return err
	}
	m, err := manifest.Parse(text)
	if err != nil {
		return fmt.Errorf("base %s: %w", b.ID, err)
	}
	check := m.Check(a.OpenBase(ctx, b))
	for {
		if _, err := check.Next(); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("base %s: %w", b.ID, err)
		}
	}
}

// verifySegment reads a segment and checks the records that are in it as a whole. A complete segment must be full of
// records.
func (a *Archive) verifySegment(ctx context.Context, e Entry) error {
	data, _, err := a.ReadSegment(ctx, e)
	if err != nil {
		return err
	}
	var s wal.Scanner
	if err := s.Scan(e.Segment, data, func(wal.Record) error { return nil }); err != nil {
		return fmt.Errorf("%s: %w", a.prefix+e.name, err)
	}
	if s.Ended() && !e.Partial() {
		return fmt.Errorf("%s: the log ends at %v: %w", a.prefix+e.name, s.End(), wal.ErrCorrupt)
	}
	return nil
}
