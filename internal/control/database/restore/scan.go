package restore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/wal"
)

// ahead is the number of segments that are fetched before they are needed.
const ahead = 3

// scan is the result of reading the log.
type scan struct {
	scanner  wal.Scanner
	coverage archive.Coverage // of the last segment that was read
	lastTime time.Time        // of the last transaction that was read
}

var errFound = errors.New("found")

// first reads the log from a base on, and returns the first record that matches, or nil at the end of the log.
func (f *finder) first(ctx context.Context, b archive.Base, match func(wal.Record) bool) (*wal.Record, *scan, error) {
	entries, _ := f.c.Chain(f.path, b.Start)
	s := &scan{}
	var found *wal.Record
	err := fetch(ctx, f.a, entries, func(e archive.Entry, data []byte, c archive.Coverage) error {
		s.coverage = c
		err := s.scanner.Scan(e.Segment, data, func(r wal.Record) error {
			if match(r) {
				found = &r
				return errFound
			}
			if r.Kind != wal.Other {
				s.lastTime = r.Time
			}
			return nil
		})
		if err == nil && s.scanner.Ended() && e != entries[len(entries)-1] {
			err = fmt.Errorf("segment %v: %w: the log ends at %v", e.Segment, archive.ErrCorrupt, s.scanner.End())
		}
		return err
	})
	if errors.Is(err, errFound) {
		err = nil
	}
	if err == nil && s.scanner.System() != 0 && s.scanner.System() != b.System {
		err = fmt.Errorf("%w: the log is of cluster %d, the base of %d", archive.ErrCorrupt, s.scanner.System(),
			b.System)
	}
	return found, s, err
}

// fetched is a segment, or the error of reading it.
type fetched struct {
	data     []byte
	coverage archive.Coverage
	err      error
}

// fetch reads segments ahead of their use, and calls use with each in order.
func fetch(ctx context.Context, a *archive.Archive, entries []archive.Entry,
	use func(archive.Entry, []byte, archive.Coverage) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan chan fetched, ahead)
	ended := make(chan struct{})
	go func() { // ends with ctx; fetch waits for it
		defer close(ended)
		defer close(results)
		for _, e := range entries {
			one := make(chan fetched, 1)
			select {
			case results <- one:
			case <-ctx.Done():
				return
			}
			var r fetched
			r.data, r.coverage, r.err = a.ReadSegment(ctx, e)
			one <- r
		}
	}()
	defer func() { cancel(); <-ended }()
	for _, e := range entries {
		one, ok := <-results
		if !ok {
			return context.Cause(ctx)
		}
		r := <-one
		if r.err != nil {
			return r.err
		}
		if err := use(e, r.data, r.coverage); err != nil {
			return err
		}
	}
	return nil
}
