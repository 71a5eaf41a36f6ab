package database_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/database"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/scram"
)

// TestURLBelowLocalhost checks that URLs need no resolver that knows names below localhost.
func TestURLBelowLocalhost(t *testing.T) {
	for suffix, want := range map[string]string{
		"db.localhost": "localhost", "localhost": "localhost", "db.mylocalhost": "db.mylocalhost",
	} {
		w := newFixture(t, func(w *fixture) { w.cfg.Suffix = suffix })
		d := w.made()
		for target, text := range map[string]string{"": d.ConnectionURL, "-pooler": d.PoolerURL} {
			u, err := url.Parse(text)
			w.must(err)
			options := ""
			if want == "localhost" {
				options = "endpoint=" + string(d.ID) + target
			}
			if got := u.Query().Get("options"); !strings.HasSuffix(u.Hostname(), want) || got != options {
				t.Errorf("suffix %s: URL with host %s and options %q, want %s and %q", suffix, u.Host, got, want,
					options)
			}
		}
	}
}

func TestLife(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	begun, err := w.Create(ctx, alice, api.CreateDatabaseRequest{Label: "orders"})
	w.must(err)
	if begun.Status != api.DatabaseProvisioning || begun.ConnectionURL != "" || !begun.ID.Valid() {
		t.Errorf("before it is made: %+v", begun)
	}
	_, err = w.Connection(ctx, alice, begun.ID)
	w.wants("connecting before it is made", err, api.Unavailable)
	w.must(w.Reconcile(ctx))
	d := w.get(begun.ID)
	if d.Status != api.DatabaseRunning || d.Label != "orders" || d.Version != "16.14" || d.Size != api.Database1G ||
		!slices.Equal(d.Extensions, []string{"hstore", "pg_trgm"}) {
		t.Errorf("made: %+v", d)
	}
	u, err := url.Parse(d.ConnectionURL)
	w.must(err)
	password, _ := u.User.Password()
	if u.Host != string(d.ID)+".db.example.com:5432" || u.Path != "/pandastack" ||
		u.Query().Get("sslmode") != "require" || u.User.Username() != "pandastack" ||
		password == "" || password != d.Password {
		t.Errorf("connection URL %s", u.Redacted())
	}
	verifier, err := w.endpoint(d.ID).Verifier(ctx, database.RoleName)
	w.must(err)
	v, err := scram.ParseVerifier(verifier)
	w.must(err)
	if _, ok, err := v.Check(password); !ok || err != nil {
		t.Errorf("the password is not that of the server: %v", err)
	}
	for _, said := range w.fake.Statements() {
		if strings.Contains(said, password) {
			t.Errorf("a statement has the password: %s", said)
		}
	}
	all, err := w.List(ctx, alice)
	if err != nil || len(all) != 1 || all[0].ID != d.ID ||
		all[0].Password+all[0].ConnectionURL+all[0].BrokerToken != "" {
		t.Errorf("listed %+v, %v", all, err)
	}
	_, err = w.Get(ctx, bob, d.ID)
	w.wants("a database of another workspace", err, api.NotFound)
	w.wants("deleting it", w.Delete(ctx, bob, d.ID), api.NotFound)
	c, err := w.Connection(ctx, alice, d.ID)
	if err != nil || c.ConnectionURL != d.ConnectionURL || !strings.Contains(c.PoolerURL, string(d.ID)+"-pooler.") ||
		!strings.HasPrefix(c.BrokerToken, "pds_pg_") ||
		c.BrokerURL != "http://127.0.0.1:7700/v1/databases/"+string(d.ID)+"/proxy" {
		t.Errorf("connection %+v, %v", c, err)
	}
	w.whole("made", 1)
	w.must(w.Delete(ctx, alice, d.ID))
	w.empty("deleted")
	_, err = w.Get(ctx, alice, d.ID)
	w.wants("a deleted database", err, api.NotFound)
}

// TestMembersAreHidden uses the sandbox and the volume of a database as a user.
func TestMembersAreHidden(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	d := w.made()
	if page, err := w.boxes.List(ctx, alice, api.SandboxFilter{}); err != nil || len(page.Sandboxes) > 0 {
		t.Errorf("sandboxes %+v, %v", page.Sandboxes, err)
	}
	_, err := w.boxes.Guest(ctx, alice, d.SandboxID)
	w.wants("the guest", err, api.Forbidden)
	w.wants("deleting the sandbox", w.boxes.Delete(ctx, alice, d.SandboxID), api.Forbidden)
	if all, err := w.volumes.List(ctx, alice); err != nil || len(all) > 0 {
		t.Errorf("volumes %+v, %v", all, err)
	}
	rows, err := w.db.Read().Volumes(ctx, store.VolumeQuery{})
	w.must(err)
	id := rows[0].ID
	_, err = w.volumes.Get(ctx, alice, id)
	w.wants("the volume", err, api.NotFound)
	w.wants("deleting the volume", w.volumes.Delete(ctx, alice, id, true), api.NotFound)
	_, err = w.volumes.Clone(ctx, alice, id, api.VolumeCloneRequest{Name: "mine"})
	w.wants("cloning the volume", err, api.NotFound)
	_, err = w.volumes.Snapshot(ctx, alice, id, api.VolumeSnapshotRequest{})
	w.wants("a snapshot of the volume", err, api.NotFound)
	_, err = w.boxes.Create(ctx, alice, api.CreateRequest{Template: "base",
		Volumes: []api.VolumeMount{{Name: id, ReadOnly: true}}})
	w.wants("a sandbox that reads the volume", err, api.NotFound)
	_, _, err = w.volumes.Files(ctx, alice, id, false)
	w.wants("files of the volume", err, api.NotFound)
}

func TestSuspendAndWake(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	d := w.made()
	w.insert(d.ID, "one")
	ended := 0
	w.BeforeSuspend(func(context.Context, api.DatabaseID) { ended++ })
	got, err := w.Suspend(ctx, alice, d.ID)
	if err != nil || got.Status != api.DatabaseHibernated || ended != 1 {
		t.Errorf("suspended: %+v, %v; %d hooks ran", got, err, ended)
	}
	if said := w.fake.Statements(); !slices.ContainsFunc(said, func(q string) bool {
		return strings.Contains(q, "pg_terminate_backend")
	}) {
		t.Errorf("no session was ended: %q", said)
	}
	// A look at it, or a login with a wrong name, does not wake it.
	e := w.endpoint(d.ID)
	verifier, err := e.Verifier(ctx, database.RoleName)
	if err != nil || !strings.HasPrefix(verifier, "SCRAM-SHA-256$") {
		t.Errorf("verifier %q, %v", verifier, err)
	}
	if _, err := e.Verifier(ctx, "nobody"); !errors.Is(err, database.ErrNoRole) {
		t.Errorf("a role that does not exist: %v", err)
	}
	if e.Running() || w.get(d.ID).Status != api.DatabaseHibernated {
		t.Error("it was woken")
	}
	release, err := e.Acquire(ctx)
	w.must(err)
	if w.get(d.ID).Status != api.DatabaseRunning {
		t.Error("it was not woken")
	}
	release()
	release() // is harmless
	if s := w.state(d.ID); !slices.Equal(s.Rows, []string{"one"}) {
		t.Errorf("rows %q", s.Rows)
	}
	accepted, err := w.Wake(ctx, alice, d.ID)
	if err != nil || accepted.Status != "running" {
		t.Errorf("woken again: %+v, %v", accepted, err)
	}
}

// TestIdle: who uses a database keeps it awake, and nothing else does.
func TestIdle(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	d := w.made()
	release, err := w.endpoint(d.ID).Acquire(ctx)
	w.must(err)
	idle := func(seconds int64) {
		t.Helper()
		row, err := w.db.Read().Database(ctx, string(d.ID))
		w.must(err)
		row.IdleSeconds = seconds // a request cannot ask for none
		w.must(w.db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
			return tx.UpdateDatabase(ctx, &row, store.DatabaseReady, "idle_seconds")
		}))
	}
	w.must(w.boxes.Reap(ctx)) // the sandboxes' own time to idle is not that of databases
	idle(0)
	w.must(w.Reconcile(ctx))
	if got := w.get(d.ID).Status; got != api.DatabaseRunning {
		t.Errorf("with a session it is %s", got)
	}
	release()
	idle(3600)
	w.must(w.Reconcile(ctx))
	if got := w.get(d.ID).Status; got != api.DatabaseRunning {
		t.Errorf("before its time it is %s", got)
	}
	_, err = w.Update(ctx, alice, d.ID, api.UpdateDatabaseRequest{AlwaysOn: new(true)})
	w.must(err)
	idle(0)
	w.must(w.Reconcile(ctx))
	if got := w.get(d.ID).Status; got != api.DatabaseRunning {
		t.Errorf("although it is always on it is %s", got)
	}
	_, err = w.Suspend(ctx, alice, d.ID)
	w.wants("suspending what is always on", err, api.WrongState)
	_, err = w.Update(ctx, alice, d.ID, api.UpdateDatabaseRequest{AlwaysOn: new(false)})
	w.must(err)
	w.restart()
	w.must(w.boxes.Reconcile(ctx))
	w.must(w.Reconcile(ctx))
	if got := w.get(d.ID).Status; got != api.DatabaseHibernated {
		t.Errorf("without users it is %s", got)
	}
}

func TestRolesOfUsers(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	d := w.made()
	salt := []byte("0123456789abcdef")
	made, _, err := scram.NewVerifier("reader's", salt, scram.DefaultIterations)
	w.must(err)
	v, release, err := w.Server(ctx, alice, d.ID)
	w.must(err)
	conn, err := v.SQL(ctx, database.DatabaseName)
	w.must(err)
	_, err = conn.Exec(ctx, `CREATE ROLE "reader" LOGIN PASSWORD '`+made.String()+`'`)
	w.must(err)
	w.must(conn.Close(ctx))
	release()
	if got, err := w.endpoint(d.ID).Verifier(ctx, "reader"); err != nil || got != made.String() {
		t.Errorf("of a database that runs: %q, %v", got, err)
	}
	own, _, err := scram.NewVerifier("my own", salt, scram.DefaultIterations)
	w.must(err)
	v, release, err = w.Server(ctx, alice, d.ID)
	w.must(err)
	conn, err = v.SQL(ctx, database.DatabaseName)
	w.must(err)
	_, err = conn.Exec(ctx, `ALTER ROLE "pandastack" LOGIN PASSWORD '`+own.String()+`'`)
	w.must(err)
	w.must(conn.Close(ctx))
	release()
	_, err = w.Suspend(ctx, alice, d.ID)
	w.must(err)
	e := w.endpoint(d.ID)
	if got, err := e.Verifier(ctx, "reader"); err != nil || got != made.String() {
		t.Errorf("of a database that sleeps: %q, %v", got, err)
	}
	if got, err := e.Verifier(ctx, database.RoleName); err != nil || got != own.String() {
		t.Errorf("a password that was changed by SQL: %q, %v", got, err)
	}
	if got := w.get(d.ID); got.Password != "" || !strings.Contains(got.ConnectionURL, "//pandastack@") {
		t.Error("a password that is not the server's is shown")
	}
	_, err = e.Keys(e2eToken(w, d.ID))
	w.wants("the broker without a password", err, api.WrongState)
	reset, err := w.ResetCredentials(ctx, alice, d.ID)
	w.must(err)
	e = w.endpoint(d.ID)
	if _, err := e.Keys(reset.BrokerToken); err != nil {
		t.Errorf("the new token: %v", err)
	}
	if _, err := e.Keys(d.BrokerToken); !errors.Is(err, database.ErrBadToken) {
		t.Errorf("the old token: %v", err)
	}
	got, err := e.Verifier(ctx, database.RoleName)
	w.must(err)
	parsed, err := scram.ParseVerifier(got)
	w.must(err)
	if _, ok, err := parsed.Check(reset.Password); !ok || err != nil {
		t.Errorf("the new password is not the server's: %v", err)
	}
}

func e2eToken(w *fixture, id api.DatabaseID) string {
	w.t.Helper()
	row, err := w.db.Read().Database(w.t.Context(), string(id))
	w.must(err)
	return row.BrokerToken
}

// TestCredentialsOfAKilledProcess kills the process between the row and the server.
func TestCredentialsOfAKilledProcess(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	d := w.made()
	w.fake.Fail("ALTER ROLE", errors.New("cut off"))
	_, err := w.ResetCredentials(ctx, alice, d.ID)
	w.wants("a server that fails", err, api.Unavailable)
	w.restart()
	w.must(w.boxes.Reconcile(ctx))
	w.must(w.Reconcile(ctx))
	now := w.get(d.ID)
	got, err := w.endpoint(d.ID).Verifier(ctx, database.RoleName)
	w.must(err)
	parsed, err := scram.ParseVerifier(got)
	w.must(err)
	if _, ok, err := parsed.Check(now.Password); !ok || err != nil || now.Password == d.Password {
		t.Errorf("the server has not the password that is shown: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	w := newFixture(t, func(w *fixture) { w.quotas = map[quota.Kind]int64{quota.Databases: 1} })
	ctx := t.Context()
	for name, test := range map[string]struct {
		req  api.CreateDatabaseRequest
		code api.Code
		says string
	}{
		"template":    {api.CreateDatabaseRequest{Template: "none"}, api.Invalid, "template: "},
		"no cluster":  {api.CreateDatabaseRequest{Template: "base"}, api.Invalid, "data disk"},
		"extension":   {api.CreateDatabaseRequest{Extensions: []string{"hstore", "vector"}}, api.Invalid, `"vector"`},
		"small":       {api.CreateDatabaseRequest{StorageMaxMB: 100}, api.Invalid, "8192"},
		"sync":        {api.CreateDatabaseRequest{Durability: api.DurabilitySync}, api.Unsupported, "durability: "},
		"processors":  {api.CreateDatabaseRequest{CPU: 7}, api.Invalid, "cpu: "},
		"what is bad": {api.CreateDatabaseRequest{Size: "2g"}, api.Invalid, "size"},
	} {
		_, err := w.Create(ctx, alice, test.req)
		if e := w.wants(name, err, test.code); !strings.Contains(e.Message, test.says) {
			t.Errorf("%s: %q does not say %q", name, e.Message, test.says)
		}
	}
	w.empty("after the refusals")
	d, err := w.Create(ctx, alice, api.CreateDatabaseRequest{Extensions: []string{"hstore", "amcheck"}})
	w.must(err)
	_, err = w.Create(ctx, alice, api.CreateDatabaseRequest{})
	w.wants("beyond the quota", err, api.QuotaExceeded)
	w.must(w.Delete(ctx, alice, d.ID))
	w.empty("deleted before it was made")

	// The simulated host cannot add memory, and says so when a machine is made.
	big, err := w.Create(ctx, alice, api.CreateDatabaseRequest{Size: api.Database4G})
	w.must(err)
	w.must(w.Reconcile(ctx))
	if got := w.get(big.ID); got.Status != api.DatabaseFailed || !strings.HasPrefix(got.Error, "size: ") {
		t.Errorf("a size that the host cannot have: %+v", got)
	}
	w.bare("after it failed")
	_, err = w.Wake(ctx, alice, big.ID)
	w.wants("waking what failed", err, api.WrongState)
	w.must(w.Delete(ctx, alice, big.ID))
	w.empty("at the end")
}

// On a host whose monitor cannot add memory, larger sizes are refused at once, by whatever field they are asked for.
func TestFixedMemory(t *testing.T) {
	w := newFixture(t, func(w *fixture) { w.cfg.FixedMemory = true })
	for _, req := range []api.CreateDatabaseRequest{
		{Size: api.Database4G}, {Size: api.Database16G}, {MemoryMB: 1025}, {Size: api.Database4G, MemoryMB: 512},
	} {
		_, err := w.Create(t.Context(), alice, req)
		e := w.wants(fmt.Sprintf("%+v", req), err, api.Unsupported)
		if e.Details["field"] != "size" || !strings.Contains(e.Message, "use size 1g") {
			t.Errorf("%+v: got %+v, want the field size and the remedy", req, e)
		}
	}
	w.empty("after the refusals")
	if _, err := w.Create(t.Context(), alice, api.CreateDatabaseRequest{MemoryMB: 512}); err != nil {
		t.Errorf("a size that the template has: %v", err)
	}
}

func TestExpiry(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	d := w.made()
	got, err := w.Update(ctx, alice, d.ID, api.UpdateDatabaseRequest{TTLSeconds: new(int64(3600)),
		Networks: new([]string{"192.0.2.0/24"})})
	if err != nil || got.ExpiresAt == nil || !slices.Equal(got.Networks, []string{"192.0.2.0/24"}) {
		t.Fatalf("got %+v, %v", got, err)
	}
	if n := w.endpoint(d.ID).Networks(); len(n) != 1 || n[0].String() != "192.0.2.0/24" {
		t.Errorf("networks %v", n)
	}
	w.must(w.Reconcile(ctx))
	w.whole("before its end", 1)
	row, err := w.db.Read().Database(ctx, string(d.ID))
	w.must(err)
	row.Expires = store.Micros(time.Now().Add(-time.Second))
	w.must(w.db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateDatabase(ctx, &row, store.DatabaseReady, "expires")
	}))
	w.must(w.Reconcile(ctx))
	w.empty("after its end")
}

// TestDeadMachine: a machine whose monitor died is booted by the next user, and a server that does not run is started.
func TestDeadMachine(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	d := w.made()
	w.insert(d.ID, "one")
	w.host.Kill(hostapi.MachineID(d.SandboxID), "its monitor died")
	w.must(w.boxes.Reconcile(ctx))
	if s := w.state(d.ID); !slices.Equal(s.Rows, []string{"one"}) {
		t.Errorf("rows %q", s.Rows)
	}
	w.host.Lose(hostapi.MachineID(d.SandboxID))
	w.must(w.boxes.Reconcile(ctx))
	if got := w.get(d.ID); got.Status != api.DatabaseFailed || got.Error == "" {
		t.Errorf("a machine that is lost: %+v", got)
	}
	w.must(w.Delete(ctx, alice, d.ID))
	w.empty("deleted")
}
