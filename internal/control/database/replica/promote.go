package replica

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/database/standby"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Promotable returns the replicas that can become the primary of a database.
func (s *Set) Promotable(ctx context.Context, row *store.Database) ([]store.DatabaseMember, error) {
	all, err := s.replicas(ctx, row.ID)
	return slices.DeleteFunc(all, func(m store.DatabaseMember) bool { return m.State != store.MemberReady }), err
}

// Candidate returns the replica that has the most log; ErrNone if none can become the primary.
func (s *Set) Candidate(ctx context.Context, row *store.Database) (id string, err error) {
	ready, err := s.Promotable(ctx, row)
	if err != nil {
		return "", err
	}
	var most standby.Position
	for _, m := range ready {
		g, err := s.runReplica(ctx, row, &m)
		if err != nil {
			s.log.Warn("a read replica does not run", "database", row.ID, "replica", m.ID, "err", err)
			continue
		}
		has, err := readStandby(ctx, g)
		if err != nil {
			s.log.Warn("a read replica does not respond", "database", row.ID, "replica", m.ID, "err", err)
			continue
		}
		if has.Recovering && (id == "" || has.Position() > most) {
			id, most = m.ID, has.Position()
		}
	}
	if err := context.Cause(ctx); err != nil {
		return "", err
	}
	if id == "" {
		return "", ErrNone
	}
	return id, nil
}

func readStandby(ctx context.Context, g server.Guest) (has standby.Status, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err = server.Use(ctx, g, server.Maintained, func(conn *pgx.Conn) (err error) {
		has, err = standby.Read(ctx, conn)
		return err
	})
	return has, err
}

// Promote makes a replica take writes, with all of the log that the backups have.
//
// The role gets the password of the row. A replica that takes writes already is left as it is. ErrNone means that it is
// not one that can.
func (s *Set) Promote(ctx context.Context, row *store.Database, id, role string) (m store.DatabaseMember, err error) {
	ready, err := s.Promotable(ctx, row)
	if err != nil {
		return m, err
	}
	at := slices.IndexFunc(ready, func(m store.DatabaseMember) bool { return m.ID == id })
	if at < 0 {
		return m, ErrNone
	}
	return ready[at], s.promote(ctx, row, &ready[at], role)
}

func (s *Set) promote(ctx context.Context, row *store.Database, m *store.DatabaseMember, role string) error {
	g, err := s.runReplica(ctx, row, m)
	if err != nil {
		return err
	}
	has, err := readStandby(ctx, g)
	if err != nil {
		return s.owner.ServerError(err)
	}
	if has.Recovering {
		_, err := s.backups.Complete(ctx, backup.CompleteRequest{
			Database: row.ID, From: has.Position(), Into: backup.GuestServer{Guest: g},
		})
		if err != nil {
			return err
		}
	}
	err = server.Use(ctx, g, server.Maintained, func(conn *pgx.Conn) error {
		if err := standby.Promote(ctx, conn); err != nil {
			return err
		}
		return server.SetVerifier(ctx, conn, role, row.Verifier)
	})
	if err != nil {
		return s.owner.ServerError(err)
	}
	return nil
}

// Remove removes a replica. The lock of the database is held.
func (s *Set) Remove(ctx context.Context, row *store.Database, id string) error {
	all, err := s.replicas(ctx, row.ID)
	if err != nil {
		return err
	}
	for _, m := range all {
		if m.ID == id {
			return s.remove(ctx, row, &m)
		}
	}
	return nil
}
