package database

import (
	"context"
	"errors"
	"net"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Backups keeps the logs and the base backups of databases. *backup.Keeper implements it.
type Backups interface {
	backup.Adopter
	// Begin starts the backups of a database whose server runs. In synchronous mode commits go on when it returns.
	Begin(ctx context.Context, p backup.Primary) error
	// Flush waits until everything that the server has confirmed is in the archive.
	Flush(ctx context.Context, id string) error
	End(ctx context.Context, id string) error
	// Remove ends the backups and removes what there is of them.
	Remove(ctx context.Context, id string) error
	// Abandon is Remove, but the archive stays.
	Abandon(ctx context.Context, id string) error
	// Status returns backup.ErrNotRunning for a database without backups.
	Status(ctx context.Context, id string) (backup.Status, error)
	// Restore replaces the content of a server by a moment of a database.
	Restore(ctx context.Context, req backup.RestoreRequest) (backup.Restored, error)
	// Complete gives a standby the end of the log of a database.
	Complete(ctx context.Context, req backup.CompleteRequest) (backup.Position, error)
	// Contents reads what the archive has; with an error, what could be read.
	Contents(ctx context.Context, id string) (backup.Contents, error)
	// Order makes a base backup due; backup.ErrNotRunning for a database without backups.
	Order(ctx context.Context, id string) error
	// OrderRehearsal begins a rehearsal; backup.ErrRehearsing and backup.ErrBusy if there are others.
	OrderRehearsal(ctx context.Context, id string) (store.DatabaseRehearsal, error)
}

// needsBackups reports whether the backups of a database have not begun since its server runs.
func (s *Service) needsBackups(row *store.Database) bool {
	if s.backups == nil {
		return false
	}
	l := s.of(api.DatabaseID(row.ID))
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.backedUp
}

func (l *live) setBackedUp(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.backedUp = on
}

// beginBackups begins the backups of a database whose server runs: in the guest fresh, if the database has no member
// yet. The lock is held.
func (s *Service) beginBackups(ctx context.Context, row *store.Database, fresh guestapi.Guest) error {
	if s.backups == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.StartTimeout, errors.New("the backups did not begin in time"))
	defer cancel()
	err := s.backups.Begin(ctx, backup.Primary{
		Database: row.ID, Synchronous: row.Durability == string(api.DurabilitySync), Variant: row.Variant,
		Collation: row.Collation, Dial: s.dialer(*row, fresh),
	})
	if err != nil {
		return api.Wrap(api.Unavailable, err, "the backups of the database cannot begin: "+err.Error())
	}
	s.of(api.DatabaseID(row.ID)).setBackedUp(true)
	return nil
}

// dialer returns a function that connects to the server of a database that takes writes, if that runs. While the
// database has no member, that is the one in the guest fresh.
func (s *Service) dialer(row store.Database, fresh guestapi.Guest) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		m, err := s.primary(ctx, row.ID)
		if api.CodeOf(err) == api.Unavailable && fresh != nil {
			return fresh.DialSocket(ctx, server.Socket)
		}
		if err != nil {
			return nil, err
		}
		id := api.SandboxID(m.Sandbox)
		box, err := s.boxes.Get(ctx, as(&row), id)
		if err == nil && box.Status != api.Running {
			err = api.Errorf(api.WrongState, "the machine of database %s is %s", row.ID, box.Status)
		}
		if err != nil {
			return nil, err
		}
		g, err := s.boxes.Guest(ctx, as(&row), id)
		if err != nil {
			return nil, err
		}
		return g.DialSocket(ctx, server.Socket)
	}
}

// flushBackups brings all of the log to the archive and ends the backups, before a suspend. A database whose log cannot
// be brought there is not suspended.
func (s *Service) flushBackups(ctx context.Context, row *store.Database) error {
	if s.backups == nil {
		return nil
	}
	limited, cancel := context.WithTimeoutCause(ctx, s.cfg.FlushTimeout, errors.New("it took too long"))
	defer cancel()
	err := s.backups.Flush(limited, row.ID)
	if err != nil && !errors.Is(err, backup.ErrNotRunning) {
		return api.Wrap(api.Unavailable, err, "the database is not suspended, for its log is not in the archive: "+
			err.Error())
	}
	return s.endBackups(ctx, row)
}

// endBackups ends the backups of a database until beginBackups.
func (s *Service) endBackups(ctx context.Context, row *store.Database) error {
	if s.backups == nil {
		return nil
	}
	s.of(api.DatabaseID(row.ID)).setBackedUp(false)
	s.adoptions.Forget(row.ID)
	return s.backups.End(ctx, row.ID)
}

// removeBackups removes the backups of a database, if there are any.
func (s *Service) removeBackups(ctx context.Context, row *store.Database) error {
	if s.backups == nil {
		return nil
	}
	s.of(api.DatabaseID(row.ID)).setBackedUp(false)
	if _, err := s.backups.Status(ctx, row.ID); errors.Is(err, backup.ErrNotRunning) {
		return nil
	}
	from, err := originOf(row)
	if err == nil && from.Adopted { // what is in the archive is the database of another node
		return s.backups.Abandon(ctx, row.ID)
	}
	return s.backups.Remove(ctx, row.ID)
}
