package sandbox_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/quota/quotatest"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/storetest"
	"github.com/pandastack/pandastack/internal/control/template"
)

// fixture is a control plane over a simulated host.
type fixture struct {
	*sandbox.Service
	t      *testing.T
	host   *hosttest.Host
	db     *store.DB
	path   string
	fault  func(op string, committed bool) error
	cfg    sandbox.Config
	limits *quota.Quotas

	budgets activity.Budgets
}

var (
	alice = auth.Principal{Workspace: "alice", KeyPrefix: "pds_a11ce000", Admin: true}
	bob   = auth.Principal{Workspace: "bob", KeyPrefix: "pds_b0b00000"}
)

func newFixture(t *testing.T, change ...func(*sandbox.Config)) *fixture {
	t.Helper()
	return newFixtureOn(t, storetest.Empty(t), change...)
}

// newFixtureOn returns a fixture over a store of any engine.
func newFixtureOn(t *testing.T, dsn string, change ...func(*sandbox.Config)) *fixture {
	t.Helper()
	w := &fixture{t: t, host: hosttest.New(), path: dsn, cfg: sandbox.Defaults()}
	w.cfg.OrphanGrace, w.cfg.DefaultTTL = 0, 5*time.Minute
	for _, f := range change {
		f(&w.cfg)
	}
	w.start()
	t.Cleanup(func() {
		w.host.Close()
		if err := w.db.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// start opens the store and makes a service, as a program that starts does.
func (w *fixture) start() {
	w.t.Helper()
	db, err := store.Open(
		context.WithoutCancel(w.t.Context()),
		store.Config{DSN: w.path, Fault: func(op string, committed bool) error {
			if w.fault != nil {
				return w.fault(op, committed)
			}
			return nil
		}},
	)
	if err != nil {
		w.t.Fatal(err)
	}
	w.limits = quota.New(quota.Config{}, db)
	templates, err := template.New(w.host, db, template.BuiltinAliases(), w.limits)
	if err != nil {
		w.t.Fatal(err)
	}
	s, err := sandbox.New(
		w.cfg,
		sandbox.Deps{Store: db, Host: w.host, Templates: templates, Quotas: w.limits,
			Log: slog.New(slog.DiscardHandler), Budgets: w.budgets},
	)
	if err != nil {
		w.t.Fatal(err)
	}
	w.db, w.Service = db, s
}

// restart is a program that was killed and started again.
func (w *fixture) restart() {
	w.t.Helper()
	if err := w.db.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.start()
}

// run lets the service run until the test ends.
func (w *fixture) run() {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("run: %v", err)
		}
	})
}

func (w *fixture) create(p auth.Principal, req api.CreateRequest) api.Sandbox {
	w.t.Helper()
	s, err := w.Create(w.t.Context(), p, req)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// exec runs a shell command and returns its output.
func (w *fixture) exec(p auth.Principal, id api.SandboxID, cmd string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Minute)
	defer cancel()
	g, err := w.Guest(ctx, p, id)
	if err != nil {
		w.t.Fatal(err)
	}
	proc, err := g.Start(ctx, guestapi.ProcessSpec{Shell: cmd})
	if err != nil {
		w.t.Fatal(err)
	}
	defer proc.Close()
	var out strings.Builder
	for {
		e, err := proc.Next(ctx)
		if err == io.EOF {
			return out.String()
		}
		if err != nil {
			w.t.Fatal(err)
		}
		out.Write(e.Data)
	}
}

// status reads the state of a sandbox, Deleted when it is not there.
func (w *fixture) status(p auth.Principal, id api.SandboxID) api.Status {
	w.t.Helper()
	s, err := w.Get(w.t.Context(), p, id)
	if api.CodeOf(err) == api.NotFound {
		return api.Deleted
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return s.Status
}

// until waits for a condition.
func (w *fixture) until(what string, f func() bool) {
	w.t.Helper()
	deadline := time.After(60 * time.Second)
	for !f() {
		select {
		case <-deadline:
			w.t.Fatalf("%s: not within a minute", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// rows and machines by id, with their states.
func (w *fixture) rows() (rows, machines map[string]string) {
	w.t.Helper()
	all, err := w.db.Read().Sandboxes(w.t.Context(), store.SandboxQuery{})
	if err != nil {
		w.t.Fatal(err)
	}
	rows, machines = map[string]string{}, map[string]string{}
	for _, r := range all {
		rows[r.ID] = r.State
	}
	for _, m := range w.host.Machines() {
		machines[string(m.ID)] = string(m.State)
	}
	return rows, machines
}

// agree reports whether store and host have the same sandboxes in the same states.
func (w *fixture) agree() bool {
	w.t.Helper()
	rows, machines := w.rows()
	return maps.Equal(rows, machines)
}

// clean checks that store and host agree, on the sandboxes that are named.
func (w *fixture) clean(want ...api.SandboxID) {
	w.t.Helper()
	rows, machines := w.rows()
	if !maps.Equal(rows, machines) {
		w.t.Errorf("sandboxes %v, machines %v", rows, machines)
	}
	for _, id := range want {
		if rows[string(id)] == "" {
			w.t.Errorf("sandbox %s is lost", id)
		}
	}
	if len(want) != len(rows) {
		w.t.Errorf("%d sandboxes, want %d: %v", len(rows), len(want), rows)
	}
}

func wantCode(t *testing.T, err error, want api.Code, what string) *api.Error {
	t.Helper()
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Code != want {
		t.Errorf("%s: got %v (%s), want code %s", what, err, api.CodeOf(err), want)
		return api.Errorf(api.Internal, "no such error")
	}
	return e
}

func p[T any](v T) *T { return &v }

// allow gives a workspace a quota of its own.
func (w *fixture) allow(p auth.Principal, kind quota.Kind, n int64) {
	w.t.Helper()
	err := w.db.Write(w.t.Context(), "allow", func(ctx context.Context, tx *store.Tx) error {
		return quota.Change{kind: &n}.Apply(ctx, tx, p.Workspace)
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// used returns what a workspace uses of a kind.
func (w *fixture) used(p auth.Principal, kind quota.Kind) int64 {
	w.t.Helper()
	return quotatest.Used(w.t, w.limits, p.Workspace, kind)
}
