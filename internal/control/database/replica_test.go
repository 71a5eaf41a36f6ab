package database_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database"
	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/database/replica"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/database/server/servertest"
	"github.com/pandastack/pandastack/internal/control/database/standby"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
)

// replicator copies what the fake server of a primary has when a standby is made, and nothing later.
type replicator struct{ fail error }

// Seed implements replica.Replication.
func (r *replicator) Seed(ctx context.Context, p standby.Pair) error {
	if err := r.fail; err != nil {
		r.fail = nil
		return err
	}
	if !strings.HasPrefix(p.Slot, backup.SlotName("dbs")) || len(p.Slot) > 63 {
		return fmt.Errorf("slot %q", p.Slot)
	}
	cfg, err := pgx.ParseConfig("host=localhost user=postgres sslmode=disable")
	if err != nil {
		return err
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return p.Primary(ctx) }
	primary, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer server.Close(ctx, primary)
	s, err := servertest.Dump(ctx, primary)
	if err != nil {
		return err
	}
	s.Standby = true
	return server.Use(ctx, p.Standby, server.Maintained, func(conn *pgx.Conn) error {
		return servertest.Replace(ctx, conn, s)
	})
}

// Carry implements replica.Replication.
func (r *replicator) Carry(ctx context.Context, _ standby.Pair) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// Complete implements database.Backups: the standby gets the rows that a restore brings.
func (r *recorder) Complete(ctx context.Context, req backup.CompleteRequest) (backup.Position, error) {
	g := req.Into.(backup.GuestServer).Guest.(guestapi.Guest)
	err := server.Use(ctx, g, server.Maintained, func(conn *pgx.Conn) error {
		s, err := servertest.Dump(ctx, conn)
		if err != nil {
			return err
		}
		if !s.Standby {
			return errors.New("it takes writes already")
		}
		s.Rows = slices.Clone(r.rows)
		return servertest.Replace(ctx, conn, s)
	})
	if err != nil {
		return 0, err
	}
	return req.From, r.call("complete", true, req.Database)
}

// settled reconciles until the replicas of a database are made.
func (w *fixture) settled(id api.DatabaseID, replicas int) api.Database {
	w.t.Helper()
	for range 4 { // a machine, its content, and another look at it
		w.must(w.Reconcile(w.t.Context()))
	}
	d := w.get(id)
	if len(d.ReplicaStates) != replicas {
		w.t.Fatalf("replicas %+v, want %d", d.ReplicaStates, replicas)
	}
	for _, r := range d.ReplicaStates {
		if d.Status == api.DatabaseRunning && (r.Status != api.ReplicaStreaming || r.Error != "") {
			w.t.Fatalf("replica %+v, want it to stream", r)
		}
	}
	return d
}

// withReplicas makes a database with the row "one", a base backup and replicas.
func withReplicas(t *testing.T, n int, durability api.Durability) (*fixture, *recorder, api.Database) {
	t.Helper()
	w, r, d := backedUp(t, durability)
	_, err := w.Update(t.Context(), alice, d.ID, api.UpdateDatabaseRequest{Replicas: &n})
	w.must(err)
	d = w.settled(d.ID, n)
	r.take()
	return w, r, d
}

// servers returns what the servers of a database have, the primary first.
func (w *fixture) servers(id api.DatabaseID) (all []servertest.State) {
	w.t.Helper()
	ctx := w.t.Context()
	members, err := w.db.Read().DatabaseMembers(ctx, string(id))
	w.must(err)
	for _, m := range members {
		s, err := servertest.Load(ctx, w.guest(id, m.Sandbox))
		w.must(err)
		if s.Standby != (m.Role == store.MemberReplica) {
			w.t.Errorf("the server %s is a standby: %v", m.Role, s.Standby)
		}
		all = append(all, s)
	}
	return all
}

func (w *fixture) guest(id api.DatabaseID, sandbox string) guestapi.Guest {
	w.t.Helper()
	p := auth.Principal{Workspace: "alice", Owner: hostapi.Owner{Kind: database.OwnerKind, ID: string(id)}}
	g, err := w.boxes.Guest(w.t.Context(), p, api.SandboxID(sandbox))
	w.must(err)
	return g
}

// writers returns how many machines run whose servers take writes.
func (w *fixture) writers() (n int) {
	w.t.Helper()
	for _, m := range w.host.Machines() {
		if m.State != hostapi.Running && m.State != hostapi.Paused {
			continue
		}
		if m.State == hostapi.Paused { // it may go on
			n++
			continue
		}
		g, err := w.host.Guest(w.t.Context(), m.ID)
		w.must(err)
		s, err := servertest.Load(w.t.Context(), g)
		w.must(err)
		if !s.Standby && len(s.Rows) > 0 {
			n++
		}
	}
	return n
}

// fenced checks that no server takes writes while a standby gets the log, and only the new one after a restore.
func (w *fixture) fenced(call string) {
	w.t.Helper()
	if n, most := w.writers(), map[string]int{"complete": 0, "restore": 1}; n > 0 {
		if limit, ok := most[call]; ok && n > limit {
			w.t.Errorf("%s: %d servers take writes", call, n)
		}
	}
}

// Replicas are servers of their own with what the primary has. Their number can be changed, they sleep and wake with
// the primary, and go with the database.
func TestReplicas(t *testing.T) {
	ctx := t.Context()
	w := newFixture(t, func(w *fixture) { w.cfg.EndTimeout = time.Millisecond })
	d, err := w.Create(ctx, alice, api.CreateDatabaseRequest{Replicas: 2})
	w.must(err)
	d = w.settled(d.ID, 2)
	w.whole("two replicas", 3)
	if !strings.Contains(d.ReadOnlyURL, string(d.ID)+"-ro.db.example.com") {
		t.Errorf("read-only URL %q", d.ReadOnlyURL)
	}
	if c, err := w.Connection(ctx, alice, d.ID); err != nil || c.ReadOnlyPoolerURL != d.ReadOnlyPoolerURL ||
		!strings.Contains(d.ReadOnlyPoolerURL, string(d.ID)+"-ro-pooler.db.example.com") {
		t.Errorf("URL of the pooler %q and %q, %v", d.ReadOnlyPoolerURL, c.ReadOnlyPoolerURL, err)
	}
	all, err := w.List(ctx, alice)
	w.must(err)
	if all[0].ReadOnlyURL+all[0].ReadOnlyPoolerURL != "" {
		t.Error("a list has a URL with a password")
	}
	branch, err := w.Clone(ctx, alice, d.ID, api.CloneDatabaseRequest{})
	w.must(err)
	w.must(w.Reconcile(ctx))
	if b := w.get(branch.ID); b.Status != api.DatabaseRunning || b.Replicas != 0 {
		t.Errorf("the branch is %s with %d replicas, want none", b.Status, b.Replicas)
	}
	w.must(w.Delete(ctx, alice, branch.ID))

	w.insert(d.ID, "one")
	d = w.settled(d.ID, 2)
	for _, r := range d.ReplicaStates {
		if r.LagBytes != 256 || r.LagSeconds != 1.5 || r.MeasuredAt == nil {
			t.Errorf("replica %+v, want it 256 bytes and 1.5 s behind", r)
		}
	}
	_, err = w.Suspend(ctx, alice, d.ID)
	w.must(err)
	for range 2 {
		w.must(w.Reconcile(ctx))
		for _, m := range w.host.Machines() {
			if m.State == hostapi.Running {
				t.Errorf("machine %s runs although the database sleeps", m.ID)
			}
		}
		for _, r := range w.settled(d.ID, 2).ReplicaStates {
			if r.Status != api.ReplicaHibernated {
				t.Errorf("replica %+v of a database that sleeps", r)
			}
		}
	}
	_, err = w.Wake(ctx, alice, d.ID)
	w.must(err)
	w.settled(d.ID, 2)

	for _, n := range []int{1, 3, 0} {
		_, err := w.Update(ctx, alice, d.ID, api.UpdateDatabaseRequest{Replicas: &n})
		w.must(err)
		w.settled(d.ID, n)
		w.whole(fmt.Sprint(n, " replicas"), n+1)
		for i, s := range w.servers(d.ID) {
			if !slices.Equal(s.Rows, []string{"one"}) && i != 1 { // the first replica got nothing since it was made
				t.Errorf("server %d of %d has the rows %q", i, n+1, s.Rows)
			}
		}
	}
	two := 2
	_, err = w.Update(ctx, alice, d.ID, api.UpdateDatabaseRequest{Replicas: &two})
	w.must(err)
	w.settled(d.ID, 2)
	w.must(w.Delete(ctx, alice, d.ID))
	w.empty("deleted")
}

// A replica that cannot be made says why, leaves nothing, and does not disturb the database.
func TestReplicaFails(t *testing.T) {
	for name, cut := range map[string]func(*fixture, *replicator){
		"quota":   func(w *fixture, _ *replicator) { w.quotas[quota.Sandboxes] = 1 },
		"machine": func(w *fixture, _ *replicator) { w.host.Fail("create", errors.New("no memory")) },
		"content": func(_ *fixture, r *replicator) { r.fail = errors.New("no space") },
	} {
		t.Run(name, func(t *testing.T) {
			r := &replicator{}
			w := newFixture(t, func(w *fixture) { w.replication, w.quotas = r, map[quota.Kind]int64{} })
			d := w.made()
			w.must(w.Reconcile(t.Context()))
			cut(w, r)
			one := 1
			_, err := w.Update(t.Context(), alice, d.ID, api.UpdateDatabaseRequest{Replicas: &one})
			w.must(err)
			for range 4 {
				w.must(w.Reconcile(t.Context()))
			}
			d = w.get(d.ID)
			if len(d.ReplicaStates) != 1 || d.ReplicaStates[0].Status != api.ReplicaFailed ||
				d.ReplicaStates[0].Error == "" || d.Status != api.DatabaseRunning {
				t.Errorf("the database is %s with the replicas %+v, want one that failed", d.Status, d.ReplicaStates)
			}
			w.whole("a replica that failed", 1)
			w.quotas[quota.Sandboxes] = 0
			w.restart() // so that it is tried again at once
			w.settled(d.ID, 1)
			w.whole("a replica", 2)
		})
	}
}

// A replica that is lost, that takes writes or that does not receive the log for long is replaced.
func TestReplicaIsReplaced(t *testing.T) {
	for name, damage := range map[string]func(*fixture, store.DatabaseMember){
		"lost": func(w *fixture, m store.DatabaseMember) {
			w.host.Lose(hostapi.MachineID(m.Sandbox))
			w.must(w.boxes.Reconcile(w.t.Context()))
		},
		"writable": func(w *fixture, m store.DatabaseMember) {
			w.must(server.Use(w.t.Context(), w.guest(api.DatabaseID(m.Database), m.Sandbox), server.Maintained,
				func(conn *pgx.Conn) error { return standby.Promote(w.t.Context(), conn) }))
		},
		"cut": func(w *fixture, _ store.DatabaseMember) { w.fake.Cut(true) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, func(w *fixture) { w.cfg.ReplicaTimeout = time.Nanosecond })
			d, err := w.Create(t.Context(), alice, api.CreateDatabaseRequest{Replicas: 1})
			w.must(err)
			was := w.settled(d.ID, 1).ReplicaStates[0].SandboxID
			members, err := w.db.Read().DatabaseMembers(t.Context(), string(d.ID))
			w.must(err)
			damage(w, members[1])
			w.must(w.Reconcile(t.Context()))
			w.fake.Cut(false)
			w.restart() // so that another is made at once
			if now := w.settled(d.ID, 1).ReplicaStates[0].SandboxID; now == was {
				t.Errorf("the replica is still %s", now)
			}
			w.servers(d.ID)
			w.whole("another replica", 2)
		})
	}
}

// Connections for replicas are shared between those that are caught up, and wait if none is.
func TestReplicaConnections(t *testing.T) {
	ctx := t.Context()
	w, _, d := withReplicas(t, 2, api.DurabilityAsync)
	w.cfg.ReplicaLag = time.Second
	w.restart()
	names := map[string]bool{}
	dial := func(e *database.Endpoint) (string, error) {
		c, err := e.DialReplica(ctx, server.Port)
		if err != nil {
			return "", err
		}
		defer c.Close()
		name, err := io.ReadAll(c)
		return string(name), err
	}
	members, err := w.db.Read().DatabaseMembers(ctx, string(d.ID))
	w.must(err)
	for i, m := range members {
		w.host.ServePort(hostapi.MachineID(m.Sandbox), server.Port, func(c net.Conn) { _, _ = fmt.Fprint(c, i) })
	}
	for range 4 {
		e := w.endpoint(d.ID)
		name, err := dial(e)
		w.must(err)
		names[name] = true
		if again, err := dial(e); err != nil || again != name {
			t.Errorf("an endpoint went from replica %s to %s: %v", name, again, err)
		}
	}
	if len(names) != 2 || names["0"] {
		t.Errorf("connections went to the servers %v, want both replicas", names)
	}
	w.insert(d.ID, "two") // the replicas are 1.5 s behind
	w.restart()
	limited, cancel := context.WithCancelCause(ctx)
	cancel(errors.New("the client has gone"))
	_, err = w.endpoint(d.ID).DialReplica(limited, server.Port)
	w.wants("a connection while no replica is caught up", err, api.Unavailable)
	zero := 0
	_, err = w.Update(ctx, alice, d.ID, api.UpdateDatabaseRequest{Replicas: &zero})
	w.must(err)
	if _, err := dial(w.endpoint(d.ID)); !errors.Is(err, replica.ErrNone) {
		t.Errorf("a connection without replicas: %v", err)
	}
}

// A failover promotes a replica, with what the relay has beyond it. The old primary is gone, and never do two servers
// take writes.
func TestPromotion(t *testing.T) {
	for name, test := range map[string]struct {
		force  bool
		before func(w *fixture, r *recorder, d api.Database)
		calls  string
	}{
		"dead": {false, func(w *fixture, _ *recorder, d api.Database) {
			w.host.Kill(hostapi.MachineID(d.SandboxID), "the monitor was killed")
			w.must(w.boxes.Reconcile(w.t.Context()))
		}, "end complete begin-sync"},
		"lost": {false, func(w *fixture, _ *recorder, d api.Database) {
			w.host.Lose(hostapi.MachineID(d.SandboxID))
			w.must(w.boxes.Reconcile(w.t.Context()))
		}, "end complete begin-sync"},
		"without a base backup": {false, func(w *fixture, r *recorder, d api.Database) {
			r.based = time.Time{}
			w.host.Lose(hostapi.MachineID(d.SandboxID))
			w.must(w.boxes.Reconcile(w.t.Context()))
		}, "end complete begin-sync"},
		"healthy": {true, func(*fixture, *recorder, api.Database) {}, "flush end complete begin-sync"},
		"paused": {true, func(w *fixture, _ *recorder, d api.Database) {
			w.must(w.host.Pause(w.t.Context(), hostapi.MachineID(d.SandboxID)))
			w.must(w.boxes.Reconcile(w.t.Context()))
		}, "end complete begin-sync"},
		"a replica that does not respond": {true, func(w *fixture, _ *recorder, d api.Database) {
			w.fake.Fail("SELECT pg_catalog.pg_promote", errors.New("out of memory"))
		}, "flush end complete restore begin-sync"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			w, r, d := withReplicas(t, 1, api.DurabilitySync)
			w.insert(d.ID, "two") // the replica lacks it
			r.rows = []string{"one", "two"}
			test.before(w, r, d)
			r.take()
			r.seen = func(call string) {
				w.fenced(call)
			}
			_, err := w.Failover(ctx, alice, d.ID, api.FailoverRequest{Force: test.force})
			w.must(err)
			w.must(w.Reconcile(ctx))
			r.wants(t, "a failover", test.calls)
			r.seen = nil
			if n := w.writers(); n != 1 {
				t.Errorf("%d servers take writes", n)
			}
			got := w.get(d.ID)
			if promoted := got.SandboxID == d.ReplicaStates[0].SandboxID; got.Status != api.DatabaseRunning ||
				got.Error != "" || promoted != !strings.Contains(test.calls, "restore") {
				t.Errorf("the database is %s (%s) on %s, the replica was %s", got.Status, got.Error, got.SandboxID,
					d.ReplicaStates[0].SandboxID)
			}
			if got.ReadOnlyURL != d.ReadOnlyURL || got.ConnectionURL != d.ConnectionURL || got.Password != d.Password {
				t.Errorf("the connection is %+v, want that of %+v", got, d)
			}
			w.restart() // so that a replica is made at once
			w.settled(d.ID, 1)
			for _, s := range w.servers(d.ID) {
				if !slices.Equal(s.Rows, []string{"one", "two"}) {
					t.Errorf("rows %q, want all that were confirmed", s.Rows)
				}
			}
			w.whole("after a failover", 2)
			w.must(w.Delete(ctx, alice, d.ID))
			w.empty("deleted")
		})
	}
}

// TestReplicaAtEveryStep fails or kills the making, removal and promotion of a replica as TestFailureAtEveryStep does.
// Afterwards the database has its rows on a primary and as many replicas as it should, and nothing else.
func TestReplicaAtEveryStep(t *testing.T) {
	for name, op := range map[string]struct {
		before, after int
		do            func(w *fixture, ctx context.Context, id api.DatabaseID) error
	}{
		"make": {0, 1, func(w *fixture, ctx context.Context, id api.DatabaseID) error {
			one := 1
			_, err := w.Update(ctx, alice, id, api.UpdateDatabaseRequest{Replicas: &one})
			return errors.Join(err, w.Reconcile(ctx), w.Reconcile(ctx))
		}},
		"remove": {1, 0, func(w *fixture, ctx context.Context, id api.DatabaseID) error {
			zero := 0
			_, err := w.Update(ctx, alice, id, api.UpdateDatabaseRequest{Replicas: &zero})
			return errors.Join(err, w.Reconcile(ctx))
		}},
		"suspend": {1, 1, func(w *fixture, ctx context.Context, id api.DatabaseID) error {
			_, err := w.Suspend(ctx, alice, id)
			return err
		}},
		"promote": {1, 1, func(w *fixture, ctx context.Context, id api.DatabaseID) error {
			_, err := w.Failover(ctx, alice, id, api.FailoverRequest{Force: true})
			return errors.Join(err, w.Reconcile(ctx))
		}},
		"delete": {1, -1, func(w *fixture, ctx context.Context, id api.DatabaseID) error {
			return w.Delete(ctx, alice, id)
		}},
	} {
		for _, dead := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,killed=%v", name, dead), func(t *testing.T) {
				t.Parallel()
				for at := 0; ; at++ {
					c := &faultInjector{at: at, dead: dead}
					w, r, d := withReplicas(t, op.before, api.DurabilitySync)
					r.seen = func(call string) {
						c.watch(func() { w.fenced(call) })
					}
					c.install(w)
					r.step = c.step
					_ = op.do(w, t.Context(), d.ID) // what became of it is seen below
					r.step = nil
					c.remove(w)
					replicaSettles(w, d, op.before, op.after)
					if t.Failed() {
						t.Fatalf("after a cut at step %d", at)
					}
					if !c.hit {
						if at < 3 {
							t.Errorf("only %d steps were cut: the test sees nothing", at)
						}
						t.Logf("cut at %d steps", at)
						return
					}
				}
			})
		}
	}
}

// replicaSettles checks that a database has its row on all its servers and as many replicas as it should have, or, if
// the operation had no effect, had; after -1 is a database that was deleted.
func replicaSettles(w *fixture, d api.Database, before, after int) {
	w.t.Helper()
	ctx := w.t.Context()
	w.restart() // what failed is tried again at once
	w.reconcile()
	all, err := w.List(ctx, alice)
	w.must(err)
	if len(all) == 0 && after < 0 {
		w.empty("deleted")
		return
	}
	if n := w.writers(); n > 1 {
		w.t.Errorf("%d servers take writes", n)
	}
	_, err = w.Wake(ctx, alice, d.ID)
	w.must(err)
	got := w.get(d.ID)
	if n := got.Replicas; n != before && n != after {
		w.t.Fatalf("the database should have %d replicas", n)
	}
	w.settled(d.ID, got.Replicas)
	for _, s := range w.servers(d.ID) {
		if !slices.Equal(s.Rows, []string{"one"}) {
			w.t.Errorf("rows %q, want one", s.Rows)
		}
	}
	w.whole("an operation that was cut", 1+got.Replicas)
	w.must(w.Delete(ctx, alice, d.ID))
	w.empty("deleted")
}
