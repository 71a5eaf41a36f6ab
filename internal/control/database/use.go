package database

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/store"
)

// live is what this process knows of the use of a database.
type live struct {
	mu       sync.Mutex
	users    int
	changing chan struct{} // closed when the suspension under way has ended; nil: none is
	last     time.Time     // of use
	measured time.Time     // when its storage was measured
	stored   int64         // bytes that it had then; 0: not known
	left     chan struct{} // closed when the last user has left; nil: no suspension waits for that
	backedUp bool          // the backups have begun since the server runs

	asking sync.Mutex // guards admin
	admin  *pgx.Conn  // to the server that runs; nil: none
}

// of returns what is known of the use of a database.
func (s *Service) of(id api.DatabaseID) *live {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.live[id]
	if l == nil {
		l = &live{}
		s.live[id] = l
	}
	return l
}

// forget drops what is known of a database that was removed.
func (s *Service) forget(id api.DatabaseID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, id)
}

// touch records a use.
func (l *live) touch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = time.Now()
}

// enter counts a user, when no suspension is under way.
func (l *live) enter(ctx context.Context) error {
	for {
		l.mu.Lock()
		wait := l.changing
		if wait == nil {
			l.users++
			l.last = time.Now()
			l.mu.Unlock()
			return nil
		}
		l.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (l *live) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users--
	l.last = time.Now()
	if l.users == 0 && l.left != nil {
		close(l.left)
		l.left = nil
	}
}

// hold keeps new users away. Without force it does so only if there are none. release lets them in again, and gone is
// closed when the last of them has left.
func (l *live) hold(force bool) (gone <-chan struct{}, release func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users > 0 && !force || l.changing != nil {
		return nil, nil, false
	}
	changing, left := make(chan struct{}), make(chan struct{})
	l.changing = changing
	if l.users == 0 {
		close(left)
	} else {
		l.left = left
	}
	return left, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changing, l.left = nil, nil
		close(changing)
	}, true
}

// idleSince returns since when a database has had no user; ok is false if it has one.
func (s *Service) idleSince(row *store.Database) (since time.Time, ok bool) {
	l := s.of(api.DatabaseID(row.ID))
	l.mu.Lock()
	defer l.mu.Unlock()
	since = s.began // sessions of an earlier process may have ended with that
	for _, at := range []time.Time{l.last, store.Time(row.Used)} {
		if at.After(since) {
			since = at
		}
	}
	return since, l.users == 0
}

// mayBeIdle reports whether a database that runs is to be suspended.
func (s *Service) mayBeIdle(row *store.Database) bool {
	since, unused := s.idleSince(row)
	return unused && !row.AlwaysOn && time.Since(since) >= time.Duration(row.IdleSeconds)*time.Second
}

// acquire counts a user of a database and returns when its server runs. release ends the use.
func (s *Service) acquire(ctx context.Context, id api.DatabaseID) (release func(), err error) {
	l := s.of(id)
	if err := l.enter(ctx); err != nil {
		return nil, err
	}
	var once sync.Once
	release = func() { once.Do(l.leave) }
	if err := s.ensureRunning(ctx, id); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// ensureRunning wakes a database that sleeps.
func (s *Service) ensureRunning(ctx context.Context, id api.DatabaseID) error {
	row, err := s.db.Read().Database(ctx, string(id))
	if errors.Is(err, store.ErrNotFound) {
		return notFound(id)
	}
	if err == nil {
		err = ready(&row)
	}
	if err == nil {
		err = s.adoptions.Check(ctx, string(id))
	}
	if err != nil {
		return err
	}
	if s.runs(ctx, &row) {
		return nil
	}
	op, release, err := s.locks.Acquire(ctx, string(id))
	if err != nil {
		return err
	}
	defer release()
	if row, err = s.db.Read().Database(op, string(id)); errors.Is(err, store.ErrNotFound) {
		return notFound(id)
	}
	if err == nil {
		err = ready(&row)
	}
	if err != nil {
		return err
	}
	_, err = s.runLocked(op, &row)
	return err
}

// runs reports whether the machine of a database runs.
func (s *Service) runs(ctx context.Context, row *store.Database) bool {
	m, err := s.primary(ctx, row.ID)
	if err != nil {
		return false
	}
	box, err := s.boxes.Get(ctx, as(row), api.SandboxID(m.Sandbox))
	return err == nil && box.Status == api.Running
}

// runLocked makes the server of a database accept connections. The lock is held.
func (s *Service) runLocked(ctx context.Context, row *store.Database) (guestapi.Guest, error) {
	m, err := s.primary(ctx, row.ID)
	if err != nil {
		return nil, err
	}
	p, id := as(row), api.SandboxID(m.Sandbox)
	box, err := s.boxes.Get(ctx, p, id)
	if err != nil {
		return nil, err
	}
	woken, booted := box.Status != api.Running, box.Status == api.Failed
	switch box.Status {
	case api.Running:
	case api.Paused:
		_, err = s.boxes.Resume(ctx, p, id)
	default:
		box, err = s.boxes.Wake(ctx, p, id)
		booted = booted || box.BootMode == string(hostapi.BootCold)
		s.of(api.DatabaseID(row.ID)).touch()
	}
	if err != nil {
		return nil, err
	}
	g, err := s.boxes.Guest(ctx, p, id)
	if err != nil || !woken {
		return g, err
	}
	if booted { // otherwise the machine has the server that ran in its memory
		starting, cancel := context.WithTimeout(ctx, s.cfg.StartTimeout)
		defer cancel()
		if err := server.Start(starting, g); err != nil {
			return nil, serverError(err)
		}
	}
	s.of(api.DatabaseID(row.ID)).setBackedUp(false)
	s.poke() // for its backups and its replicas
	if row.Durability == string(api.DurabilitySync) {
		return g, s.beginBackups(ctx, row, nil) // commits wait for it
	}
	return g, nil
}

// endSessions calls the hooks that end sessions of a database.
func (s *Service) endSessions(ctx context.Context, id api.DatabaseID) {
	s.mu.Lock()
	calls := s.before
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.EndTimeout)
	defer cancel()
	for _, call := range calls {
		call(ctx, id)
	}
	s.of(id).closeAdmin(ctx)
}

// Suspend ends the sessions of a database and lets it sleep. The next connection wakes it.
func (s *Service) Suspend(ctx context.Context, p auth.Principal, id api.DatabaseID) (api.Database, error) {
	row, ctx, release, err := s.lock(ctx, p, id)
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	defer release()
	if err := ready(&row); err != nil {
		return api.Database{}, err
	}
	if row.AlwaysOn {
		return api.Database{}, api.Errorf(api.WrongState, "database %s is always on: set always_on to false first", id)
	}
	if err := s.suspendLocked(ctx, &row, true); err != nil {
		return api.Database{}, api.AsError(err)
	}
	return s.show(ctx, &row)
}

// suspendLocked hibernates the machine of a database: with force after its sessions have ended, otherwise only if it
// has none. The lock is held.
func (s *Service) suspendLocked(ctx context.Context, row *store.Database, force bool) error {
	m, err := s.primary(ctx, row.ID)
	if err != nil {
		return err
	}
	p, id := as(row), api.DatabaseID(row.ID)
	box, err := s.boxes.Get(ctx, p, api.SandboxID(m.Sandbox))
	if err != nil || box.Status != api.Running {
		return err
	}
	gone, admit, ok := s.of(id).hold(force)
	if !ok {
		return nil
	}
	defer admit()
	if err := s.replicas.StopSeeds(ctx, row); err != nil {
		return err
	}
	s.endSessions(ctx, id)
	select {
	case <-gone:
	case <-time.After(s.cfg.EndTimeout): // the server ends what is left of them
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	g, err := s.boxes.Guest(ctx, p, box.ID)
	if err != nil {
		return err
	}
	var roles []server.Role
	err = server.Use(ctx, g, server.Maintained, func(conn *pgx.Conn) (err error) {
		if err := server.EndSessions(ctx, conn); err != nil {
			return err
		}
		roles, err = server.Roles(ctx, conn)
		return err
	})
	if err != nil {
		return serverError(err)
	}
	if err := s.saveRoles(ctx, row, roles); err != nil {
		return err
	}
	if err := s.flushBackups(ctx, row); err != nil {
		return err
	}
	if err := s.replicas.Sleep(ctx, row); err != nil {
		return err
	}
	_, err = s.boxes.Hibernate(ctx, p, box.ID)
	return err
}

// Wake makes a database that sleeps run again. It returns when it does.
func (s *Service) Wake(ctx context.Context, p auth.Principal, id api.DatabaseID) (api.DatabaseAccepted, error) {
	row, err := s.find(ctx, p, id)
	if err == nil {
		err = ready(&row)
	}
	if err != nil {
		return api.DatabaseAccepted{}, api.AsError(err)
	}
	if s.runs(ctx, &row) {
		s.of(id).touch()
		return api.DatabaseAccepted{ID: id, Status: string(api.DatabaseRunning), Detail: "it runs already"}, nil
	}
	release, err := s.acquire(ctx, id)
	if err != nil {
		return api.DatabaseAccepted{}, api.AsError(err)
	}
	release()
	return api.DatabaseAccepted{ID: id, Status: "waking", Detail: "it accepts connections"}, nil
}

// Server is a server of a database, for other services of this program.
type Server struct {
	guest   guestapi.Guest
	sandbox api.SandboxID
}

// SQL logs into a database of the server as its superuser. The caller closes the connection.
func (v Server) SQL(ctx context.Context, database string) (*pgx.Conn, error) {
	return server.Connect(ctx, v.guest, database)
}

// Guest returns the guest that the server runs in.
func (v Server) Guest() guestapi.Guest { return v.guest }

// Sandbox returns the sandbox that the server runs in.
func (v Server) Sandbox() api.SandboxID { return v.sandbox }

// Server wakes a database and returns its server. Until release is called, the database is in use.
func (s *Service) Server(
	ctx context.Context,
	p auth.Principal,
	id api.DatabaseID,
) (_ Server, release func(), err error) {
	row, err := s.find(ctx, p, id)
	if err != nil {
		return Server{}, nil, api.AsError(err)
	}
	if release, err = s.acquire(ctx, id); err != nil {
		return Server{}, nil, api.AsError(err)
	}
	out, err := s.serverOf(ctx, &row)
	if err != nil {
		release()
		return Server{}, nil, api.AsError(err)
	}
	return out, release, nil
}

// Running is Server for a database that runs. It neither wakes it nor counts as use; ok is false if it sleeps.
func (s *Service) Running(ctx context.Context, p auth.Principal, id api.DatabaseID) (_ Server, ok bool, err error) {
	row, err := s.find(ctx, p, id)
	if err == nil {
		err = ready(&row)
	}
	if err != nil {
		return Server{}, false, api.AsError(err)
	}
	if !s.runs(ctx, &row) {
		return Server{}, false, nil
	}
	out, err := s.serverOf(ctx, &row)
	if err != nil {
		return out, false, api.AsError(err)
	}
	return out, true, nil
}

func (s *Service) serverOf(ctx context.Context, row *store.Database) (Server, error) {
	m, err := s.primary(ctx, row.ID)
	if err != nil {
		return Server{}, err
	}
	g, err := s.boxes.Guest(ctx, as(row), api.SandboxID(m.Sandbox))
	return Server{guest: g, sandbox: api.SandboxID(m.Sandbox)}, err
}
