package database_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/database"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/scram"
)

// backedUp makes a database with the row "one" and a base backup, which a restore has.
func backedUp(t *testing.T, durability api.Durability) (*fixture, *recorder, api.Database) {
	t.Helper()
	r := newRecorder()
	w := newFixture(t, withBackups(r), func(w *fixture) { w.cfg.EndTimeout = time.Millisecond })
	d, err := w.Create(t.Context(), alice, api.CreateDatabaseRequest{Durability: durability})
	w.must(err)
	w.must(w.Reconcile(t.Context()))
	w.must(w.Reconcile(t.Context())) // the backups begin
	w.insert(d.ID, "one")
	r.rows = []string{"one"}
	r.based = time.Now().Add(-time.Minute)
	r.take()
	return w, r, w.get(d.ID)
}

// kill ends the machine of a database.
func (w *fixture) kill(id api.DatabaseID) {
	w.t.Helper()
	for _, m := range w.host.Machines() {
		w.host.Kill(m.ID, "the monitor was killed")
	}
	w.must(w.boxes.Reconcile(w.t.Context()))
}

// oneWriter checks that no machine runs beside the one that a database is restored into.
func (w *fixture) oneWriter() {
	running := 0
	for _, m := range w.host.Machines() {
		if m.State == hostapi.Running || m.State == hostapi.Paused {
			running++
		}
	}
	if running != 1 {
		w.t.Errorf("%d machines run while a database is restored, want the new one only", running)
	}
}

// same checks that a database has its row and its credentials, on one server.
func (w *fixture) same(d api.Database, timeline int64) {
	w.t.Helper()
	got := w.get(d.ID)
	if got.Password != d.Password || got.ConnectionURL != d.ConnectionURL || got.BrokerToken != d.BrokerToken {
		w.t.Errorf("the connection is %+v, want that of %+v", got, d)
	}
	s := w.state(d.ID)
	if !slices.Equal(s.Rows, []string{"one"}) {
		w.t.Errorf("rows %q, want one", s.Rows)
	}
	v, err := scram.ParseVerifier(s.Roles[database.RoleName])
	w.must(err)
	if _, ok, err := v.Check(d.Password); !ok || err != nil {
		w.t.Errorf("the server has another password: %v", err)
	}
	members, err := w.db.Read().DatabaseMembers(w.t.Context(), string(d.ID))
	w.must(err)
	if len(members) != 1 || members[0].Timeline != timeline && timeline > 0 {
		w.t.Errorf("servers %+v, want one of timeline %d", members, timeline)
	}
	w.whole("after a failover", 1)
}

// A dead machine is replaced by one with everything that was confirmed; so is one that works, when that is forced.
func TestFailover(t *testing.T) {
	for name, test := range map[string]struct {
		durability api.Durability
		force      bool
		before     func(w *fixture, r *recorder, d api.Database)
		calls      string
	}{
		"dead and synchronous": {api.DurabilitySync, false, func(w *fixture, _ *recorder, d api.Database) {
			w.kill(d.ID)
		}, "end restore begin-sync"},
		"lost and synchronous": {api.DurabilitySync, false, func(w *fixture, _ *recorder, d api.Database) {
			for _, m := range w.host.Machines() {
				w.host.Lose(m.ID)
			}
			w.must(w.boxes.Reconcile(w.t.Context()))
		}, "end restore begin-sync"},
		"dead and asynchronous": {api.DurabilityAsync, true, func(w *fixture, _ *recorder, d api.Database) {
			w.kill(d.ID)
		}, "end restore begin"},
		"a server that fails": {api.DurabilitySync, false, func(w *fixture, _ *recorder, _ api.Database) {
			w.must(w.Service.Reconcile(w.t.Context()))
			broken := true
			w.fake.SetHook(func(sql string, _ bool) error {
				if broken && strings.HasPrefix(sql, "-- ping") {
					broken = false
					return errors.New("input/output error")
				}
				return nil
			})
		}, "flush end restore begin-sync"},
		"healthy": {api.DurabilityAsync, true, func(*fixture, *recorder, api.Database) {}, "flush end restore begin"},
		"a log that is not archived": {api.DurabilityAsync, true, func(_ *fixture, r *recorder, _ api.Database) {
			r.fail["flush"] = errors.New("input/output error")
		}, "flush end restore begin"},
		"a machine that does not sleep": {api.DurabilityAsync, true, func(w *fixture, _ *recorder, _ api.Database) {
			w.host.Fail("hibernate", errors.New("the monitor hangs"))
		}, "flush end restore begin"},
		"asleep": {api.DurabilityAsync, true, func(w *fixture, r *recorder, d api.Database) {
			_, err := w.Suspend(w.t.Context(), alice, d.ID)
			w.must(err)
			r.take()
		}, "end restore begin"},
	} {
		t.Run(name, func(t *testing.T) {
			w, r, d := backedUp(t, test.durability)
			if !d.FailoverAvailable || d.FailoverReason != "" || d.FailoverETASeconds == 0 {
				t.Errorf("available: %v (%s), %d s; want it", d.FailoverAvailable, d.FailoverReason,
					d.FailoverETASeconds)
			}
			test.before(w, r, d)
			got, err := w.Failover(t.Context(), alice, d.ID, api.FailoverRequest{Force: test.force})
			w.must(err)
			if got.Status != api.DatabaseRestoring || got.ConnectionURL != d.ConnectionURL || got.FailoverAvailable {
				t.Errorf("a failover has begun: %+v", got)
			}
			_, err = w.Failover(t.Context(), alice, d.ID, api.FailoverRequest{Force: true})
			w.wants("Failover meanwhile", err, api.Unavailable)
			_, err = w.endpoint(d.ID).Acquire(t.Context())
			w.wants("a connection meanwhile", err, api.Unavailable)
			r.seen = func(call string) {
				if call == "restore" {
					w.oneWriter()
				}
			}
			w.must(w.Reconcile(t.Context()))
			r.wants(t, "a failover", test.calls)
			if got := r.restored; got.From != string(d.ID) || got.Target.Variant != "npm" {
				t.Errorf("restored %+v, want the end of the log of %s", got, d.ID)
			}
			got = w.get(d.ID)
			if got.Status != api.DatabaseRunning || got.Error != "" || got.SandboxID == d.SandboxID {
				t.Errorf("the database is %s (%s) on %s; want running on another machine", got.Status, got.Error,
					got.SandboxID)
			}
			w.same(d, 2)
			w.must(w.Delete(t.Context(), alice, d.ID))
			w.empty("deleted")
		})
	}
}

// What a failover refuses leaves the database as it is.
func TestFailoverRefusals(t *testing.T) {
	try := func(w *fixture, d api.Database, force bool, code api.Code, text string) {
		t.Helper()
		_, err := w.Failover(t.Context(), alice, d.ID, api.FailoverRequest{Force: force})
		if e := w.wants("Failover", err, code); !strings.Contains(e.Message, text) {
			t.Errorf("Failover = %v, want %q", e, text)
		}
	}
	bare := newFixture(t)
	without := bare.made()
	if without.FailoverAvailable || without.FailoverReason == "" {
		t.Errorf("a failover without backups is available: %+v", without)
	}
	try(bare, without, true, api.Unsupported, "keeps no backups")

	w, r, d := backedUp(t, api.DurabilityAsync)
	_, err := w.Failover(t.Context(), bob, d.ID, api.FailoverRequest{})
	w.wants("Failover of another workspace's database", err, api.NotFound)
	try(w, d, false, api.WrongState, "use force")
	begun, err := w.Create(t.Context(), alice, api.CreateDatabaseRequest{})
	w.must(err)
	try(w, begun, true, api.Unavailable, "is being made")
	w.must(w.Delete(t.Context(), alice, begun.ID))
	_, err = w.Suspend(t.Context(), alice, d.ID)
	w.must(err)
	try(w, d, false, api.WrongState, "a connection wakes it")
	w.same(d, 1)
	w.kill(d.ID)
	r.status.Running = true
	r.status.Relay.Covered = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	try(w, d, false, api.PreconditionFailed, "commits after 2026-03-04T05:06:07Z may be lost")
	r.based = time.Time{}
	try(w, d, true, api.PreconditionFailed, "no complete base backup")
	if got := w.get(d.ID); got.FailoverAvailable || got.FailoverReason == "" {
		t.Errorf("a failover without a base backup is available: %+v", got)
	}
	w.same(d, 1)
}

// A failover that fails leaves the server that it could not replace, and says why. It can be tried again.
func TestFailedFailover(t *testing.T) {
	w, r, d := backedUp(t, api.DurabilitySync)
	r.fail["restore"] = errors.New("the object store is away")
	fail := func() {
		t.Helper()
		_, err := w.Failover(t.Context(), alice, d.ID, api.FailoverRequest{Force: true})
		w.must(err)
		w.must(w.Reconcile(t.Context()))
	}
	fail()
	if got := w.get(d.ID); !strings.Contains(got.Error, "the object store is away") || got.SandboxID != d.SandboxID {
		t.Errorf("the database has error %q on %s, want the reason and its machine", got.Error, got.SandboxID)
	}
	w.same(d, 1)
	fail()
	if got := w.get(d.ID); got.Status != api.DatabaseRunning || got.Error != "" {
		t.Errorf("the database is %s: %s", got.Status, got.Error)
	}
	w.same(d, 2)
}

// A larger volume is replaced by one of its size.
func TestFailoverStorage(t *testing.T) {
	w, _, d := backedUp(t, api.DurabilityAsync)
	size := func() int {
		t.Helper()
		all, err := w.db.Read().Volumes(t.Context(), store.VolumeQuery{})
		w.must(err)
		if len(all) != 1 {
			t.Fatalf("volumes %+v, want one", all)
		}
		return int(all[0].SizeMiB)
	}
	w.fake.SetUsed(int64(size()) << 20 * 8 / 10)
	w.restart() // so that it is measured
	w.reconcile()
	w.reconcile()
	w.fake.SetUsed(0)
	grown := size()
	_, err := w.Failover(t.Context(), alice, d.ID, api.FailoverRequest{Force: true})
	w.must(err)
	w.must(w.Reconcile(t.Context()))
	if got := size(); got != grown || grown <= 8192 {
		t.Errorf("the volume has %d MiB, want the %d that it had grown to", got, grown)
	}
	w.same(d, 2)
}

// TestFailoverAtEveryStep fails or kills a failover as TestFailureAtEveryStep does. Afterwards the database has its
// rows and credentials on one server: the new one, or, if the old one had to stay, that of the next failover.
func TestFailoverAtEveryStep(t *testing.T) {
	for _, dead := range []bool{false, true} {
		for _, healthy := range []bool{false, true} {
			t.Run(fmt.Sprintf("killed=%v,healthy=%v", dead, healthy), func(t *testing.T) {
				for at := 0; ; at++ {
					c := &faultInjector{at: at, dead: dead}
					failoverOnce(t, c, healthy)
					if t.Failed() {
						t.Fatalf("after a cut at step %d", at)
					}
					if !c.hit {
						if at < 20 {
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

func failoverOnce(t *testing.T, c *faultInjector, healthy bool) {
	t.Helper()
	w, r, d := backedUp(t, api.DurabilitySync)
	ctx := t.Context()
	if !healthy {
		w.kill(d.ID)
	}
	r.seen = func(call string) {
		if call == "restore" {
			w.oneWriter()
		}
	}
	c.install(w)
	r.step = c.step
	_, err := w.Failover(ctx, alice, d.ID, api.FailoverRequest{Force: healthy})
	_ = errors.Join(err, w.Reconcile(ctx)) // what became of it is seen below
	r.step = nil
	c.remove(w)
	if c.dead {
		w.restart()
	}
	w.reconcile()
	got := w.get(d.ID)
	if got.Status == api.DatabaseRestoring {
		t.Errorf("the database is %s: %s", got.Status, got.Error)
	}
	w.whole("a failover that was cut", 1)
	if got.Error != "" || got.SandboxID == d.SandboxID {
		_, err := w.Failover(ctx, alice, d.ID, api.FailoverRequest{Force: true})
		w.must(err)
		w.reconcile()
	}
	w.same(d, 2)
	w.must(w.Delete(ctx, alice, d.ID))
	w.empty("deleted")
}
