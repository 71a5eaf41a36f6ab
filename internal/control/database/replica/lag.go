package replica

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/database/standby"
	"github.com/pandastack/pandastack/internal/control/store"
)

// ErrNone means that a database has no read replicas.
var ErrNone = errors.New("the database has no read replicas")

const (
	// lagAge is how old a measurement may be that decides where a connection goes.
	lagAge = time.Second
	// replicaPoll is the time between looks for a replica that is caught up.
	replicaPoll = 250 * time.Millisecond
)

// lag is what was measured of a replica.
type lag struct {
	at                    time.Time
	recovering, streaming bool
	bytes                 int64
	time                  time.Duration
	err                   error
	broken                time.Time // since when it has not worked; zero: it works
}

// measure measures a replica of a database that runs.
func (s *Set) measure(ctx context.Context, row *store.Database, m *store.DatabaseMember) lag {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	out := lag{at: time.Now()}
	var end standby.Position
	var has standby.Status
	// The primary goes first: a replica that has all of this log had caught up with it at that moment.
	out.err = s.owner.Ask(ctx, row, func(conn *pgx.Conn) (err error) {
		end, err = standby.End(ctx, conn)
		return err
	})
	if out.err == nil {
		g, err := s.boxes.Guest(ctx, s.owner.As(row), api.SandboxID(m.Sandbox))
		if err == nil {
			err = server.Use(ctx, g, server.Maintained, func(conn *pgx.Conn) (err error) {
				has, err = standby.Read(ctx, conn)
				return err
			})
		}
		out.err = err
	}
	out.recovering, out.streaming = has.Recovering, has.Streaming
	if out.err == nil && has.Replayed < end {
		out.bytes, out.time = int64(end-has.Replayed), has.Behind
	}
	l := s.of(row.ID)
	l.mu.Lock()
	defer l.mu.Unlock()
	if out.err != nil || !out.streaming {
		if out.broken = l.lags[m.ID].broken; out.broken.IsZero() {
			out.broken = out.at
		}
	}
	if l.lags == nil {
		l.lags = map[string]lag{}
	}
	l.lags[m.ID] = out
	return out
}

// measuredLag returns the last measurement of a replica.
func (l *state) measuredLag(id string) lag {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lags[id]
}

// brokenFor returns for how long a replica has not worked, as far as this process has seen.
func (l *state) brokenFor(id string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.lags[id]
	if at.broken.IsZero() { // its machine does not run
		at.broken = time.Now()
		if l.lags == nil {
			l.lags = map[string]lag{}
		}
		l.lags[id] = at
	}
	return time.Since(at.broken)
}

// caughtUp returns the next replica in turn that is caught up, preferring the one with an id; ok is false if none is.
func (s *Set) caughtUp(ctx context.Context, row *store.Database, prefer string) (m store.DatabaseMember, ok bool) {
	all, err := s.replicas(ctx, row.ID)
	if err != nil || len(all) == 0 {
		return m, false
	}
	l := s.of(row.ID)
	l.mu.Lock()
	turn := slices.IndexFunc(all, func(m store.DatabaseMember) bool { return m.ID == prefer })
	if turn < 0 {
		l.turn++
		turn = l.turn % len(all)
	}
	l.mu.Unlock()
	all = append(slices.Clone(all[turn:]), all[:turn]...)
	for _, m := range all {
		if m.State != store.MemberReady || !s.boxRuns(ctx, row, &m) {
			continue
		}
		at := l.measuredLag(m.ID)
		if time.Since(at.at) > lagAge {
			at = s.measure(ctx, row, &m)
		}
		if at.err == nil && at.recovering && at.streaming && at.time <= s.cfg.Lag {
			return m, true
		}
	}
	return m, false
}

// Dial connects to a port of a replica that is caught up, and waits for one if there is none.
//
// It returns ErrNone if the database has no replicas. prefer is the id of the replica of an earlier Dial, which is
// taken again while it is caught up; chosen is that of this.
func (s *Set) Dial(
	ctx context.Context,
	row *store.Database,
	prefer string,
	port uint16,
) (conn net.Conn, chosen string, err error) {
	if row.Replicas == 0 {
		return nil, "", ErrNone
	}
	tick := time.NewTicker(replicaPoll)
	defer tick.Stop()
	for {
		if m, ok := s.caughtUp(ctx, row, prefer); ok {
			g, err := s.boxes.Guest(ctx, s.owner.As(row), api.SandboxID(m.Sandbox))
			if err != nil {
				return nil, "", err
			}
			conn, err := g.DialPort(ctx, port)
			return conn, m.ID, err
		}
		s.owner.Poke() // one may have to be woken
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, "", api.Wrap(api.Unavailable, context.Cause(ctx), "no read replica of the database is caught "+
				"up: try again, or connect to the database itself")
		}
	}
}

// View adds the replicas of a database and how far they are behind.
func (s *Set) View(ctx context.Context, row *store.Database, out *api.Database) error {
	if row.Replicas == 0 {
		return nil
	}
	all, err := s.replicas(ctx, row.ID)
	if err != nil {
		return err
	}
	l := s.of(row.ID)
	for _, m := range all {
		at := l.measuredLag(m.ID)
		one := api.DatabaseReplica{
			SandboxID: api.SandboxID(m.Sandbox), Status: api.ReplicaCreating, LagBytes: at.bytes,
			LagSeconds: at.time.Seconds(), Error: m.Error,
		}
		if !at.at.IsZero() {
			one.MeasuredAt = &at.at
		}
		switch {
		case m.State == store.MemberCreating:
		case m.State != store.MemberReady:
			one.Status = api.ReplicaFailed
		case out.Status == api.DatabaseHibernated:
			one.Status = api.ReplicaHibernated
		case at.err != nil || !at.streaming || at.time > s.cfg.Lag:
			one.Status = api.ReplicaBehind
		default:
			one.Status = api.ReplicaStreaming
		}
		out.ReplicaStates = append(out.ReplicaStates, one)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(all) < row.Replicas && l.failure != "" {
		out.ReplicaStates = append(out.ReplicaStates,
			api.DatabaseReplica{Status: api.ReplicaFailed, Error: l.failure})
	}
	return nil
}
