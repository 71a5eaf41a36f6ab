package replica

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/database/standby"
	"github.com/pandastack/pandastack/internal/control/store"
)

// errRemoved is the cause with which the making of a replica ends that is removed.
var errRemoved = errors.New("the read replica was removed")

// replicas reads the read replicas of a database, oldest first.
func (s *Set) replicas(ctx context.Context, id string) ([]store.DatabaseMember, error) {
	all, err := s.db.Read().DatabaseMembers(ctx, id)
	return slices.DeleteFunc(all, func(m store.DatabaseMember) bool { return m.Role != store.MemberReplica }), err
}

// slotOf returns the name of the slot of a replica.
func slotOf(row *store.Database, m *store.DatabaseMember) string { return slotPrefix(row) + m.ID }

func slotPrefix(row *store.Database) string { return backup.SlotName(row.ID) + "_" }

// pair returns a replica and its primary.
func (s *Set) pair(ctx context.Context, row *store.Database, m *store.DatabaseMember) (standby.Pair, error) {
	g, err := s.boxes.Guest(ctx, s.owner.As(row), api.SandboxID(m.Sandbox))
	return standby.Pair{Slot: slotOf(row, m), Primary: s.owner.Dial(*row), Standby: g}, err
}

// Due reports whether Keep may have something to do.
func (s *Set) Due(row *store.Database, members []store.DatabaseMember) bool {
	if row.State != store.DatabaseReady {
		return false
	}
	l := s.of(row.ID)
	l.mu.Lock()
	defer l.mu.Unlock()
	return row.Replicas > 0 || len(members) > 1 || !l.tidied
}

// Keep makes a database have the replicas that it should have, asleep or running as its primary.
//
// The database is ready, and its lock is held.
func (s *Set) Keep(ctx context.Context, row *store.Database) error {
	all, err := s.db.Read().DatabaseMembers(ctx, row.ID)
	if err != nil {
		return err
	}
	l := s.of(row.ID)
	if err := s.tidy(ctx, row, l, all); err != nil {
		return err
	}
	var kept []store.DatabaseMember
	for _, m := range all {
		switch {
		case m.Role != store.MemberReplica:
		case len(kept) < row.Replicas && (m.State == store.MemberCreating || m.State == store.MemberReady):
			kept = append(kept, m)
		default:
			if err := s.remove(ctx, row, &m); err != nil {
				return err
			}
		}
	}
	if len(all) == 1 && row.Replicas == 0 {
		return nil
	}
	if !s.owner.Runs(ctx, row) {
		return s.Sleep(ctx, row)
	}
	if err := s.keepSlots(ctx, row, kept); err != nil {
		return err
	}
	for i := range kept {
		if kept[i].State == store.MemberReady {
			s.keepReplica(ctx, row, &kept[i])
		}
	}
	if len(kept) < row.Replicas && l.mayAdd() {
		return s.addReplica(ctx, row, l)
	}
	return nil
}

// Seeding reports whether a database has a replica that is being made.
func Seeding(row *store.Database, members []store.DatabaseMember) bool {
	return row.State == store.DatabaseReady && slices.ContainsFunc(members, func(m store.DatabaseMember) bool {
		return m.Role == store.MemberReplica && m.State == store.MemberCreating
	})
}

// tidy removes what an operation has left that was cut, once in the life of this process or after a failure.
func (s *Set) tidy(ctx context.Context, row *store.Database, l *state, members []store.DatabaseMember) error {
	l.mu.Lock()
	done := l.tidied
	l.mu.Unlock()
	if done {
		return nil
	}
	if err := s.owner.Sweep(ctx, row, members...); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tidied = true
	return nil
}

// replicaRetry is the time from a failure of a replica to the next attempt to make one.
const replicaRetry = 30 * time.Second

// mayAdd reports whether a replica may be made: some time after the last failure.
func (l *state) mayAdd() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !time.Now().Before(l.due)
}

// failed records that a replica could not be made or does not work.
func (l *state) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tidied, l.failure, l.due = false, api.Reason("", err), time.Now().Add(replicaRetry)
}

// worked forgets the last failure.
func (l *state) worked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failure, l.due = "", time.Time{}
}

// addReplica makes the machine of a replica. Run fills it. The lock is held.
func (s *Set) addReplica(ctx context.Context, row *store.Database, l *state) error {
	err := s.makeReplica(ctx, row)
	if err == nil || ctx.Err() != nil {
		return err
	}
	s.log.Warn("a read replica could not be made; it is tried again", "database", row.ID, "err", err)
	l.failed(err)
	return nil
}

func (s *Set) makeReplica(ctx context.Context, row *store.Database) error {
	m, err := s.owner.MakeMachine(ctx, row)
	if err != nil {
		return err
	}
	m.Role, m.State = store.MemberReplica, store.MemberCreating
	if err := s.owner.MatchStorage(ctx, row, &m); err != nil {
		return err
	}
	err = s.db.Write(ctx, "database replica", func(ctx context.Context, tx *store.Tx) error {
		return tx.InsertDatabaseMember(ctx, &m)
	})
	if err == nil {
		s.owner.Poke()
	}
	return err
}

func seedLock(m *store.DatabaseMember) string { return "replica " + m.ID }

// Seed fills the replicas of a database that are being made, while its primary runs. The lock of the database
// is not held: that takes as long as there is data. StopSeeds ends it.
func (s *Set) Seed(ctx context.Context, row *store.Database) error {
	all, err := s.replicas(ctx, row.ID)
	for _, m := range all {
		if m.State == store.MemberCreating {
			err = errors.Join(err, s.seedReplica(ctx, row, m.ID))
		}
	}
	return err
}

func (s *Set) seedReplica(ctx context.Context, row *store.Database, id string) error {
	op, release, ok := s.locks.TryAcquire(ctx, seedLock(&store.DatabaseMember{ID: id}))
	if !ok {
		return nil
	}
	defer release()
	l := s.of(row.ID)
	leave, err := s.owner.Enter(op, row) // a database is not idle while a replica is made
	if err != nil {
		return err
	}
	defer leave()
	all, err := s.replicas(op, row.ID)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(m store.DatabaseMember) bool { return m.ID == id })
	if at < 0 || all[at].State != store.MemberCreating || !s.owner.Runs(op, row) {
		return nil
	}
	m := all[at]
	err = s.wakeReplica(op, row, &m)
	var p standby.Pair
	if err == nil {
		p, err = s.pair(op, row, &m)
	}
	if err == nil {
		err = s.replication.Seed(op, p)
	}
	switch {
	case err == nil:
		m.State = store.MemberReady
		l.worked()
	case op.Err() != nil || !s.owner.Runs(op, row): // it is removed, or filled when the primary runs again
		return nil
	default:
		s.log.Warn("a read replica could not be filled", "database", row.ID, "replica", m.ID, "err", err)
		l.failed(err)
		m.State, m.Error = store.MemberFailed, api.Reason("", err)
	}
	err = s.db.Write(op, "database replica filled", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateDatabaseMember(ctx, &m, store.MemberCreating)
	})
	if errors.Is(err, store.ErrNotFound) { // it was removed
		return nil
	}
	s.owner.Poke()
	return err
}

// StopSeeds ends the filling of all replicas of a database and waits for that.
func (s *Set) StopSeeds(ctx context.Context, row *store.Database) error {
	all, err := s.replicas(ctx, row.ID)
	for _, m := range all {
		err = errors.Join(err, s.stopSeed(ctx, &m))
	}
	return err
}

// stopSeed ends the filling of a replica and waits for that.
func (s *Set) stopSeed(ctx context.Context, m *store.DatabaseMember) error {
	s.locks.Interrupt(seedLock(m), errRemoved)
	_, release, err := s.locks.Acquire(ctx, seedLock(m))
	if err == nil {
		release()
	}
	return err
}

// remove removes a replica with all that belongs to it. Its slot goes later. The lock is held.
func (s *Set) remove(ctx context.Context, row *store.Database, m *store.DatabaseMember) error {
	if was := m.State; was != store.MemberDeleting {
		m.State = store.MemberDeleting
		err := s.db.Write(ctx, "database replica end", func(ctx context.Context, tx *store.Tx) error {
			return tx.UpdateDatabaseMember(ctx, m, was)
		})
		if err != nil {
			return err
		}
	}
	if err := s.stopSeed(ctx, m); err != nil {
		return err
	}
	p := s.owner.As(row)
	err := s.boxes.Delete(ctx, p, api.SandboxID(m.Sandbox))
	if code := api.CodeOf(err); err != nil && code != api.NotFound && code != api.Gone {
		return err
	}
	if err := s.volumes.Delete(ctx, p, m.Volume, true); err != nil && api.CodeOf(err) != api.NotFound {
		return err
	}
	l := s.of(row.ID)
	l.mu.Lock()
	delete(l.lags, m.ID)
	l.mu.Unlock()
	return s.db.Write(ctx, "database replica removed", func(ctx context.Context, tx *store.Tx) error {
		return tx.DeleteDatabaseMember(ctx, m.ID)
	})
}

// failReplica marks a replica that does not work: another is made in its place.
func (s *Set) failReplica(ctx context.Context, row *store.Database, m *store.DatabaseMember, why error) error {
	s.log.Warn("a read replica does not work; another is made", "database", row.ID, "replica", m.ID, "err", why)
	s.of(row.ID).failed(why)
	was := m.State
	m.State, m.Error = store.MemberFailed, api.Reason("", why)
	s.owner.Poke()
	return s.db.Write(ctx, "database replica failed", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateDatabaseMember(ctx, m, was)
	})
}

// keepSlots removes the slots of replicas that there are no more, and marks replicas whose slot is lost.
func (s *Set) keepSlots(ctx context.Context, row *store.Database, kept []store.DatabaseMember) error {
	var wanted []string
	for _, m := range kept {
		wanted = append(wanted, slotOf(row, &m))
	}
	var lost []string
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err := s.owner.Ask(asking, row, func(conn *pgx.Conn) (err error) {
		lost, err = standby.KeepSlots(asking, conn, slotPrefix(row), wanted)
		return err
	})
	if err != nil {
		return err
	}
	for i := range kept {
		if m := &kept[i]; m.State == store.MemberReady && slices.Contains(lost, slotOf(row, m)) {
			why := api.Errorf(api.Unavailable, "the primary has given up the log that it lacks")
			if err := s.failReplica(ctx, row, m, why); err != nil {
				return err
			}
		}
	}
	return nil
}

// keepReplica makes a replica run, with as much storage as its primary, and measures it. One that does not work for
// some time is marked for removal.
func (s *Set) keepReplica(ctx context.Context, row *store.Database, m *store.DatabaseMember) {
	err := s.checkReplica(ctx, row, m)
	if err == nil || ctx.Err() != nil {
		return
	}
	if code := api.CodeOf(err); code != api.NotFound && code != api.Gone && code != api.Conflict {
		if s.of(row.ID).brokenFor(m.ID) < s.cfg.Timeout {
			return
		}
	}
	if err := s.failReplica(ctx, row, m, err); err != nil {
		s.log.Warn("a read replica is not marked", "database", row.ID, "replica", m.ID, "err", err)
	}
}

func (s *Set) checkReplica(ctx context.Context, row *store.Database, m *store.DatabaseMember) error {
	g, err := s.runReplica(ctx, row, m)
	if err != nil {
		return err
	}
	if err := s.owner.MatchStorage(ctx, row, m); err != nil {
		s.log.Warn("the storage of a read replica does not grow", "database", row.ID, "replica", m.ID, "err", err)
	}
	at := s.measure(ctx, row, m)
	switch {
	case errors.Is(at.err, guestapi.ErrRefused): // its server has ended
		return errors.Join(at.err, s.startServer(ctx, g))
	case at.err == nil && !at.recovering:
		return api.Errorf(api.Conflict, "it takes writes")
	case at.err == nil && !at.streaming:
		return api.Errorf(api.Unavailable, "it does not receive the log of the primary")
	}
	return at.err
}

// wakeReplica makes the machine of a replica run.
func (s *Set) wakeReplica(ctx context.Context, row *store.Database, m *store.DatabaseMember) error {
	p, id := s.owner.As(row), api.SandboxID(m.Sandbox)
	box, err := s.boxes.Get(ctx, p, id)
	switch {
	case err != nil || box.Status == api.Running:
	case box.Status == api.Paused:
		_, err = s.boxes.Resume(ctx, p, id)
	default:
		_, err = s.boxes.Wake(ctx, p, id)
	}
	return err
}

// runReplica makes the machine of a replica run, and its server after a boot.
func (s *Set) runReplica(ctx context.Context, row *store.Database, m *store.DatabaseMember) (guestapi.Guest, error) {
	ran := s.boxRuns(ctx, row, m)
	if err := s.wakeReplica(ctx, row, m); err != nil {
		return nil, err
	}
	g, err := s.boxes.Guest(ctx, s.owner.As(row), api.SandboxID(m.Sandbox))
	if err != nil || ran {
		return g, err
	}
	return g, s.startServer(ctx, g)
}

func (s *Set) startServer(ctx context.Context, g guestapi.Guest) error {
	starting, cancel := context.WithTimeout(ctx, s.cfg.StartTimeout)
	defer cancel()
	return server.Start(starting, g)
}

// Sleep hibernates the replicas of a database whose primary sleeps, or is about to. The lock is held.
func (s *Set) Sleep(ctx context.Context, row *store.Database) error {
	all, err := s.replicas(ctx, row.ID)
	for _, m := range all {
		if !s.boxRuns(ctx, row, &m) {
			continue
		}
		err = errors.Join(err, s.stopSeed(ctx, &m))
		if m.State == store.MemberReady {
			g, endErr := s.boxes.Guest(ctx, s.owner.As(row), api.SandboxID(m.Sandbox))
			if endErr == nil {
				endErr = endSessions(ctx, g)
			}
			if endErr != nil {
				s.log.Warn("the sessions of a read replica were not ended", "database", row.ID, "err", endErr)
			}
		}
		_, sleepErr := s.boxes.Hibernate(ctx, s.owner.As(row), api.SandboxID(m.Sandbox))
		err = errors.Join(err, sleepErr)
	}
	return err
}

func endSessions(ctx context.Context, g server.Guest) error {
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, errors.New("the server did not respond in time"))
	defer cancel()
	return server.Use(ctx, g, server.Maintained, func(conn *pgx.Conn) error { return server.EndSessions(ctx, conn) })
}

// boxRuns reports whether the machine of a server runs.
func (s *Set) boxRuns(ctx context.Context, row *store.Database, m *store.DatabaseMember) bool {
	box, err := s.boxes.Get(ctx, s.owner.As(row), api.SandboxID(m.Sandbox))
	return err == nil && box.Status == api.Running
}
