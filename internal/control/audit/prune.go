package audit

import (
	"context"
	"slices"
	"time"

	"github.com/pandastack/pandastack/internal/control/store"
)

// When entries are removed, and how many in one transaction.
const (
	pruneInterval = 10 * time.Minute
	pruneAfter    = 10_000 // entries that were written
	pruneBatch    = 2_000
)

// prune removes entries that are too old, and the oldest of the workspaces that have the most if there are too many.
func (l *Log) prune(ctx context.Context) error {
	if l.cfg.Retention > 0 {
		before := store.Micros(time.Now().Add(-l.cfg.Retention))
		if err := l.remove(ctx, func(ctx context.Context, tx *store.Tx) (int, error) {
			return tx.DeleteAuditsBefore(ctx, before, pruneBatch)
		}); err != nil {
			return err
		}
	}
	if l.cfg.MaxEntries == 0 {
		return nil
	}
	counts, err := l.db.Read().CountAudits(ctx)
	if err != nil {
		return err
	}
	share := fairShare(counts, l.cfg.MaxEntries)
	for workspace, n := range counts {
		excess := n - share
		if err := l.remove(ctx, func(ctx context.Context, tx *store.Tx) (int, error) {
			if excess <= 0 {
				return 0, nil
			}
			done, err := tx.DeleteOldestAudits(ctx, workspace, min(excess, pruneBatch))
			excess -= done
			return done, err
		}); err != nil {
			return err
		}
	}
	return nil
}

// remove runs batches, each in a transaction of its own, until one removes nothing.
func (l *Log) remove(ctx context.Context, batch func(context.Context, *store.Tx) (int, error)) error {
	for done := 1; done > 0; {
		err := l.db.Write(ctx, "audit prune", func(ctx context.Context, tx *store.Tx) (err error) {
			done, err = batch(ctx, tx)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// fairShare returns how many entries each workspace may keep so that all together have at most total: those with fewer
// keep theirs.
func fairShare(counts map[string]int, total int) int {
	sizes := make([]int, 0, len(counts))
	for _, n := range counts {
		sizes = append(sizes, n)
	}
	slices.Sort(sizes)
	left := total
	for i, n := range sizes {
		if share := left / (len(sizes) - i); n > share {
			return share
		}
		left -= n
	}
	return total
}
