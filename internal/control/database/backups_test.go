package database_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/database"
	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/database/restore"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/store"
)

// recorder is a keeper of backups that keeps nothing.
type recorder struct {
	mu    sync.Mutex
	calls []string
	fail  map[string]error // by the name of the call, once
	has   map[string]bool  // databases with backups
	seen  func(call string)

	step     func() error  // of each call
	status   backup.Status // beside Based
	rows     []string      // that a restore brings
	based    time.Time     // of every database
	content  backup.Contents
	restored backup.RestoreRequest

	shelf  *shelf
	fences map[string]int64 // that this node has
	runs   map[string]bool  // databases with a relay
}

// shelf is the object store that recorders share.
type shelf struct {
	descriptions map[string][]byte
	fences       map[string]int64
}

func newRecorder() *recorder {
	return &recorder{
		fail: map[string]error{}, has: map[string]bool{}, fences: map[string]int64{}, runs: map[string]bool{},
		shelf: &shelf{map[string][]byte{}, map[string]int64{}},
	}
}

// Abandon implements database.Backups.
func (r *recorder) Abandon(_ context.Context, id string) error { return r.call("abandon", false, id) }

// Describe implements database.Backups.
func (r *recorder) Describe(ctx context.Context, id string, text []byte) error {
	if err := r.Holds(ctx, id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shelf.descriptions[id] = text
	return nil
}

// Description implements database.Backups.
func (r *recorder) Description(_ context.Context, id string) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if text, ok := r.shelf.descriptions[id]; ok {
		return text, nil
	}
	return nil, backup.ErrNoDescription
}

// Adopt implements database.Backups.
func (r *recorder) Adopt(_ context.Context, id string) error {
	if err := r.call("adopt", true, id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shelf.fences[id]++
	r.fences[id] = r.shelf.fences[id]
	return nil
}

// Holds implements database.Backups.
func (r *recorder) Holds(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shelf.fences[id] > r.fences[id] {
		return backup.ErrFenced
	}
	return nil
}

// Fenced implements database.Backups.
func (r *recorder) Fenced(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs[id] && r.shelf.fences[id] > r.fences[id]
}

func (r *recorder) setRuns(id string, on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs[id] = on
}

func (r *recorder) call(name string, has bool, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, name)
	if r.seen != nil {
		r.seen(name)
	}
	err := r.fail[name]
	delete(r.fail, name)
	if err == nil && r.step != nil {
		err = r.step()
	}
	if err == nil || has {
		r.has[id] = has
	}
	return err
}

// take returns the calls since the last take.
func (r *recorder) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := strings.Join(r.calls, " ")
	r.calls = nil
	return text
}

// Begin implements database.Backups. It connects to the server, as a keeper does.
func (r *recorder) Begin(ctx context.Context, p backup.Primary) error {
	c, err := p.Dial(ctx)
	if err != nil {
		return err
	}
	if err := c.Close(); err != nil {
		return err
	}
	if err := r.Holds(ctx, p.Database); err != nil {
		return err
	}
	name := "begin"
	if p.Synchronous {
		name = "begin-sync"
	}
	if p.Variant != "npm" && p.Variant != "debian-13" || p.Collation != "2.41" {
		return fmt.Errorf("variant %q, collation %q", p.Variant, p.Collation)
	}
	r.setRuns(p.Database, true)
	return r.call(name, true, p.Database)
}

// Flush implements database.Backups.
func (r *recorder) Flush(_ context.Context, id string) error { return r.call("flush", true, id) }

// End implements database.Backups.
func (r *recorder) End(_ context.Context, id string) error {
	r.setRuns(id, false)
	return r.call("end", true, id)
}

// Remove implements database.Backups.
func (r *recorder) Remove(_ context.Context, id string) error { return r.call("remove", false, id) }

// Status implements database.Backups.
func (r *recorder) Status(_ context.Context, id string) (backup.Status, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.has[id] {
		return backup.Status{}, backup.ErrNotRunning
	}
	out := r.status
	out.Based = r.based
	return out, nil
}

// Contents implements database.Backups.
func (r *recorder) Contents(context.Context, string) (backup.Contents, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.content, r.fail["contents"]
}

// Order implements database.Backups.
func (r *recorder) Order(_ context.Context, id string) error { return r.call("order", true, id) }

// OrderRehearsal implements database.Backups.
func (r *recorder) OrderRehearsal(_ context.Context, id string) (store.DatabaseRehearsal, error) {
	return store.DatabaseRehearsal{ID: "reh1", Database: id, State: store.RehearsalRunning, Started: 1},
		r.call("rehearse", true, id)
}

// Restore implements database.Backups.
// The restored server has the role of its original.
func (r *recorder) Restore(ctx context.Context, req backup.RestoreRequest) (backup.Restored, error) {
	g := req.Into.(backup.GuestServer).Guest.(guestapi.Guest)
	err := server.Use(ctx, g, server.Maintained, func(conn *pgx.Conn) error {
		for _, row := range r.rows {
			if _, err := conn.Exec(ctx, "INSERT "+row); err != nil {
				return err
			}
		}
		return server.CreateOwner(ctx, conn, database.RoleName, "SCRAM-SHA-256$4096:", database.DatabaseName)
	})
	if err != nil {
		return backup.Restored{}, err
	}
	r.mu.Lock()
	r.restored = req
	r.mu.Unlock()
	return backup.Restored{}, r.call("restore", true, req.From)
}

func withBackups(r *recorder) func(*fixture) { return func(w *fixture) { w.backups = r } }

// wants checks the calls since the last check.
func (r *recorder) wants(t *testing.T, when, want string) {
	t.Helper()
	if got := r.take(); got != want {
		t.Errorf("%s: the backups got the calls %q, want %q", when, got, want)
	}
}

// The backups of a database run while its server does: they end with all of the log in the archive before a suspend,
// and go with the database.
func TestBackups(t *testing.T) {
	r := newRecorder()
	w := newFixture(t, withBackups(r))
	d := w.made()
	w.must(w.Reconcile(t.Context()))
	w.must(w.Reconcile(t.Context()))
	r.wants(t, "a database that was made", "begin")
	var asleep []bool
	r.seen = func(string) { asleep = append(asleep, len(w.host.Machines()) == 0) }
	_, err := w.Suspend(t.Context(), alice, d.ID)
	w.must(err)
	r.seen = nil
	r.wants(t, "a suspend", "flush end")
	if slices.Contains(asleep, true) {
		t.Error("the backups ended after the machine")
	}
	w.must(w.Reconcile(t.Context()))
	r.wants(t, "asleep", "")
	_, err = w.Wake(t.Context(), alice, d.ID)
	w.must(err)
	w.must(w.Reconcile(t.Context()))
	r.wants(t, "a wake", "begin")
	w.restart()
	w.reconcile()
	r.wants(t, "a start of the program", "begin")
	w.must(w.Delete(t.Context(), alice, d.ID))
	r.wants(t, "a delete", "remove")
	w.empty("after the delete")
}

// A database whose log does not get into the archive is not suspended, and backups that do not begin are tried again.
func TestFailingBackups(t *testing.T) {
	r := newRecorder()
	w := newFixture(t, withBackups(r))
	r.fail["begin"] = errors.New("the server does not respond")
	d := w.made()
	if err := w.Reconcile(t.Context()); err == nil {
		t.Error("Reconcile while the backups cannot begin: got nil, want an error")
	}
	w.must(w.Reconcile(t.Context()))
	r.wants(t, "two attempts", "begin begin")
	r.fail["flush"] = errors.New("the object store is full")
	_, err := w.Suspend(t.Context(), alice, d.ID)
	if e := w.wants("Suspend", err, api.Unavailable); !strings.Contains(e.Message, "the object store is full") {
		t.Errorf("Suspend = %v, want the reason", e)
	}
	if got := w.get(d.ID); got.Status != api.DatabaseRunning {
		t.Errorf("the database is %s, want running", got.Status)
	}
	r.wants(t, "a suspend that failed", "flush")
	r.fail["flush"] = backup.ErrNotRunning
	_, err = w.Suspend(t.Context(), alice, d.ID)
	w.must(err)
	r.wants(t, "a suspend without backups", "flush end")
}

// A synchronous database is not ready before its commits wait for the relay, also after a wake.
func TestSynchronous(t *testing.T) {
	r := newRecorder()
	w := newFixture(t, withBackups(r))
	r.fail["begin-sync"] = errors.New("no relay")
	made := func() api.Database {
		t.Helper()
		d, err := w.Create(t.Context(), alice, api.CreateDatabaseRequest{Durability: api.DurabilitySync})
		w.must(err)
		r.seen = func(call string) {
			if got := w.get(d.ID); call == "begin-sync" && got.Status != api.DatabaseProvisioning {
				t.Errorf("the database is %s before its backups have begun", got.Status)
			}
		}
		w.must(w.Reconcile(t.Context()))
		r.seen = nil
		return w.get(d.ID)
	}
	failed := made()
	if failed.Status != api.DatabaseFailed || !strings.Contains(failed.Error, "no relay") {
		t.Errorf("the database is %s: %s; want failed without a relay", failed.Status, failed.Error)
	}
	w.bare("after a failed create")
	r.wants(t, "a create that failed", "begin-sync remove")
	w.must(w.Delete(t.Context(), alice, failed.ID))
	r.take()
	d := made()
	if d.Status != api.DatabaseRunning || d.Durability != api.DurabilitySync {
		t.Fatalf("the database is %s and %s: %s; want running and sync", d.Status, d.Durability, d.Error)
	}
	r.wants(t, "a create", "begin-sync")
	_, err := w.Suspend(t.Context(), alice, d.ID)
	w.must(err)
	r.take()
	_, err = w.Wake(t.Context(), alice, d.ID)
	w.must(err)
	r.wants(t, "a wake", "begin-sync")
	async, sync := api.DurabilityAsync, api.DurabilitySync
	for _, one := range []struct {
		to   *api.Durability
		want string
	}{{&async, "begin"}, {&async, ""}, {&sync, "begin-sync"}} {
		got, err := w.Update(t.Context(), alice, d.ID, api.UpdateDatabaseRequest{Durability: one.to})
		w.must(err)
		if got.Durability != *one.to || w.get(d.ID).Durability != *one.to {
			t.Errorf("Durability after Update = %s, want %s", got.Durability, *one.to)
		}
		r.wants(t, "an update to "+string(*one.to), one.want)
	}
}

// A branch of the past is restored into a new machine, with credentials of its own; what cannot be restored fails with
// the reason, and leaves nothing.
func TestPast(t *testing.T) {
	r := newRecorder()
	w := newFixture(t, withBackups(r), func(w *fixture) { w.cfg.MeasureInterval = 1 })
	d := w.made()
	w.fake.SetUsed(7000 << 20)
	w.must(w.Reconcile(t.Context()))
	w.must(w.Reconcile(t.Context())) // the backups begin before the storage is measured
	w.fake.SetUsed(0)
	at := time.Now().Add(-time.Minute)
	_, err := w.Clone(t.Context(), alice, d.ID, api.CloneDatabaseRequest{TargetTime: &at})
	w.wants("Clone without a base backup", err, api.WrongState)
	r.based = at
	_, err = w.Clone(t.Context(), alice, d.ID, api.CloneDatabaseRequest{TargetLSN: "nonsense"})
	w.wants("Clone of a bad position", err, api.Invalid)
	r.take()
	branch := func(req api.CloneDatabaseRequest) api.Database {
		t.Helper()
		b, err := w.Clone(t.Context(), alice, d.ID, req)
		w.must(err)
		if b.Status != api.DatabaseProvisioning {
			t.Errorf("the branch is %s, want provisioning", b.Status)
		}
		w.must(w.Reconcile(t.Context()))
		return w.get(b.ID)
	}
	b := branch(api.CloneDatabaseRequest{TargetTime: &at})
	if b.Status != api.DatabaseRunning || b.ClonedFrom != d.ID || b.Password == d.Password || b.Password == "" {
		t.Fatalf("the branch is %s (%s), from %s; want running, with a password of its own", b.Status, b.Error,
			b.ClonedFrom)
	}
	if got := w.sizes(d.ID, b.ID); !slices.Equal(got, []int{12288, 12288}) {
		t.Errorf("sizes %v, want the branch to have that of its database", got)
	}
	got := r.restored
	if got.From != string(d.ID) || !got.Target.Time.Equal(at) || got.Target.Variant != "npm" ||
		!got.Target.CoveredUntil.IsZero() {
		t.Errorf("restored %+v, want the time %v of %s", got, at, d.ID)
	}
	_, err = w.Suspend(t.Context(), alice, d.ID)
	w.must(err)
	branch(api.CloneDatabaseRequest{TargetLSN: "0/16B3748"})
	if got := r.restored.Target; got.LSN != 0x16B3748 || got.CoveredUntil.IsZero() {
		t.Errorf("restored %+v of a database that sleeps, want the position, and nothing missing until now", got)
	}
	r.fail["restore"] = fmt.Errorf("%w, which is of noon", restore.ErrTooEarly)
	failed := branch(api.CloneDatabaseRequest{TargetName: "before"})
	if failed.Status != api.DatabaseFailed || !strings.Contains(failed.Error, "which is of noon") {
		t.Errorf("the branch is %s: %s; want failed with the reason", failed.Status, failed.Error)
	}
	w.whole("after a branch that failed", 3)
}

// A machine for a rehearsal has the server of the template, ends with the rehearsal, and is none of the database's.
func TestScratch(t *testing.T) {
	w := newFixture(t)
	d := w.made()
	got, release, err := w.Scratch(t.Context(), string(d.ID), 1<<30)
	w.must(err)
	c, err := got.Dial(t.Context())
	w.must(err)
	w.must(c.Close())
	if n := len(w.host.Machines()); n != 2 {
		t.Errorf("%d machines, want that of the database and one more", n)
	}
	w.must(release(t.Context()))
	w.whole("after the rehearsal", 1)
	if _, _, err := w.Scratch(t.Context(), string(d.ID), 1<<40); api.CodeOf(err) != api.Unsupported {
		t.Errorf("Scratch for 1 TiB = %v, want unsupported", err)
	}
	w.whole("after a rehearsal that does not fit", 1)
}

// Without backups nothing is synchronous.
func TestNoBackups(t *testing.T) {
	w := newFixture(t)
	d := w.made()
	sync := api.DurabilitySync
	_, err := w.Update(t.Context(), alice, d.ID, api.UpdateDatabaseRequest{Durability: &sync})
	w.wants("Update to sync", err, api.Unsupported)
	_, err = w.BackUp(t.Context(), alice, d.ID)
	w.wants("BackUp", err, api.Unsupported)
}
