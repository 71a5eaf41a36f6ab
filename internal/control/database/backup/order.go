package backup

import (
	"context"
	"errors"
	"fmt"

	"github.com/pandastack/pandastack/internal/control/store"
)

// maxOrdered is the number of rehearsals that may be ordered and not have ended.
const maxOrdered = 16

// Why a rehearsal is not ordered.
var (
	ErrRehearsing = errors.New("a rehearsal of the database is under way")
	ErrBusy       = fmt.Errorf("%d rehearsals are under way or wait", maxOrdered)
)

// Order makes a base backup due at once. It is taken although this process ends: when the server runs.
func (k *Keeper) Order(ctx context.Context, id string) error {
	err := k.cfg.Store.Write(ctx, "order base backup", func(ctx context.Context, tx *store.Tx) error {
		row, err := tx.DatabaseBackups(ctx, id)
		if errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("database %s: %w", id, ErrNotRunning)
		}
		if err != nil {
			return err
		}
		row.BaseDue = k.cfg.Now().UnixMicro()
		return tx.UpdateDatabaseBackups(ctx, &row, "base_due")
	})
	if err == nil {
		k.nudge()
	}
	return err
}

// OrderRehearsal records that a rehearsal begins, and returns; Run rehearses. There is one of a database at a time:
// ErrRehearsing, or ErrBusy if many others wait.
func (k *Keeper) OrderRehearsal(ctx context.Context, id string) (store.DatabaseRehearsal, error) {
	if err := k.reserve(id); err != nil {
		return store.DatabaseRehearsal{}, err
	}
	row, err := k.beginRehearsal(ctx, id)
	if err != nil {
		k.release(id)
		return row, err
	}
	k.ordered <- row // it has room for all that are reserved
	return row, nil
}

func (k *Keeper) reserve(id string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.closed:
		return errStopping
	case k.rehearsing[id]:
		return ErrRehearsing
	case len(k.rehearsing) >= maxOrdered:
		return ErrBusy
	}
	k.rehearsing[id] = true
	return nil
}

func (k *Keeper) release(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.rehearsing, id)
}

// orderLoop rehearses what was ordered until ctx ends. What then still waits is ended by the next start.
func (k *Keeper) orderLoop(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case row := <-k.ordered:
			_, err := k.finishRehearsal(ctx, row)
			k.release(row.Database)
			if err != nil {
				k.cfg.Log.Error("the result of a rehearsal is not recorded", "database", row.Database, "err", err)
			}
		case <-ctx.Done():
		}
	}
}
