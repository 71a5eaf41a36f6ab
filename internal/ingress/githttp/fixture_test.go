package githttp_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/app/repo"
	"github.com/pandastack/pandastack/internal/control/app/repo/repotest"
	"github.com/pandastack/pandastack/internal/control/audit"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/githttp"
)

// fixture is a server whose git runs as an ordinary process, an app, and a working tree.
type fixture struct {
	t        *testing.T
	machines *repotest.Machines
	repos    *repo.Service
	url      string // of the server, without a key
	tree     string

	mu       sync.Mutex
	app      api.App
	deployed []appspec.Source
	refuse   error
	ends     api.Deployment // what a deployment has become
	lines    []api.AppLogLine
	audited  []audit.Entry
}

const pushMiB = 1

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, machines: repotest.New(t), tree: t.TempDir()}
	f.app = api.App{ID: api.NewAppID(), Name: "shop", Workspace: "w", AutoDeploy: true, URL: "https://shop.apps.test"}
	f.ends = api.Deployment{Status: api.DeploymentLive}
	var err error
	f.repos, err = repo.New(repo.Config{Template: "base", VolumeMiB: 64, PushMiB: pushMiB}, f.machines, f.machines,
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s, err := githttp.New(githttp.Config{PushMiB: pushMiB}, githttp.Deps{
		Guard: access.New(access.Config{FailuresPerMinute: 30}, f, f), Apps: f, Repositories: f.repos,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.Middleware(http.NotFoundHandler()))
	t.Cleanup(server.Close)
	f.url = server.URL
	f.git("init", "--quiet", "--initial-branch=main")
	f.commit("index.html", "<h1>one</h1>")
	return f
}

// remote returns the URL of the repository with a key.
func (f *fixture) remote(key string) string {
	u, err := url.Parse(f.url + "/git/shop.git")
	if err != nil {
		f.t.Fatal(err)
	}
	u.User = url.UserPassword("x", key)
	return u.String()
}

// try runs git in the working tree and returns what it prints.
func (f *fixture) try(args ...string) (string, error) {
	f.t.Helper()
	cmd := exec.CommandContext(f.t.Context(), "git", args...)
	cmd.Dir = f.tree
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + f.tree, "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@test", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@test",
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (f *fixture) git(args ...string) string {
	f.t.Helper()
	out, err := f.try(args...)
	if err != nil {
		f.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// refused runs git, which must fail and say something.
func (f *fixture) refused(want string, args ...string) {
	f.t.Helper()
	out, err := f.try(args...)
	if err == nil || !strings.Contains(out, want) {
		f.t.Errorf("git %s: %v, want an error with %q:\n%s", strings.Join(args, " "), err, want, out)
	}
}

// commit writes a file, commits it, and returns the commit.
func (f *fixture) commit(name, content string) string {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.tree, name), []byte(content), 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.git("add", "--", name)
	f.git("commit", "--quiet", "--message", "change "+name)
	return f.git("rev-parse", "HEAD")
}

// stored returns what a ref is in the repository; "" for one that is not there.
func (f *fixture) stored(ref string) string {
	f.t.Helper()
	dir := filepath.Join(f.machines.Dir(repo.VolumeName(f.app.ID)), repo.Dir)
	show := exec.CommandContext(f.t.Context(), "git", "--git-dir", dir, "rev-parse", "--verify", "--quiet", ref)
	out, err := show.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

func (f *fixture) deployments() []appspec.Source {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.deployed
}

// set changes what the fixture returns.
func (f *fixture) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// contains fails unless a text has all parts in this order.
func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	rest := text
	for _, part := range parts {
		_, after, ok := strings.Cut(rest, part)
		if !ok {
			t.Errorf("%q is missing, or not in its place:\n%s", part, text)
			return
		}
		rest = after
	}
}

// The keys.
const (
	ownerKey  = "pds_owner"
	readerKey = "pds_reader"
	otherKey  = "pds_other"
)

// Authenticate implements access.Keys.
func (f *fixture) Authenticate(_ context.Context, token string, _ netip.Addr) (auth.Principal, error) {
	switch token {
	case ownerKey:
		return auth.Principal{Workspace: "w", KeyPrefix: token,
			Scopes: auth.NewScopes(api.ScopeRead, api.ScopeFiles, api.ScopeLifecycle)}, nil
	case readerKey:
		return auth.Principal{Workspace: "w", KeyPrefix: token,
			Scopes: auth.NewScopes(api.ScopeRead, api.ScopeFiles)}, nil
	case otherKey:
		return auth.Principal{Workspace: "other", KeyPrefix: token,
			Scopes: auth.NewScopes(api.ScopeRead, api.ScopeFiles, api.ScopeLifecycle)}, nil
	}
	return auth.Principal{}, api.Errorf(api.Unauthenticated, "the key is not valid")
}

// Known implements access.Keys.
func (f *fixture) Known(string) bool { return false }

// OfKey implements access.Keys.
func (f *fixture) OfKey(ctx context.Context, prefix string, from netip.Addr) (auth.Principal, error) {
	return f.Authenticate(ctx, prefix, from)
}

// Record implements access.Audit.
func (f *fixture) Record(_ context.Context, e audit.Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.audited = append(f.audited, e)
}

// RecordUse implements access.Audit.
func (f *fixture) RecordUse(ctx context.Context, e audit.Entry) { f.Record(ctx, e) }

// Get implements githttp.Apps.
func (f *fixture) Get(_ context.Context, p auth.Principal, app string) (api.App, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.Workspace != f.app.Workspace || app != f.app.Name && app != string(f.app.ID) {
		return api.App{}, api.Errorf(api.NotFound, "app %s not found", app)
	}
	return f.app, nil
}

// DeployFrom implements githttp.Apps.
func (f *fixture) DeployFrom(
	_ context.Context,
	_ auth.Principal,
	app api.AppID,
	src appspec.Source,
	_ string,
) (api.Deployment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return api.Deployment{}, f.refuse
	}
	f.deployed = append(f.deployed, src)
	return api.Deployment{ID: "dpl1", AppID: app, Number: len(f.deployed), Status: api.DeploymentQueued}, nil
}

// Deployment implements githttp.Apps.
func (f *fixture) Deployment(context.Context, auth.Principal, string, api.DeploymentID) (api.Deployment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.ends
	d.Number = len(f.deployed)
	return d, nil
}

// BuildLog implements githttp.Apps.
func (f *fixture) BuildLog(
	_ context.Context,
	_ auth.Principal,
	_ string,
	_ api.DeploymentID,
	_ int64,
	_ bool,
	yield func(api.AppLogLine) error,
) error {
	f.mu.Lock()
	lines := f.lines
	f.mu.Unlock()
	for _, l := range lines {
		if err := yield(l); err != nil {
			return err
		}
	}
	return nil
}
