package database

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database/replica"
	"github.com/pandastack/pandastack/internal/control/store"
)

// errDeleted is the cause with which an operation ends whose database is deleted.
var errDeleted = api.Errorf(api.NotFound, "the database was deleted")

// poke makes Run look at all databases.
func (s *Service) poke() {
	select {
	case s.poked <- struct{}{}:
	default: // it will
	}
}

// Run does what databases need until ctx ends: it makes new ones, finishes what other processes began, removes those
// whose time is over, and suspends those that are not in use.
func (s *Service) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	defer s.closeAll(ctx)
	defer workers.Wait()
	slots := make(chan struct{}, s.cfg.Concurrency)
	seeds := make(chan struct{}, s.cfg.Concurrency)
	followers := s.replicas.Followers()
	tick := time.NewTicker(s.cfg.Interval)
	defer tick.Stop()
	for {
		rows, err := s.db.Read().Databases(ctx, store.DatabaseQuery{})
		if err != nil && ctx.Err() == nil {
			s.log.Warn("the databases cannot be read; it is tried again", "err", err)
		}
		members, membersErr := s.members(ctx)
		if err = membersErr; err != nil && ctx.Err() == nil {
			s.log.Warn("the servers of databases cannot be read; it is tried again", "err", err)
		}
		followers.Sync(ctx, rows, members, workers.Go)
		for i := range rows {
			row := &rows[i]
			if replica.Seeding(row, members[row.ID]) {
				select {
				case seeds <- struct{}{}:
					workers.Go(func() {
						defer func() { <-seeds }()
						if err := s.replicas.Seed(ctx, row); err != nil && ctx.Err() == nil {
							s.log.Warn("a replica was not filled; it is tried again", "database", row.ID, "err", err)
						}
					})
				default: // later
				}
			}
			if !s.hasWork(row) && !s.replicas.Due(row, members[row.ID]) {
				continue
			}
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			workers.Go(func() {
				defer func() { <-slots }()
				if err := s.attend(ctx, row.ID); err != nil && ctx.Err() == nil {
					s.log.Warn("an operation on a database failed; it is tried again", "database", row.ID, "err", err)
				}
			})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-s.poked:
		}
	}
}

// members reads the servers of all databases, by the id of the database.
func (s *Service) members(ctx context.Context) (map[string][]store.DatabaseMember, error) {
	all, err := s.db.Read().DatabaseMembers(ctx, "")
	out := map[string][]store.DatabaseMember{}
	for _, m := range all {
		out[m.Database] = append(out[m.Database], m)
	}
	return out, err
}

// Reconcile does once, and waits for it, what Run does, but for the connections of replicas.
func (s *Service) Reconcile(ctx context.Context) error {
	rows, err := s.db.Read().Databases(ctx, store.DatabaseQuery{})
	members, membersErr := s.members(ctx)
	err = errors.Join(err, membersErr)
	for i := range rows {
		row := &rows[i]
		if replica.Seeding(row, members[row.ID]) {
			err = errors.Join(err, s.replicas.Seed(ctx, row))
		}
		if s.hasWork(row) || s.replicas.Due(row, members[row.ID]) {
			err = errors.Join(err, s.attend(ctx, row.ID))
		}
	}
	return err
}

// expired reports whether the time of a database is over.
func expired(row *store.Database) bool {
	return row.Expires > 0 && row.Expires <= store.Micros(time.Now())
}

// hasWork reports whether attend may have something to do.
func (s *Service) hasWork(row *store.Database) bool {
	switch row.State {
	case store.DatabaseCreating, store.DatabaseRestoring, store.DatabaseDeleting:
		return true
	case store.DatabaseReady:
		return expired(row) || row.Instance != "" || row.Origin != "" || s.mayBeIdle(row) || s.needsBackups(row) ||
			s.measureDue(row) || s.adoptions.Due(row.ID)
	}
	return expired(row)
}

// ownedElsewhere reports whether another process on a shared store may have an operation under way.
func (s *Service) ownedElsewhere(row *store.Database) bool {
	return s.db.Shared() && row.Instance != "" && row.Instance != s.instance &&
		time.Since(store.Time(row.Changed)) < s.cfg.ForeignGrace
}

// attend does what a database needs, unless an operation of this process is under way.
func (s *Service) attend(ctx context.Context, id string) error {
	ctx, release, ok := s.locks.TryAcquire(ctx, id)
	if !ok {
		return nil
	}
	defer release()
	row, err := s.db.Read().Database(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil || s.ownedElsewhere(&row) {
		return err
	}
	if err := s.attendLocked(ctx, &row); err != nil || row.State != store.DatabaseReady || row.Instance != "" {
		return err
	}
	return s.replicas.Keep(ctx, &row)
}

// attendLocked does what a database needs beside its replicas. The lock is held.
func (s *Service) attendLocked(ctx context.Context, row *store.Database) error {
	switch {
	case row.State == store.DatabaseDeleting:
		return s.remove(ctx, row)
	case expired(row):
		if err := s.beginDelete(ctx, row); err != nil {
			if api.CodeOf(err) == api.Conflict {
				return nil // a branch is made from it: later
			}
			return err
		}
		return s.remove(ctx, row)
	case row.State == store.DatabaseCreating:
		return s.provision(ctx, row)
	case row.State == store.DatabaseRestoring:
		return s.failover(ctx, row)
	case row.State == store.DatabaseReady && row.Origin != "":
		return s.dropReplaced(ctx, row)
	case row.State == store.DatabaseReady && row.Instance != "":
		return s.applyCredentials(ctx, row)
	case row.State == store.DatabaseReady && s.mayBeIdle(row):
		return s.suspendLocked(ctx, row, false)
	case row.State == store.DatabaseReady && s.needsBackups(row) && s.runs(ctx, row):
		return s.leave(ctx, row, s.beginBackups(ctx, row, nil))
	case row.State == store.DatabaseReady && s.measureDue(row) && s.runs(ctx, row):
		return s.keepStorage(ctx, row)
	case row.State == store.DatabaseReady && s.adoptions.Due(row.ID):
		return s.describe(ctx, row)
	}
	return nil
}

// Delete removes a database with all that belongs to it. What cannot be removed at once, Run removes.
func (s *Service) Delete(ctx context.Context, p auth.Principal, id api.DatabaseID) error {
	row, err := s.find(ctx, p, id)
	if err == nil {
		err = s.db.Write(ctx, "database delete check", func(ctx context.Context, tx *store.Tx) error {
			return checkBranching(ctx, tx, &row)
		})
	}
	if err != nil {
		return api.AsError(err)
	}
	op, release, err := s.interrupt(ctx, string(id))
	if err != nil {
		return api.AsError(err)
	}
	defer release()
	if row, err = s.find(op, p, id); err != nil {
		return api.AsError(err)
	}
	if err := s.beginDelete(op, &row); err != nil {
		return api.AsError(err)
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := s.remove(ctx, &row); err != nil {
		s.log.Warn("a deleted database is not removed yet; it is tried again", "database", row.ID, "err", err)
	}
	return nil
}

// interrupt ends the operation under way on a database and takes its lock.
func (s *Service) interrupt(ctx context.Context, id string) (context.Context, func(), error) {
	s.locks.Interrupt(id, errDeleted)
	for {
		op, release, err := s.locks.Acquire(ctx, id)
		if !errors.Is(err, errDeleted) {
			return op, release, err
		}
	}
}

// checkBranching refuses the deletion or the reset of a database that a branch is made from.
func checkBranching(ctx context.Context, tx *store.Tx, row *store.Database) error {
	making, err := tx.Databases(ctx, store.DatabaseQuery{ClonedFrom: row.ID, State: store.DatabaseCreating})
	if err != nil || len(making) == 0 {
		return err
	}
	return api.Errorf(api.Conflict, "database %s is being branched to %s: try again when that is running, or delete it",
		row.ID, making[0].ID).With("database_id", making[0].ID)
}

// beginDelete writes that a database is to be removed. The lock is held.
func (s *Service) beginDelete(ctx context.Context, row *store.Database) error {
	return s.db.Write(ctx, "database delete begin", func(ctx context.Context, tx *store.Tx) error {
		if err := checkBranching(ctx, tx, row); err != nil {
			return err
		}
		was := row.State
		row.State, row.Instance, row.Changed = store.DatabaseDeleting, s.instance, store.Micros(time.Now())
		return tx.UpdateDatabase(ctx, row, was, "state", "instance", "changed")
	})
}

// remove removes everything that belongs to a database that is being deleted, and at last its row. The lock is held.
func (s *Service) remove(ctx context.Context, row *store.Database) error {
	id := api.DatabaseID(row.ID)
	s.endSessions(ctx, id)
	if err := s.clear(ctx, row); err != nil {
		return err
	}
	err := s.db.Write(ctx, "database removed", func(ctx context.Context, tx *store.Tx) error {
		return tx.DeleteDatabase(ctx, row.ID)
	})
	if err == nil {
		s.forget(id)
		s.replicas.Forget(row.ID)
		s.adoptions.Forget(row.ID)
	}
	return err
}

// clear removes the servers and the backups of a database, in whatever state they are.
func (s *Service) clear(ctx context.Context, row *store.Database) error {
	if err := s.replicas.StopSeeds(ctx, row); err != nil {
		return err
	}
	s.of(api.DatabaseID(row.ID)).closeAdmin(ctx)
	if err := s.removeBackups(ctx, row); err != nil {
		return err
	}
	if err := errors.Join(s.clearForks(ctx, row), s.clearKept(ctx, row)); err != nil {
		return err
	}
	p := as(row)
	boxes, err := s.boxes.List(ctx, p, api.SandboxFilter{})
	if err != nil {
		return err
	}
	for _, box := range boxes.Sandboxes {
		if err := s.boxes.Delete(ctx, p, box.ID); err != nil {
			return err
		}
	}
	volumes, err := s.db.Read().Volumes(ctx, store.VolumeQuery{Workspace: row.Workspace, OwnedBy: owner(row).String()})
	if err != nil {
		return err
	}
	for _, v := range volumes {
		if v.State != store.VolumeReady {
			return api.Errorf(api.Unavailable, "volume %s of database %s is being made or removed", v.ID, row.ID)
		}
		if err := s.volumes.Delete(ctx, p, v.ID, true); err != nil {
			return err
		}
	}
	members, err := s.db.Read().DatabaseMembers(ctx, row.ID)
	if err != nil || len(members) == 0 {
		return err
	}
	return s.db.Write(ctx, "database servers removed", func(ctx context.Context, tx *store.Tx) error {
		for _, m := range members {
			if err := tx.DeleteDatabaseMember(ctx, m.ID); err != nil {
				return err
			}
		}
		return nil
	})
}
