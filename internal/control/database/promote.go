package database

import (
	"context"
	"encoding/json"
	"errors"
	"net"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database/replica"
	"github.com/pandastack/pandastack/internal/control/store"
)

// replicaOwner implements replica.Owner.
type replicaOwner struct{ s *Service }

func (o replicaOwner) As(row *store.Database) auth.Principal { return as(row) }

func (o replicaOwner) Runs(ctx context.Context, row *store.Database) bool { return o.s.runs(ctx, row) }

func (o replicaOwner) Dial(row store.Database) func(context.Context) (net.Conn, error) {
	return o.s.dialer(row, nil)
}

func (o replicaOwner) Ask(ctx context.Context, row *store.Database, f func(*pgx.Conn) error) error {
	return o.s.ask(ctx, row, f)
}

func (o replicaOwner) Enter(ctx context.Context, row *store.Database) (func(), error) {
	l := o.s.of(api.DatabaseID(row.ID))
	return l.leave, l.enter(ctx)
}

func (o replicaOwner) MakeMachine(ctx context.Context, row *store.Database) (store.DatabaseMember, error) {
	primary, err := o.s.primary(ctx, row.ID)
	if err != nil {
		return primary, err
	}
	_, m, _, err := o.s.makeMachine(ctx, row)
	m.Timeline = primary.Timeline
	return m, err
}

func (o replicaOwner) MatchStorage(ctx context.Context, row *store.Database, m *store.DatabaseMember) error {
	primary, err := o.s.primary(ctx, row.ID)
	if err != nil {
		return err
	}
	size, err := o.s.storageOf(ctx, row, &primary)
	if err != nil {
		return err
	}
	return o.s.growTo(ctx, row, m, size)
}

func (o replicaOwner) Sweep(ctx context.Context, row *store.Database, keep ...store.DatabaseMember) error {
	return o.s.sweep(ctx, row, keep...)
}

func (o replicaOwner) ServerError(err error) error { return serverError(err) }

func (o replicaOwner) Poke() { o.s.poke() }

// DialReplica connects to a port of a read replica that is caught up, and waits for one.
//
// It returns replica.ErrNone if the database has no replicas. An Endpoint stays with the replica that it has chosen as
// long as that is caught up, so that a cancel request finds its session.
func (e *Endpoint) DialReplica(ctx context.Context, port uint16) (net.Conn, error) {
	e.mu.Lock()
	prefer := e.replica
	e.mu.Unlock()
	conn, chosen, err := e.service.replicas.Dial(ctx, &e.row, prefer, port)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.replica = chosen
	return conn, nil
}

// promote makes the replica with the most log take writes, when it has all of the log that the backups have. The old
// primary is fenced. replica.ErrNone means that a server has to be restored: there is no replica, or it does not work,
// and then it is removed.
//
// The row names the replica before that is promoted, so that an attempt that was cut is continued with the same one.
func (s *Service) promote(ctx context.Context, row *store.Database, from origin) (m store.DatabaseMember, err error) {
	if from.Promotes == "" {
		if from.Promotes, err = s.replicas.Candidate(ctx, row); err != nil {
			return m, err
		}
		if err := s.setOrigin(ctx, row, from); err != nil {
			return m, err
		}
	}
	m, err = s.replicas.Promote(ctx, row, from.Promotes, RoleName)
	if err == nil || ctx.Err() != nil {
		return m, err
	}
	s.log.Warn("a read replica could not become the primary", "database", row.ID, "replica", from.Promotes, "err", err)
	if err := s.replicas.Remove(ctx, row, from.Promotes); err != nil { // it may take writes
		return m, err
	}
	from.Promotes = ""
	return m, errors.Join(replica.ErrNone, s.setOrigin(ctx, row, from))
}

func (s *Service) setOrigin(ctx context.Context, row *store.Database, from origin) error {
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	row.Origin = string(text)
	return s.db.Write(ctx, "database failover candidate", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateDatabase(ctx, row, store.DatabaseRestoring, "origin")
	})
}
