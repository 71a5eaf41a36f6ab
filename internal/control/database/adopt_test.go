package database_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/store"
)

var operator = auth.Principal{Workspace: "ops", KeyPrefix: "pds_0p5", Operator: true}

// twoNodes are nodes that share an object store. The first one has a database with the row "one" and a role made with
// SQL, which it has described.
func twoNodes(t *testing.T, durability api.Durability) (a, b *fixture, first, second *recorder, d api.Database) {
	t.Helper()
	a, first, d = backedUp(t, durability)
	networks := []string{"10.0.0.0/8"}
	_, err := a.Update(t.Context(), alice, d.ID, api.UpdateDatabaseRequest{
		Label: new("mine"), StorageMaxMB: new(20000), Networks: &networks,
	})
	a.must(err)
	a.settle()
	second = newRecorder()
	second.shelf, second.rows, second.based = first.shelf, first.rows, first.based
	b = newFixture(t, withBackups(second))
	for _, w := range []*fixture{a, b} {
		w.must(w.db.Write(t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
			return tx.PutWorkspace(ctx, &store.Workspace{ID: "alice"})
		}))
	}
	return a, b, first, second, a.get(d.ID)
}

// settle does everything that is due for the databases of a node.
func (w *fixture) settle() {
	w.t.Helper()
	for range 4 {
		w.must(w.Reconcile(w.t.Context()))
	}
}

// adopted checks that a node has a database as the other one had it, and that it runs.
func (w *fixture) adopted(d api.Database) {
	w.t.Helper()
	got := w.get(d.ID)
	if got.Status != api.DatabaseRunning || got.Label != d.Label || got.StorageMaxMB != d.StorageMaxMB ||
		fmt.Sprint(got.Networks) != fmt.Sprint(d.Networks) || got.CreatedAt != d.CreatedAt ||
		got.Durability != d.Durability {
		w.t.Errorf("adopted %+v, want %+v", got, d)
	}
	w.same(d, 2)
}

// A database goes on at another node with everything that the object store has: its row, settings, credentials, URL.
// The first node does not write on, accepts no client, and leaves the archive alone when it deletes it.
func TestAdopt(t *testing.T) {
	for _, durability := range []api.Durability{api.DurabilityAsync, api.DurabilitySync} {
		t.Run(string(durability), func(t *testing.T) {
			a, b, _, second, d := twoNodes(t, durability)
			ctx, req := t.Context(), api.AdoptDatabaseRequest{ID: d.ID}
			_, err := b.Adopt(ctx, alice, req)
			b.wants("Adopt by a user", err, api.Forbidden)
			_, err = b.Adopt(ctx, operator, api.AdoptDatabaseRequest{ID: "x"})
			b.wants("Adopt of no id", err, api.Invalid)
			_, err = b.Adopt(ctx, operator, api.AdoptDatabaseRequest{ID: api.NewDatabaseID()})
			b.wants("Adopt of an unknown database", err, api.NotFound)
			_, err = a.Adopt(ctx, operator, req)
			a.wants("Adopt by the node that has it", err, api.Conflict)

			got, err := b.Adopt(ctx, operator, req)
			b.must(err)
			if got.Status != api.DatabaseProvisioning {
				t.Errorf("an adoption has begun: %+v", got)
			}
			second.take()
			b.settle()
			b.adopted(d)
			calls := "adopt restore begin"
			if durability == api.DurabilitySync {
				calls = "adopt restore begin-sync"
			}
			second.wants(t, "an adoption", calls)

			a.settle()
			left := a.get(d.ID)
			if left.Status != api.DatabaseFailed || !strings.Contains(left.Error, "another node has adopted") {
				t.Errorf("at the first node it is %s: %s", left.Status, left.Error)
			}
			for _, m := range a.host.Machines() {
				if m.State == hostapi.Running || m.State == hostapi.Paused {
					t.Errorf("its machine at the first node is %s", m.State)
				}
			}
			if _, err := a.Endpoint(ctx, string(d.ID)); err == nil {
				t.Error("clients reach it at the first node")
			}
			a.must(a.Delete(ctx, alice, d.ID))
			a.empty("deleted at the first node")
			b.adopted(d)
		})
	}
}

// A node that was away, or on which the database slept, asks before it accepts a client.
func TestAdoptedWhileAway(t *testing.T) {
	for name, before := range map[string]func(a *fixture, id api.DatabaseID){
		"killed": func(a *fixture, id api.DatabaseID) {
			a.backups.(*recorder).setRuns(string(id), false)
			a.restart()
		},
		"asleep": func(a *fixture, id api.DatabaseID) {
			_, err := a.Suspend(a.t.Context(), alice, id)
			a.must(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, _, _, d := twoNodes(t, api.DurabilityAsync)
			before(a, d.ID)
			_, err := b.Adopt(t.Context(), operator, api.AdoptDatabaseRequest{ID: d.ID})
			b.must(err)
			b.settle()
			_, err = a.endpoint(d.ID).Acquire(t.Context())
			a.wants("a connection at the first node", err, api.WrongState)
			a.settle()
			if left := a.get(d.ID); left.Status != api.DatabaseFailed {
				t.Errorf("at the first node it is %s: %s", left.Status, left.Error)
			}
			b.adopted(d)
		})
	}
}

// The database can go back, and the number of the fence decides every time.
func TestAdoptBack(t *testing.T) {
	a, b, _, _, d := twoNodes(t, api.DurabilityAsync)
	for i, to := range []*fixture{b, a, b} {
		from := map[*fixture]*fixture{a: b, b: a}[to]
		_, err := to.Adopt(t.Context(), operator, api.AdoptDatabaseRequest{ID: d.ID})
		to.must(err)
		to.settle()
		from.settle()
		from.must(from.Delete(t.Context(), alice, d.ID))
		from.empty("given away")
		to.same(d, int64(i+2))
	}
}

// TestAdoptFailureAtEveryStep fails or kills an adoption before and after each step. The archive and its description
// stay in any case, nothing is left at the second node of an attempt that failed, and another attempt succeeds.
func TestAdoptFailureAtEveryStep(t *testing.T) {
	for _, dead := range []bool{false, true} {
		t.Run(map[bool]string{true: "killed", false: "failed"}[dead], func(t *testing.T) {
			for at := 0; ; at++ {
				c := &faultInjector{at: at, dead: dead}
				_, b, _, second, d := twoNodes(t, api.DurabilitySync)
				second.step = c.step
				c.install(b)
				req := api.AdoptDatabaseRequest{ID: d.ID}
				_, err := b.Adopt(t.Context(), operator, req)
				if err == nil {
					_ = b.Reconcile(t.Context()) // it may fail
				}
				c.remove(b)
				second.step = nil
				if dead {
					b.restart()
				}
				b.reconcile()
				row, err := b.db.Read().Database(t.Context(), string(d.ID))
				if err == nil && row.State == store.DatabaseFailed {
					b.bare(fmt.Sprintf("failed at step %d", at))
					b.must(b.Delete(t.Context(), alice, d.ID))
					err = store.ErrNotFound
				}
				if err != nil { // it did not begin, or failed: it is begun again
					_, err := b.Adopt(t.Context(), operator, req)
					b.must(err)
				}
				b.settle()
				b.adopted(d)
				if calls := second.take(); strings.Contains(calls, "remove") {
					t.Errorf("the archive was removed: %s", calls)
				}
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

// A description says the same after it was written and parsed, and what no node writes is refused.
func TestDescriptions(t *testing.T) {
	a, _, first, _, d := twoNodes(t, api.DurabilitySync)
	text := first.shelf.descriptions[string(d.ID)]
	if len(text) == 0 {
		t.Fatal("there is no description")
	}
	one, err := backup.ParseDescription(string(d.ID), text)
	a.must(err)
	again, err := one.Encode()
	a.must(err)
	if string(again) != string(text) {
		t.Errorf("%s, want %s", again, text)
	}
	for _, bad := range []string{"", "{}", `{"version":2}`, strings.Replace(string(text), `"durability":"sync"`,
		`"durability":"never"`, 1), strings.Replace(string(text), string(d.ID), string(api.NewDatabaseID()), 1)} {
		if _, err := backup.ParseDescription(string(d.ID), []byte(bad)); err == nil {
			t.Errorf("Parse(%.40q) = nil, want an error", bad)
		}
	}
	_, err = a.ResetCredentials(t.Context(), alice, d.ID)
	a.must(err)
	a.settle()
	if string(first.shelf.descriptions[string(d.ID)]) == string(text) {
		t.Error("the description has the old credentials")
	}
}
