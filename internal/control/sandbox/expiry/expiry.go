// Package expiry removes what the store has kept for long enough.
package expiry

import (
	"context"
	"log/slog"
	"time"

	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
	"github.com/pandastack/pandastack/internal/control/store"
)

// interval is the time between removals.
const interval = time.Minute

// Retention says how long each is kept.
type Retention struct{ Tombstones, Idempotency, Audit time.Duration }

// Expirer removes tombstones, idempotency keys and audit entries that were kept long enough.
type Expirer struct {
	db   *store.DB
	keep Retention
	log  *slog.Logger
}

// New returns an expirer.
func New(db *store.DB, keep Retention, log *slog.Logger) *Expirer { return &Expirer{db, keep, log} }

// Run removes what has expired, until ctx ends.
func (e *Expirer) Run(ctx context.Context) error {
	return activity.Periodically(ctx, interval, e.log, "removing what has expired", e.once)
}

func (e *Expirer) once(ctx context.Context) error {
	at := time.Now()
	before := func(keep time.Duration) int64 { return store.Micros(at.Add(-keep)) }
	return e.db.Write(ctx, "forget", func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.DeleteExpired(ctx, before(e.keep.Tombstones), before(e.keep.Idempotency), before(e.keep.Audit))
		return err
	})
}
