package backup

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/internal/control/database/restore"
	"github.com/pandastack/pandastack/internal/control/store"
)

const (
	// rehearsalLimit bounds a rehearsal, and releaseLimit the removal of its server.
	rehearsalLimit = 2 * time.Hour
	releaseLimit   = 5 * time.Minute
	// keptRehearsals is how many rows are looked at for the last one.
	keptRehearsals = 1000
)

// Machines makes servers for rehearsals.
type Machines interface {
	// Scratch makes a server of the same build as a database's with room for a data directory of a size. No client
	// can reach it. The caller calls release.
	Scratch(ctx context.Context, database string, bytes int64) (Server, func(context.Context) error, error)
}

// endLostRehearsals ends the rows of rehearsals whose process has ended.
func (k *Keeper) endLostRehearsals(ctx context.Context) error {
	rows, err := k.cfg.Store.Read().DatabaseRehearsals(ctx, "", keptRehearsals)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if row.State != store.RehearsalRunning {
			continue
		}
		row.State, row.Error, row.Ended = store.RehearsalFailed, "the program ended", k.cfg.Now().UnixMicro()
		if err := k.putRehearsal(ctx, row); err != nil {
			return err
		}
	}
	return nil
}

// putRehearsal writes a row, unless its database was deleted.
func (k *Keeper) putRehearsal(ctx context.Context, row store.DatabaseRehearsal) error {
	return k.cfg.Store.Write(ctx, "record rehearsal", func(ctx context.Context, tx *store.Tx) error {
		if _, err := tx.Database(ctx, row.Database); err != nil {
			if errors.Is(err, store.ErrNotFound) {
				return nil
			}
			return err
		}
		return tx.PutDatabaseRehearsal(ctx, &row)
	})
}

// rehearseDue rehearses the restore of a random database that has a base backup, once a night.
func (k *Keeper) rehearseDue(ctx context.Context, rows []store.DatabaseBackups) error {
	if k.cfg.Machines == nil {
		return nil
	}
	last, err := k.cfg.Store.Read().DatabaseRehearsals(ctx, "", 1)
	if err != nil {
		return err
	}
	var candidates []string
	for _, row := range rows {
		if row.Based > 0 {
			candidates = append(candidates, row.Database)
		}
	}
	if len(candidates) == 0 || len(last) > 0 && timeOf(last[0].Started).After(k.lastNight()) {
		return nil
	}
	if len(last) == 0 && !k.cfg.Now().UTC().Truncate(time.Hour).Equal(k.lastNight()) {
		return nil // the first one waits for its hour
	}
	_, err = k.Rehearse(ctx, candidates[mathrand.IntN(len(candidates))])
	return err
}

// lastNight returns the last time at which the hour of rehearsals began.
func (k *Keeper) lastNight() time.Time {
	now := k.cfg.Now().UTC()
	at := time.Date(now.Year(), now.Month(), now.Day(), k.cfg.RehearsalHour, 0, 0, 0, time.UTC)
	if at.After(now) {
		at = at.AddDate(0, 0, -1)
	}
	return at
}

// Rehearse restores a database into a server of its own and verifies every table and index there.
//
// It restores the end of the log, and records and returns the result. An error means that it could not be recorded.
func (k *Keeper) Rehearse(ctx context.Context, id string) (store.DatabaseRehearsal, error) {
	row, err := k.beginRehearsal(ctx, id)
	if err != nil {
		return row, err
	}
	return k.finishRehearsal(ctx, row)
}

// beginRehearsal records that a rehearsal begins.
func (k *Keeper) beginRehearsal(ctx context.Context, id string) (store.DatabaseRehearsal, error) {
	db, err := k.cfg.Store.Read().Database(ctx, id)
	if err != nil {
		return store.DatabaseRehearsal{}, err
	}
	now := k.cfg.Now().UnixMicro()
	row := store.DatabaseRehearsal{
		ID: "reh" + strings.ToLower(rand.Text()), Workspace: db.Workspace, Database: id,
		State: store.RehearsalRunning, Target: now, Started: now,
	}
	return row, k.putRehearsal(ctx, row)
}

// finishRehearsal rehearses, and records and returns the result.
func (k *Keeper) finishRehearsal(
	ctx context.Context,
	row store.DatabaseRehearsal,
) (store.DatabaseRehearsal, error) {
	id := row.Database
	var bytes int64
	db, failed := k.cfg.Store.Read().Database(ctx, id)
	if failed == nil {
		bytes, failed = k.rehearse(ctx, id, restore.Target{Variant: db.Variant, Collation: db.Collation})
	}
	row.State, row.Bytes, row.Ended = store.RehearsalPassed, bytes, k.cfg.Now().UnixMicro()
	if failed != nil {
		row.State, row.Error = store.RehearsalFailed, failed.Error()
		k.cfg.Log.Error("the rehearsal of a restore failed", "database", id, "err", failed)
	}
	return row, k.putRehearsal(context.WithoutCancel(ctx), row)
}

// rehearse restores and verifies. It returns the size of what was restored.
func (k *Keeper) rehearse(ctx context.Context, id string, target restore.Target) (bytes int64, err error) {
	if k.cfg.Machines == nil {
		return 0, errors.New("there are no machines for rehearsals")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, rehearsalLimit, errors.New("the rehearsal took too long"))
	defer cancel()
	plan, err := k.Plan(ctx, id, target)
	if err != nil {
		return 0, err
	}
	server, release, err := k.cfg.Machines.Scratch(ctx, id, plan.Bytes())
	if err != nil {
		return 0, fmt.Errorf("make a machine for the rehearsal: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
		defer cancel()
		err = errors.Join(err, release(ctx))
	}()
	done, err := k.restorePlan(ctx, plan, RestoreRequest{From: id, Into: server})
	if err != nil {
		return 0, err
	}
	return done.Bytes, verify(ctx, Primary{Dial: server.Dial})
}

// verify verifies every table and index of every database of a server.
func verify(ctx context.Context, p Primary) error {
	conn, err := p.connect(ctx, "postgres")
	if err != nil {
		return err
	}
	rows, _ := conn.Query(ctx, "select datname from pg_database where datallowconn order by datname") // see CollectRows
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	conn.close(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := verifyDatabase(ctx, p, name); err != nil {
			return fmt.Errorf("database %q: %w", name, err)
		}
	}
	return nil
}

// verifyHeap lists damaged rows, and verifyIndex fails at a damaged index. Temporary and unlogged tables have no
// content in a restored server.
const (
	verifyHeap = "select c.oid::regclass::text || ': block ' || v.blkno || ': ' || v.msg from pg_class c, " +
		"lateral public.verify_heapam(c.oid) v where c.relkind in ('r', 'm', 't') and c.relpersistence = 'p' limit 10"
	verifyIndex = "select count(public.bt_index_check(i.indexrelid, true)) from pg_index i " +
		"join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam " +
		"where a.amname = 'btree' and c.relkind = 'i' and c.relpersistence = 'p' and i.indisready and i.indisvalid"
)

func verifyDatabase(ctx context.Context, p Primary, name string) error {
	conn, err := p.connect(ctx, name)
	if err != nil {
		return err
	}
	defer conn.close(ctx)
	if _, err := conn.Exec(ctx, "create schema if not exists public"); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "drop extension if exists amcheck"); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "create extension amcheck schema public"); err != nil {
		return err
	}
	rows, _ := conn.Query(ctx, verifyHeap) // see CollectRows
	damage, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	if len(damage) > 0 {
		return fmt.Errorf("damaged tables: %s", strings.Join(damage, "; "))
	}
	if _, err := conn.Exec(ctx, verifyIndex); err != nil {
		return fmt.Errorf("damaged index: %w", err)
	}
	return nil
}
