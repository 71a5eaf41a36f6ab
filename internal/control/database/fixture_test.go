package database_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database"
	"github.com/pandastack/pandastack/internal/control/database/replica"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/database/server/servertest"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/storetest"
	"github.com/pandastack/pandastack/internal/control/template"
	"github.com/pandastack/pandastack/internal/control/volume"
	"github.com/pandastack/pandastack/internal/control/volume/helper"
)

var (
	alice = auth.Principal{Workspace: "alice", KeyPrefix: "pds_a11ce000", Admin: true}
	bob   = auth.Principal{Workspace: "bob", KeyPrefix: "pds_b0b00000"}
)

// facts is what the template of the simulated host says of its server.
const facts = `{"variant": "npm", "version": "16.14", "collation_version": "2.41", "data": "/var/lib/postgresql/data",
	"extensions": {"hstore": "1.8", "pg_trgm": "1.6"}, "missing": ["vector"], "others": ["amcheck"]}`

const facts17 = `{"variant": "debian-13", "version": "17.6 (Debian 17.6-0+deb13u1)", "collation_version": "2.41",
	"data": "/var/lib/postgresql/data", "extensions": {"hstore": "1.8", "vector": "0.8"}, "others": ["amcheck"]}`

// fixture is a control plane over a simulated host whose guests have a fake PostgreSQL server.
type fixture struct {
	*database.Service
	t           *testing.T
	host        *hosttest.Host
	fake        *servertest.Fake
	path        string
	fault       func(op string, committed bool) error
	quotas      map[quota.Kind]int64
	cfg         database.Config
	backups     database.Backups
	replication replica.Replication
	db          *store.DB
	boxes       *sandbox.Service
	volumes     *volume.Service
	helpers     *helper.Helpers
}

func newFixture(t *testing.T, change ...func(*fixture)) *fixture {
	t.Helper()
	w := &fixture{
		t: t, host: hosttest.New(), fake: servertest.New(), path: storetest.Empty(t),
		replication: &replicator{},
		cfg: database.Config{
			Suffix: "db.example.com", URL: "http://127.0.0.1:7700", Idle: time.Hour, EndTimeout: time.Second,
			StartTimeout: 10 * time.Second, Interval: time.Nanosecond,
		},
	}
	w.host.AddTemplate(hostapi.Template{Name: "mini", VCPUs: 1, MemoryMiB: 256, DiskMiB: 1024, Baked: true,
		Hidden: true})
	w.host.AddTemplate(hostapi.Template{Name: "postgres-16", VCPUs: 1, MemoryMiB: 1024, DiskMiB: 4096, Baked: true,
		Disks: []hostapi.DataDisk{{Name: "data", SizeMiB: 8192, Mount: "/var/lib/postgresql"}}})
	w.host.SetTemplateFile("postgres-16", "/etc/pandastack/postgres.json", facts)
	w.host.AddTemplate(hostapi.Template{Name: "postgres-17", VCPUs: 1, MemoryMiB: 1024, DiskMiB: 4096, Baked: true,
		Disks: []hostapi.DataDisk{{Name: "data", SizeMiB: 8192, Mount: "/var/lib/postgresql"}}})
	w.host.SetTemplateFile("postgres-17", "/etc/pandastack/postgres.json", facts17)
	w.host.ServeSocket(server.Socket, w.fake.Serve)
	for _, f := range change {
		f(w)
	}
	w.start()
	t.Cleanup(func() {
		w.host.Close()
		w.must(w.db.Close())
	})
	return w
}

// start opens the store and makes the services, as a program that starts does.
func (w *fixture) start() {
	w.t.Helper()
	db, err := store.Open(context.WithoutCancel(w.t.Context()), store.Config{DSN: w.path,
		Fault: func(op string, committed bool) error {
			if w.fault != nil {
				return w.fault(op, committed)
			}
			return nil
		}})
	w.must(err)
	log := slog.New(slog.DiscardHandler)
	limits := quota.New(quota.Config{Defaults: w.quotas}, db)
	templates, err := template.New(w.host, db, template.BuiltinAliases(), limits)
	w.must(err)
	w.helpers, err = helper.New(helper.Config{Template: "mini", Idle: time.Hour, PerWorkspace: 2}, db, w.host, log)
	w.must(err)
	cfg := sandbox.Defaults()
	cfg.OrphanGrace, cfg.IdleHibernate = 0, time.Nanosecond
	w.boxes, err = sandbox.New(cfg, sandbox.Deps{Store: db, Host: w.host, Templates: templates, Quotas: limits,
		Volumes: w.helpers, Log: log})
	w.must(err)
	jobs, err := job.New(job.Config{Exclusive: true, Poll: time.Hour}, db, log)
	w.must(err)
	w.db = db
	w.volumes, err = volume.New(volume.Config{OrphanGrace: 1}, volume.Deps{Store: db, Host: w.host, Sandboxes: w.boxes,
		Helpers: w.helpers, Jobs: jobs, Quotas: limits, Log: log})
	w.must(err)
	w.Service, err = database.New(w.cfg, database.Deps{Store: db, Sandboxes: w.boxes, Volumes: w.volumes,
		Templates: templates, Quotas: limits, Log: log, Backups: w.backups,
		Replication: w.replication, Copy: w.copy})
	w.must(err)
}

// copy copies what a fake server has.
func (w *fixture) copy(ctx context.Context, from, to server.Guest, what server.Part) error {
	s, err := servertest.Load(ctx, from)
	if err != nil {
		return err
	}
	if what == server.Schema {
		s.Rows = nil
	}
	if w.fault != nil {
		if err := w.fault("copy", false); err != nil {
			return err
		}
	}
	return servertest.Save(ctx, to, s)
}

// restart is a program that was killed and started again.
func (w *fixture) restart() {
	w.t.Helper()
	w.must(w.db.Close())
	w.start()
}

// reconcile compares everything with the host, as a program that has started does, until nothing is left to do.
func (w *fixture) reconcile() {
	w.t.Helper()
	for range 2 { // the second round has what the first could not do before volumes were removed
		w.must(w.helpers.Reconcile(w.t.Context()))
		w.must(w.boxes.Reconcile(w.t.Context()))
		w.must(w.volumes.Reconcile(w.t.Context()))
		err := w.Reconcile(w.t.Context())
		if err != nil && api.CodeOf(err) != api.Unavailable {
			w.must(err)
		}
	}
	w.must(w.Reconcile(w.t.Context()))
}

func (w *fixture) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// wants checks the code of an error, and returns the error.
func (w *fixture) wants(what string, err error, code api.Code) *api.Error {
	w.t.Helper()
	if api.CodeOf(err) != code {
		w.t.Errorf("%s: got %v (%s), want %s", what, err, api.CodeOf(err), code)
	}
	if err == nil {
		return &api.Error{}
	}
	return api.AsError(err)
}

// made makes a database of alice.
func (w *fixture) made() api.Database {
	w.t.Helper()
	d, err := w.Create(w.t.Context(), alice, api.CreateDatabaseRequest{})
	w.must(err)
	w.must(w.Reconcile(w.t.Context()))
	d = w.get(d.ID)
	if d.Status != api.DatabaseRunning {
		w.t.Fatalf("the database is %s: %s", d.Status, d.Error)
	}
	return d
}

func (w *fixture) get(id api.DatabaseID) api.Database {
	w.t.Helper()
	d, err := w.Get(w.t.Context(), alice, id)
	w.must(err)
	return d
}

func (w *fixture) endpoint(id api.DatabaseID) *database.Endpoint {
	w.t.Helper()
	e, err := w.Endpoint(w.t.Context(), string(id))
	w.must(err)
	return e
}

// insert adds a row to a database.
func (w *fixture) insert(id api.DatabaseID, text string) {
	w.t.Helper()
	v, release, err := w.Server(w.t.Context(), alice, id)
	w.must(err)
	defer release()
	conn, err := v.SQL(w.t.Context(), database.DatabaseName)
	w.must(err)
	defer server.Close(w.t.Context(), conn)
	_, err = conn.Exec(w.t.Context(), "INSERT "+text)
	w.must(err)
}

// state returns what the server of a database has. The database is woken.
func (w *fixture) state(id api.DatabaseID) servertest.State {
	w.t.Helper()
	v, release, err := w.Server(w.t.Context(), alice, id)
	w.must(err)
	defer release()
	s, err := servertest.Load(w.t.Context(), v.Guest())
	w.must(err)
	return s
}

// empty checks that nothing is left of any database.
func (w *fixture) empty(when string) {
	w.t.Helper()
	ctx := w.t.Context()
	rows, err := w.db.Read().Databases(ctx, store.DatabaseQuery{})
	w.must(err)
	members, err := w.db.Read().DatabaseMembers(ctx, "")
	w.must(err)
	w.bare(when)
	if len(rows)+len(members) > 0 {
		w.t.Errorf("%s: rows %+v, servers %+v", when, rows, members)
	}
}

// bare checks that no database has a machine or a volume.
func (w *fixture) bare(when string) {
	w.t.Helper()
	ctx := w.t.Context()
	volumes, err := w.db.Read().Volumes(ctx, store.VolumeQuery{})
	w.must(err)
	onHost, err := w.host.Volumes(ctx)
	w.must(err)
	boxes, err := w.db.Read().Sandboxes(ctx, store.SandboxQuery{})
	w.must(err)
	if all := w.host.Machines(); len(volumes)+len(onHost)+len(boxes)+len(all) > 0 {
		w.t.Errorf("%s: volumes %+v, on the host %+v, sandboxes %+v, machines %+v", when, volumes, onHost, boxes, all)
	}
}

// whole checks that a database has exactly what it needs.
func (w *fixture) whole(when string, n int) {
	w.t.Helper()
	ctx := w.t.Context()
	volumes, err := w.db.Read().Volumes(ctx, store.VolumeQuery{})
	w.must(err)
	members, err := w.db.Read().DatabaseMembers(ctx, "")
	w.must(err)
	onHost, err := w.host.Volumes(ctx)
	w.must(err)
	own := 0 // a branch has a private copy
	for _, m := range members {
		if m.Volume != "" {
			own++
		}
	}
	if all := w.host.Machines(); len(volumes) != own || len(members) != n || len(all) != n || len(onHost) != own {
		w.t.Errorf("%s: want %d of each: volumes %+v, on the host %+v, servers %+v, machines %+v", when, n, volumes,
			onHost, members, all)
	}
}
