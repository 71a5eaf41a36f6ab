package workspace_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/workspace"
)

var (
	operator = auth.Principal{Workspace: "default", KeyPrefix: "pds_0pe0pe00", Operator: true}
	owner    = auth.Principal{Workspace: "acme", KeyPrefix: "pds_a11ce000", Role: api.RoleOwner, Admin: true}
)

// fixture is a workspace service whose sandboxes and builds only count what they are asked for.
type fixture struct {
	*workspace.Service
	db        *store.DB
	quotas    *quota.Quotas
	keys      workspace.Keys
	issue     error // of Issue
	cancel    error // of CancelAll
	enforced  int
	cancelled []api.Workspace
}

func (w *fixture) EnforceQuotas() { w.enforced++ }

func (w *fixture) CancelAll(_ context.Context, id api.Workspace) error {
	w.cancelled = append(w.cancelled, id)
	return w.cancel
}

func (w *fixture) Issue(ctx context.Context, id api.Workspace, label string) (auth.Key, string, error) {
	if w.issue != nil {
		return auth.Key{}, "", w.issue
	}
	return w.keys.Issue(ctx, id, label)
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{DSN: filepath.Join(t.TempDir(), "c.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	log := slog.New(slog.DiscardHandler)
	keys, err := auth.New(db, log)
	if err != nil {
		t.Fatal(err)
	}
	w := &fixture{db: db, quotas: quota.New(quota.Config{}, db)}
	w.keys = workspace.Keys{Keys: keys, Quotas: w.quotas}
	w.Service, err = workspace.New(workspace.Deps{
		Store: db, Quotas: w.quotas, Keys: w, Sandboxes: w, Builds: w, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func wantCode(t *testing.T, what string, err error, want api.Code) {
	t.Helper()
	if api.CodeOf(err) != want {
		t.Errorf("%s: got %v (%q), want %q", what, err, api.CodeOf(err), want)
	}
}

// TestOnlyOperators: every verb but Own refuses callers who do not operate the node.
func TestOnlyOperators(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	if _, err := w.Create(ctx, operator, api.WorkspaceRequest{ID: "acme"}); err != nil {
		t.Fatal(err)
	}
	for verb, do := range map[string]func(auth.Principal) error{
		"create": func(p auth.Principal) error {
			_, err := w.Create(ctx, p, api.WorkspaceRequest{ID: "x"})
			return err
		},
		"get":  func(p auth.Principal) error { _, err := w.Get(ctx, p, "acme"); return err },
		"list": func(p auth.Principal) error { _, err := w.List(ctx, p, "", 0); return err },
		"quotas": func(p auth.Principal) error {
			_, err := w.SetQuotas(ctx, p, "acme", api.QuotaPatch{})
			return err
		},
		"suspend": func(p auth.Principal) error { _, err := w.Suspend(ctx, p, "acme"); return err },
		"resume":  func(p auth.Principal) error { _, err := w.Resume(ctx, p, "acme"); return err },
	} {
		for _, p := range []auth.Principal{owner, {}} {
			wantCode(t, verb, do(p), api.Forbidden)
		}
		if err := do(operator); err != nil {
			t.Errorf("%s by an operator: %v", verb, err)
		}
	}
	if got, err := w.Own(ctx, owner); err != nil || got.ID != "acme" || len(got.Quotas) != len(quota.Kinds()) {
		t.Errorf("Own = %+v, %v", got, err)
	}
	_, err := w.Own(ctx, auth.Principal{})
	wantCode(t, "own without a workspace", err, api.Unauthenticated)
}

func TestCreate(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	n := int64(3)
	made, err := w.Create(ctx, operator, api.WorkspaceRequest{ID: "acme", Quotas: map[string]*int64{"vcpus": &n}})
	if err != nil || made.Name != "acme" || made.Status != api.WorkspaceActive || made.CreatedAt.IsZero() {
		t.Fatalf("Create = %+v, %v", made, err)
	}
	p, err := w.keys.Authenticate(ctx, made.Token, netip.Addr{})
	if err != nil || p.Workspace != "acme" || !p.Admin || p.Operator {
		t.Errorf("the first key is of %+v, %v; want an owner who is no operator", p, err)
	}
	for _, q := range made.Quotas {
		if q.Kind == "vcpus" && (q.Allowed != 3 || q.IsDefault) {
			t.Errorf("its quota is %+v", q)
		}
	}
	_, err = w.Create(ctx, operator, api.WorkspaceRequest{ID: "acme"})
	wantCode(t, "a second of that id", err, api.Conflict)
	for _, id := range []api.Workspace{"", "-a", "A", "a/b", "a|b", "a b", "ä", api.Workspace(make([]byte, 64))} {
		_, err := w.Create(ctx, operator, api.WorkspaceRequest{ID: id})
		wantCode(t, string(id), err, api.Invalid)
	}
	_, err = w.Create(ctx, operator, api.WorkspaceRequest{ID: "b", Quotas: map[string]*int64{"nosuch": &n}})
	wantCode(t, "unknown kind", err, api.Invalid)
	if list, err := w.List(ctx, operator, "", 0); err != nil || len(list) != 1 || list[0].ID != "acme" {
		t.Errorf("List = %+v, %v; want acme alone", list, err)
	}
}

// TestCreateWithoutKey: a workspace whose first key could not be made does not stay, and can be created again.
func TestCreateWithoutKey(t *testing.T) {
	w := newFixture(t)
	w.issue = errors.New("boom")
	n := int64(3)
	req := api.WorkspaceRequest{ID: "acme", Quotas: map[string]*int64{"vcpus": &n}}
	_, err := w.Create(t.Context(), operator, req)
	wantCode(t, "create", err, api.Internal)
	if own, err := w.db.Read().Quotas(t.Context(), "acme"); err != nil || len(own) != 0 {
		t.Errorf("quotas %v stay, %v", own, err)
	}
	w.issue = nil
	if _, err := w.Create(t.Context(), operator, req); err != nil {
		t.Errorf("create again: %v", err)
	}
}

func TestSuspend(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	made, err := w.Create(ctx, operator, api.WorkspaceRequest{ID: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	w.cancel = errors.New("boom")
	_, err = w.Suspend(ctx, operator, "acme")
	wantCode(t, "suspend with a build that cannot be cancelled", err, api.Unavailable)
	w.cancel = nil
	got, err := w.Suspend(ctx, operator, "acme") // again
	if err != nil || got.Status != api.WorkspaceStopped || got.SuspendedAt == nil || w.enforced != 2 ||
		len(w.cancelled) != 2 || w.cancelled[1] != "acme" {
		t.Errorf("Suspend = %+v, %v; enforced %d times, cancelled %v", got, err, w.enforced, w.cancelled)
	}
	_, err = w.keys.Authenticate(ctx, made.Token, netip.Addr{})
	wantCode(t, "a key of the workspace", err, api.WorkspaceSuspended)
	_, err = w.keys.Authenticate(ctx, "pds_nonsense", netip.Addr{})
	wantCode(t, "no key", err, api.Unauthenticated)
	if got, err := w.Resume(ctx, operator, "acme"); err != nil || got.Status != api.WorkspaceActive ||
		got.SuspendedAt != nil {
		t.Errorf("Resume = %+v, %v", got, err)
	}
	if _, err = w.keys.Authenticate(ctx, made.Token, netip.Addr{}); err != nil {
		t.Errorf("a key of the workspace: %v", err)
	}
	for verb, do := range map[string]func(context.Context, auth.Principal, api.Workspace) (api.WorkspaceInfo, error){
		"suspend": w.Suspend, "resume": w.Resume, "get": w.Get,
	} {
		_, err := do(ctx, operator, "nosuch")
		wantCode(t, verb, err, api.NotFound)
	}
	_, err = w.SetQuotas(ctx, operator, "nosuch", api.QuotaPatch{})
	wantCode(t, "quotas", err, api.NotFound)
}

// TestOperatorIsNotLockedOut: an operator cannot suspend the workspace of the own key, and keeps access if another one
// does.
func TestOperatorIsNotLockedOut(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	token, err := w.keys.CreateFirst(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Suspend(ctx, operator, operator.Workspace)
	wantCode(t, "suspend of the own workspace", err, api.Conflict)
	other := operator
	other.Workspace = "elsewhere"
	if _, err := w.Suspend(ctx, other, auth.DefaultWorkspace); err != nil {
		t.Fatal(err)
	}
	p, err := w.keys.Authenticate(ctx, token, netip.Addr{})
	if err != nil || !p.Operator {
		t.Fatalf("the operator of a suspended workspace: %+v, %v", p, err)
	}
	if _, err := w.Resume(ctx, p, p.Workspace); err != nil {
		t.Error(err)
	}
}
