package app_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/app"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/storetest"
	"github.com/pandastack/pandastack/internal/control/template"
)

var (
	alice = auth.Principal{Workspace: "alice", KeyPrefix: "pds_a11ce000", Admin: true}
	bob   = auth.Principal{Workspace: "bob", KeyPrefix: "pds_b0b00000"}
)

// fixture is a service for apps over a simulated host.
type fixture struct {
	*app.Service
	t         *testing.T
	host      *hosttest.Host
	path      string
	fault     func(op string, committed bool) error
	builder   *builder
	databases *databases
	edge      *edge
	quotas    map[quota.Kind]int64
	cfg       app.Config
	dropped   []api.DeploymentID // whose files were removed
	db        *store.DB
	boxes     *sandbox.Service
	listing   func() // called before the service lists its machines; nil: nothing
}

// listed are sandboxes whose lists take a while.
type listed struct {
	*sandbox.Service
	w *fixture
}

func (l listed) List(ctx context.Context, p auth.Principal, f api.SandboxFilter) (sandbox.Page, error) {
	if call := l.w.listing; call != nil {
		l.w.listing = nil
		call()
	}
	return l.Service.List(ctx, p, f)
}

// builder builds an app in a machine: it writes the reference of the source into the page of the app.
type builder struct {
	w     *fixture
	steps func() error // called before each step; nil: nothing
	start string       // command; "": a server on the port of the app

	mu     sync.Mutex
	builds []app.Build
	result appspec.Result // added to what is built
	fail   error
	block  chan struct{} // a build waits until it is closed; nil: it does not
}

func (b *builder) step() error {
	if b.steps != nil {
		return b.steps()
	}
	return nil
}

func (b *builder) Build(ctx context.Context, req app.Build) (built app.Built, err error) {
	b.mu.Lock()
	b.builds = append(b.builds, req)
	block, fail, result := b.block, b.fail, b.result
	b.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return built, context.Cause(ctx)
		}
	}
	if fail != nil {
		return built, fail
	}
	if result.Static != nil {
		return app.Built{Result: result}, nil
	}
	if err := b.step(); err != nil {
		return built, err
	}
	role := map[string]string{app.RoleKey: "build", "deployment": req.Deployment.ID}
	left, err := b.w.boxes.List(ctx, req.Principal, api.SandboxFilter{Metadata: role})
	if err != nil {
		return built, err
	}
	for _, box := range left.Sandboxes {
		if err := b.w.boxes.Delete(ctx, req.Principal, box.ID); err != nil {
			return built, err
		}
	}
	box, err := b.w.boxes.Create(ctx, req.Principal, api.CreateRequest{Template: "base", Metadata: role})
	if err != nil {
		return built, err
	}
	defer func() {
		if e := b.w.boxes.Delete(context.WithoutCancel(ctx), req.Principal, box.ID); err == nil {
			err = e
		}
	}()
	g, err := b.w.boxes.Guest(ctx, req.Principal, box.ID)
	if err != nil {
		return built, err
	}
	page := "version " + req.Source.Ref
	if _, err := g.Write(ctx, "/srv/", guestapi.WriteOptions{Size: -1}, strings.NewReader(page)); err != nil {
		return built, err
	}
	req.Log.Append("info", "build", "built "+req.Source.Ref)
	if err := b.step(); err != nil {
		return built, err
	}
	snap, err := b.w.boxes.TakeSnapshot(ctx, req.Principal, box.ID, api.SnapshotRequest{
		Metadata: map[string]string{app.RoleKey: "built", "deployment": req.Deployment.ID}})
	if err != nil {
		return built, err
	}
	result.Start = b.start
	if result.Start == "" {
		result.Start = "echo $SECRET; httpd $PORT"
	}
	return app.Built{Snapshot: snap.ID, Result: result}, b.step()
}

func (b *builder) Forget(context.Context, api.AppID) error { return b.step() }

// databases are linked databases with a password.
type databases struct {
	mu  sync.Mutex
	url string
}

func (d *databases) Connection(
	context.Context,
	auth.Principal,
	api.DatabaseID,
) (api.DatabaseConnection, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return api.DatabaseConnection{ConnectionURL: d.url}, nil
}

// edge is what an edge says of the requests of all apps.
type edge struct {
	mu       sync.Mutex
	inFlight int
	last     time.Time
	drained  []api.DeploymentID
	asked    func() // called by InFlight
}

func (e *edge) Drain(_ context.Context, _ api.AppID, d api.DeploymentID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drained = append(e.drained, d)
}

func (e *edge) InFlight(api.AppID) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.asked != nil {
		e.asked()
	}
	return e.inFlight
}

func (e *edge) LastUse(api.AppID) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

func (e *edge) Stats(api.AppID) api.AppStats { return api.AppStats{Requests: 7} }

func (e *edge) set(inFlight int, last time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inFlight, e.last = inFlight, last
}

func newFixture(t *testing.T, change ...func(*fixture)) *fixture {
	t.Helper()
	w := &fixture{
		t: t, host: hosttest.New(), path: storetest.Empty(t), builder: &builder{},
		databases: &databases{url: "postgres://u:one@db.example.com:5432/d?sslmode=require"}, edge: &edge{},
		cfg: app.Config{Suffix: "apps.example.com", URL: "http://127.0.0.1:7700", Idle: time.Hour, Interval: time.Hour,
			Keep: 2, DatabaseAddress: "192.168.241.1:5432", Own: []string{"panel.apps.example.com"},
			StartTimeout: 10 * time.Second, Rehearse: true},
	}
	w.builder.w = w
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
	cfg := sandbox.Defaults()
	cfg.OrphanGrace = 0
	w.boxes, err = sandbox.New(cfg, sandbox.Deps{Store: db, Host: w.host, Templates: templates, Quotas: limits,
		Log: log})
	w.must(err)
	w.db = db
	w.Service, err = app.New(w.cfg, app.Deps{Store: db, Sandboxes: listed{w.boxes, w}, Volumes: noVolumes{},
		Databases: w.databases, Templates: templates, Builder: w.builder, Quotas: limits, Log: log,
		DropFiles: func(_ context.Context, id api.DeploymentID) error {
			w.dropped = append(w.dropped, id)
			return nil
		}})
	w.must(err)
	w.SetEdge(w.edge)
}

// noVolumes has none.
type noVolumes struct{}

func (noVolumes) Delete(context.Context, auth.Principal, string, bool) error { return nil }

// restart is a program that was killed and started again.
func (w *fixture) restart() {
	w.t.Helper()
	w.must(w.db.Close())
	w.start()
}

// run runs the service until the test ends or stop is called.
func (w *fixture) run() (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		w.must(<-done)
	})
	w.t.Cleanup(stop)
	return stop
}

// until waits for a condition.
func (w *fixture) until(what string, f func() bool) {
	w.t.Helper()
	end := time.Now().Add(2 * time.Minute)
	for !f() {
		if time.Now().After(end) {
			w.t.Fatalf("%s: did not happen within 30 s", what)
		}
		select {
		case <-w.t.Context().Done():
		case <-w.Changed():
		case <-time.After(20 * time.Millisecond):
		}
	}
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

// made makes an app of alice.
func (w *fixture) made(change ...func(*api.CreateAppRequest)) api.App {
	w.t.Helper()
	req := api.CreateAppRequest{Name: "site", GitURL: "https://git.example.com/site.git", Port: 8080}
	for _, f := range change {
		f(&req)
	}
	a, err := w.Create(w.t.Context(), alice, req)
	w.must(err)
	return a
}

// deploy deploys a reference of an app and returns the deployment as it ended.
func (w *fixture) deploy(a api.App, ref string) api.Deployment {
	w.t.Helper()
	d, err := w.Deploy(w.t.Context(), alice, string(a.ID), api.DeployRequest{GitRef: ref})
	w.must(err)
	w.must(w.Reconcile(w.t.Context()))
	return w.deployment(a, d.ID)
}

// live deploys a reference of an app and checks that it is live.
func (w *fixture) live(a api.App, ref string) api.Deployment {
	w.t.Helper()
	d := w.deploy(a, ref)
	if d.Status != api.DeploymentLive {
		w.t.Fatalf("deployment %s is %s: %s (%s)\n%s", ref, d.Status, d.Error, d.Step, d.BuildLogs)
	}
	return d
}

func (w *fixture) deployment(a api.App, id api.DeploymentID) api.Deployment {
	w.t.Helper()
	d, err := w.Deployment(w.t.Context(), alice, string(a.ID), id)
	w.must(err)
	return d
}

func (w *fixture) get(a api.App) api.App {
	w.t.Helper()
	a, err := w.Get(w.t.Context(), alice, string(a.ID))
	w.must(err)
	return a
}

// page returns what an app shows at a path, through its first replica that is ready. The app is woken.
func (w *fixture) page(a api.App, path string) string {
	w.t.Helper()
	w.must(w.Wake(w.t.Context(), a.ID, 1))
	for _, r := range w.ready(a) {
		return w.read(a, r.Sandbox, "/srv/"+path)
	}
	w.t.Fatal("no replica is ready")
	return ""
}

// read reads a file of a replica.
func (w *fixture) read(a api.App, id api.SandboxID, path string) string {
	w.t.Helper()
	g, _, err := w.Open(w.t.Context(), a.ID, id)
	w.must(err)
	out, err := guestexec.Run(w.t.Context(), g, guestexec.Command{Spec: guestapi.ProcessSpec{
		Argv: []string{"cat", path}}}, guestexec.Limits{Stdout: guestexec.Limit{Bytes: 1 << 16}})
	w.must(err)
	return string(out.Stdout.Data)
}

// ready returns the replicas of an app that are ready.
func (w *fixture) ready(a api.App) (all []app.ReplicaView) {
	w.t.Helper()
	rows, err := w.Replicas(w.t.Context(), a.ID)
	w.must(err)
	for _, r := range rows {
		if r.State == app.ReplicaReady {
			all = append(all, r)
		}
	}
	return all
}

// log returns the log of a deployment.
func (w *fixture) log(a api.App, id api.DeploymentID) string {
	w.t.Helper()
	var text strings.Builder
	w.must(w.BuildLog(w.t.Context(), alice, string(a.ID), id, 0, false, func(l api.AppLogLine) error {
		text.WriteString(l.Line + "\n")
		return nil
	}))
	return text.String()
}

// empty checks that nothing is left of any app.
func (w *fixture) empty(when string) {
	w.t.Helper()
	ctx := w.t.Context()
	rows, err := w.db.Read().Apps(ctx, store.AppQuery{})
	w.must(err)
	deployments, err := w.db.Read().Deployments(ctx, store.DeploymentQuery{})
	w.must(err)
	replicas, err := w.db.Read().Replicas(ctx, "")
	w.must(err)
	boxes, err := w.db.Read().Sandboxes(ctx, store.SandboxQuery{})
	w.must(err)
	snaps, err := w.host.Snapshots(ctx)
	w.must(err)
	if all := w.host.Machines(); len(rows)+len(deployments)+len(replicas)+len(boxes)+len(snaps)+len(all) > 0 {
		w.t.Errorf("%s: apps %+v, deployments %+v, replicas %+v, sandboxes %+v, snapshots %+v, machines %+v", when,
			rows, deployments, replicas, boxes, snaps, all)
	}
}

// whole checks that every replica has one machine, every machine a replica, and every snapshot a deployment.
func (w *fixture) whole(when string) {
	w.t.Helper()
	ctx := w.t.Context()
	replicas, err := w.db.Read().Replicas(ctx, "")
	w.must(err)
	machines := map[hostapi.MachineID]bool{}
	for _, m := range w.host.Machines() {
		machines[m.ID] = true
	}
	for _, r := range replicas {
		if !machines[hostapi.MachineID(r.Sandbox)] || r.State == store.ReplicaStarting {
			w.t.Errorf("%s: replica %+v; machines %v", when, r, machines)
		}
		delete(machines, hostapi.MachineID(r.Sandbox))
	}
	snaps, err := w.host.Snapshots(ctx)
	w.must(err)
	deployments, err := w.db.Read().Deployments(ctx, store.DeploymentQuery{})
	w.must(err)
	named := map[string]bool{}
	for _, d := range deployments {
		if !api.DeploymentStatus(d.State).Ended() {
			w.t.Errorf("%s: deployment %d is %s", when, d.Number, d.State)
		}
		for _, id := range []string{d.Built, d.Ready} {
			if id != "" {
				named[id] = true
			}
		}
	}
	if len(machines) > 0 || len(snaps) != len(named) {
		w.t.Errorf("%s: machines without a replica %v; %d snapshots, %d are named", when, machines, len(snaps),
			len(named))
	}
}

func ref(pid uint32) guestapi.ProcessRef { return guestapi.ProcessRef{PID: pid} }
