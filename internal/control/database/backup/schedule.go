package backup

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/walrelay"
	"github.com/pandastack/pandastack/internal/control/store"
)

// baseLoop takes the base backups that are due.
func (k *Keeper) baseLoop(ctx context.Context) {
	ticker := time.NewTicker(k.cfg.Interval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if err := k.basePass(ctx); err != nil && ctx.Err() == nil {
			k.cfg.Log.Error("cannot look for due base backups", "err", err)
		}
		select {
		case <-ticker.C:
		case <-k.wake:
		case <-ctx.Done():
		}
	}
}

// basePass begins the base backups that are due. They end on their own.
func (k *Keeper) basePass(ctx context.Context) error {
	rows, err := k.cfg.Store.Read().AllDatabaseBackups(ctx)
	if err != nil {
		return err
	}
	for _, row := range rows {
		m := k.member(row.Database)
		if m == nil {
			continue
		}
		status := m.relay.Status()
		if status.State != walrelay.Streaming {
			continue // its log could not be kept
		}
		now := k.cfg.Now().UnixMicro()
		hole, err := m.newHole(ctx, status)
		if err != nil {
			k.cfg.Log.Warn("cannot look for holes in the log of a database", "database", row.Database, "err", err)
		}
		if hole && row.BaseDue > now {
			row.BaseDue = now
			if err := k.record(ctx, row, "base_due"); err != nil {
				return err
			}
		}
		if row.BaseDue > now || !k.bases.TryAcquire(1) {
			continue
		}
		if !m.begin(func() {
			defer k.bases.Release(1)
			k.takeDue(ctx, m, row)
		}) {
			k.bases.Release(1)
		}
	}
	return nil
}

// begin runs a base backup in a goroutine of its own, unless one is taken or the member has ended.
func (m *member) begin(take func()) bool {
	select {
	case m.due <- struct{}{}:
	default:
		return false
	}
	if !m.enter() {
		<-m.due
		return false
	}
	go func() {
		defer m.group.Done()
		defer func() { <-m.due }()
		take()
	}()
	return true
}

// newHole reports whether the log has a hole that no base backup was ordered for: one that the relay met, or one in the
// archive that an earlier process has left.
func (m *member) newHole(ctx context.Context, status walrelay.Status) (bool, error) {
	if h := status.Hole; h != nil && *h != m.hole {
		m.hole = *h
		return true, nil
	}
	if m.checked {
		return false, nil
	}
	c, err := m.archive.Catalog(ctx)
	if err != nil {
		return false, err
	}
	m.checked = true
	return lacksBase(c), nil
}

// lacksBase reports whether the end of the log cannot be restored.
func lacksBase(c *archive.Catalog) bool {
	path, err := c.Path(0)
	if err != nil {
		return true
	}
	bases := c.OnPath(path)
	if len(bases) == 0 {
		return true
	}
	_, end := c.Chain(path, bases[0].Start)
	for s, e := range c.Segments {
		if s.Timeline == path.Last() && e.End() > end {
			return true
		}
	}
	return false
}

// takeDue takes a base backup and records what became of it.
func (k *Keeper) takeDue(ctx context.Context, m *member, row store.DatabaseBackups) {
	_, err := k.takeBase(ctx, m, row)
	if err != nil && !errors.Is(err, errEnded) && ctx.Err() == nil {
		k.cfg.Log.Error("base backup failed", "database", row.Database, "err", err)
	}
}

// takeBase takes a base backup and records it. One that ended with its member, because the database is suspended, stays
// due.
func (k *Keeper) takeBase(ctx context.Context, m *member, row store.DatabaseBackups) (archive.Base, error) {
	started, was := k.cfg.Now(), row.BaseDue
	b, err := m.take(ctx)
	switch {
	case err == nil:
		row.Based, row.BaseError = b.Finished.UnixMicro(), ""
		row.BaseDue = started.Add(k.cfg.BaseInterval).UnixMicro()
		k.cfg.Log.Info("base backup", "database", row.Database, "base", b.ID, "bytes", b.Bytes,
			"took", k.cfg.Now().Sub(started))
		return b, k.recordBase(ctx, row, was)
	case errors.Is(err, errEnded), ctx.Err() != nil:
		return b, err
	}
	row.BaseError, row.BaseDue = err.Error(), k.cfg.Now().Add(k.cfg.Retry).UnixMicro()
	return b, errors.Join(err, k.recordBase(ctx, row, was))
}

// recordBase writes what became of a base backup. If the next one was ordered meanwhile, it stays due.
func (k *Keeper) recordBase(ctx context.Context, row store.DatabaseBackups, was int64) error {
	return k.cfg.Store.Write(ctx, "record base backup", func(ctx context.Context, tx *store.Tx) error {
		now, err := tx.DatabaseBackups(ctx, row.Database)
		if errors.Is(err, store.ErrNotFound) {
			return nil // removed
		}
		if err != nil {
			return err
		}
		if now.BaseDue != was {
			row.BaseDue = now.BaseDue
		}
		if row.Based == 0 {
			row.Based = now.Based
		}
		return tx.UpdateDatabaseBackups(ctx, &row, "based", "base_error", "base_due")
	})
}

// record writes columns of a row.
func (k *Keeper) record(ctx context.Context, row store.DatabaseBackups, columns ...string) error {
	return k.cfg.Store.Write(ctx, "record database backups", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateDatabaseBackups(ctx, &row, columns...)
	})
}

// Take takes a base backup of a database whose relay runs.
func (k *Keeper) Take(ctx context.Context, id string) (archive.Base, error) {
	m := k.member(id)
	if m == nil {
		return archive.Base{}, fmt.Errorf("database %s: %w", id, ErrNotRunning)
	}
	row, err := k.cfg.Store.Read().DatabaseBackups(ctx, id)
	if err != nil {
		return archive.Base{}, err
	}
	return k.takeBase(ctx, m, row)
}

// maintenanceLoop cleans and verifies the archives, and rehearses restores, one after the other.
func (k *Keeper) maintenanceLoop(ctx context.Context) {
	ticker := time.NewTicker(k.cfg.Interval)
	defer ticker.Stop()
	for {
		if err := k.maintain(ctx); err != nil && ctx.Err() == nil {
			k.cfg.Log.Error("cannot maintain the archives of databases", "err", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// maintain does what is due.
func (k *Keeper) maintain(ctx context.Context) error {
	rows, err := k.cfg.Store.Read().AllDatabaseBackups(ctx)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if row.CollectDue <= k.cfg.Now().UnixMicro() {
			if err := k.collect(ctx, row); err != nil {
				return err
			}
		}
		if row.ScrubDue <= k.cfg.Now().UnixMicro() {
			if err := k.scrub(ctx, row); err != nil {
				return err
			}
		}
	}
	return k.rehearseDue(ctx, rows)
}

// collect removes what the retention does not need of an archive.
func (k *Keeper) collect(ctx context.Context, row store.DatabaseBackups) error {
	next := k.cfg.CollectInterval
	a, err := k.archive(ctx, row.Database)
	if err == nil {
		var done archive.Removal
		if done, err = a.Collect(ctx, k.cfg.Retention, k.cfg.Now()); len(done.Bases)+len(done.Segments) > 0 {
			k.cfg.Log.Info("archive cleaned", "database", row.Database, "bases", len(done.Bases),
				"segments", len(done.Segments))
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		k.cfg.Log.Error("cannot clean the archive of a database", "database", row.Database, "err", err)
		next = k.cfg.Retry
	}
	row.CollectDue = k.cfg.Now().Add(next).UnixMicro()
	return k.record(ctx, row, "collect_due")
}

// scrub verifies a sample of an archive. Damage makes a base backup due, which restores what comes after it.
func (k *Keeper) scrub(ctx context.Context, row store.DatabaseBackups) error {
	a, err := k.archive(ctx, row.Database)
	var v archive.Verdict
	if err == nil {
		v, err = a.Scrub(ctx, archive.Scrub{Share: k.cfg.ScrubShare, Seed: rand.Uint64()})
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	now := k.cfg.Now()
	if err != nil {
		k.cfg.Log.Error("cannot verify the archive of a database", "database", row.Database, "err", err)
		row.ScrubDue = now.Add(k.cfg.Retry).UnixMicro()
		return k.record(ctx, row, "scrub_due")
	}
	row.ScrubDue, row.Scrubbed, row.ScrubError = now.Add(k.cfg.ScrubInterval).UnixMicro(), now.UnixMicro(), ""
	columns := []string{"scrub_due", "scrubbed", "scrub_error"}
	if !v.Intact() {
		row.ScrubError = describe(v)
		k.cfg.Log.Error("the archive of a database is damaged", "database", row.Database, "err", row.ScrubError)
	}
	if len(v.Damage) > 0 {
		row.BaseDue = now.UnixMicro()
		columns = append(columns, "base_due")
	}
	return k.record(ctx, row, columns...)
}

// describe says what a scrub found.
func describe(v archive.Verdict) string {
	var all []error
	for _, h := range v.Holes {
		all = append(all, fmt.Errorf("the log from %v to %v of timeline %d is missing", h.From, h.To, h.Timeline))
	}
	all = append(all, v.Damage...)
	const shown = 10
	if n := len(all); n > shown {
		all = append(all[:shown:shown], fmt.Errorf("and %d more", n-shown))
	}
	return errors.Join(all...).Error()
}
