package restore

import (
	"context"
	"fmt"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/wal"
)

// Log is the end of the log of an archive, for a server that has what comes before.
type Log struct {
	End wal.LSN

	a       *archive.Archive
	entries []archive.Entry
}

// FindLog returns the log of the newest timeline of an archive from a position on. Its End is that position if there is
// none; ErrHole means that it continues later.
func FindLog(ctx context.Context, a *archive.Archive, from wal.LSN) (*Log, error) {
	c, err := a.Catalog(ctx)
	if err != nil {
		return nil, err
	}
	path, err := c.Path(0)
	if err != nil {
		return nil, err
	}
	l := &Log{a: a}
	l.entries, l.End = c.Chain(path, from)
	for s, e := range c.Segments {
		if s.Timeline == path.Last() && e.End() > l.End {
			return nil, fmt.Errorf("%w: it ends at %v, and continues later", ErrHole, l.End)
		}
	}
	return l, nil
}

// Write writes the segments into pg_wal of a data directory. Those that are there already are replaced.
func (l *Log) Write(ctx context.Context, sink Sink) error {
	return writeSegments(ctx, l.a, l.entries, l.End, sink)
}
