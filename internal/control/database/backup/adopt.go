package backup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/walrelay"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Errors of databases that nodes take from each other, to be compared with errors.Is.
var (
	ErrFenced        = archive.ErrFenced
	ErrNoDescription = archive.ErrNoDescription
)

// holdsLimit bounds the question whether another node has adopted a database.
const holdsLimit = 3 * time.Second

// Holds returns ErrFenced if another node has adopted a database. A store that does not respond is no reason to refuse
// a database: the relay asks again.
func (k *Keeper) Holds(ctx context.Context, id string) error {
	a, err := k.archive(ctx, id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, holdsLimit)
	defer cancel()
	if err := a.Holds(ctx); errors.Is(err, ErrFenced) {
		return err
	} else if err != nil {
		k.cfg.Log.Warn("it is not known whether another node has adopted a database", "database", id, "err", err)
	}
	return nil
}

// Fenced reports whether the relay of a database has found that another node has adopted it. It makes no request.
func (k *Keeper) Fenced(id string) bool {
	m := k.member(id)
	return m != nil && m.relay.Status().State == walrelay.Fenced
}

// Describe replaces the description of a database, from which another node can adopt it. It is sealed with the master
// key of the object store, which the nodes share.
func (k *Keeper) Describe(ctx context.Context, id string, text []byte) error {
	a, err := k.archive(ctx, id)
	if err == nil {
		err = a.PutDescription(ctx, text)
	}
	return err
}

// Description returns the description of a database by the last node that had it, or ErrNoDescription.
func (k *Keeper) Description(ctx context.Context, id string) ([]byte, error) {
	a, err := k.archive(ctx, id)
	if err != nil {
		return nil, err
	}
	return a.Description(ctx)
}

// Adopt takes a database from the node that has it: what that writes is refused from then on. This node must not have
// its server yet. It may be repeated.
func (k *Keeper) Adopt(ctx context.Context, id string) error {
	op, release, err := k.locks.Acquire(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	if k.member(id) != nil {
		return fmt.Errorf("the relay of %s runs on this node", id)
	}
	if err := os.RemoveAll(k.spool(id)); err != nil { // of an earlier time
		return err
	}
	a, err := k.archive(op, id)
	if err != nil {
		return err
	}
	n, err := a.TakeFence(op, k.cfg.Now())
	if err != nil {
		return err
	}
	now := k.cfg.Now().UnixMicro()
	return k.cfg.Store.Write(op, "adopt database backups", func(ctx context.Context, tx *store.Tx) error {
		row := store.DatabaseBackups{
			Database: id, BaseDue: now, CollectDue: now + k.cfg.CollectInterval.Microseconds(),
			ScrubDue: now + k.cfg.ScrubInterval.Microseconds(), Fence: n,
		}
		return errors.Join(tx.InsertDatabaseBackups(ctx, &row), tx.UpdateDatabaseBackups(ctx, &row, "fence"))
	})
}
