package hook_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/app/hook"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

var (
	alice = auth.Principal{Workspace: "w", KeyPrefix: "pds_alice"}
	sha1  = strings.Repeat("1", 40)
	sha2  = strings.Repeat("2", 40)
)

// fixture is a service over a real store, with an app of a repository.
type fixture struct {
	*hook.Service
	t        *testing.T
	db       *store.DB
	app      api.App
	secret   string
	sources  []appspec.Source
	messages []string
	previews []appspec.PullRequest
	deleted  []string
	fail     error
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
	f := &fixture{t: t, db: db}
	f.app = f.insert("shop", appspec.Settings{GitURL: "https://github.com/acme/shop", AutoDeploy: true}, store.App{})
	f.Service, err = hook.New("https://api.test/", hook.Deps{Store: db, Apps: f, Dotenv: dotenv})
	if err != nil {
		t.Fatal(err)
	}
	made, err := f.Webhook(t.Context(), alice, string(f.app.ID))
	if err != nil {
		t.Fatal(err)
	}
	if made.URL != "https://api.test/v1/webhooks/apps/"+string(f.app.ID) || len(made.Secret) < 20 {
		t.Fatalf("made %+v", made)
	}
	f.secret = made.Secret
	return f
}

func dotenv(text string) (map[string]string, error) {
	key, value, ok := strings.Cut(text, "=")
	if !ok {
		return nil, api.Errorf(api.Invalid, "dotenv: no =")
	}
	return map[string]string{key: value}, nil
}

func (f *fixture) insert(name string, set appspec.Settings, row store.App) api.App {
	f.t.Helper()
	text, err := appspec.Encode(set)
	if err != nil {
		f.t.Fatal(err)
	}
	row.ID, row.Workspace, row.Name, row.State, row.Settings = string(api.NewAppID()), "w", name, store.AppActive, text
	err = f.db.Write(f.t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
		return tx.InsertApp(ctx, &row)
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return api.App{ID: api.AppID(row.ID), Name: name, Workspace: "w", PreviewOf: api.AppID(row.PreviewOf)}
}

// change changes the settings of the app.
func (f *fixture) change(set appspec.Settings) {
	f.t.Helper()
	err := f.db.Write(f.t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
		row, err := tx.App(ctx, string(f.app.ID))
		if err != nil {
			return err
		}
		if row.Settings, err = appspec.Encode(set); err != nil {
			return err
		}
		return tx.UpdateApp(ctx, &row, store.AppActive, "settings")
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

// send delivers an event, signed as GitHub does.
func (f *fixture) send(event, id, body string) (hook.Result, error) {
	f.t.Helper()
	h := http.Header{}
	h.Set("X-GitHub-Event", event)
	h.Set("X-GitHub-Delivery", id)
	h.Set("X-Hub-Signature-256", "sha256="+sign(f.secret, body))
	return f.Deliver(f.t.Context(), f.app.ID, h, []byte(body))
}

func sign(secret, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	return hex.EncodeToString(mac.Sum(nil))
}

func pushed(ref, commit string) string {
	return fmt.Sprintf(`{"ref":%q,"after":%q,"head_commit":{"id":%[2]q,"message":"change\nmore"},
		"repository":{"id":7,"full_name":"acme/shop","default_branch":"main"}}`, ref, commit)
}

func pulled(action, state string, head int64, commit string) string {
	return fmt.Sprintf(`{"action":%q,"number":12,"pull_request":{"state":%q,"title":"Better",
		"head":{"ref":"better","sha":%q,"repo":{"id":%d}},"base":{"ref":"main"}},
		"repository":{"id":7,"full_name":"acme/shop","default_branch":"main"}}`, action, state, commit, head)
}

func TestPushDeploysNamedCommit(t *testing.T) {
	for name, head := range map[string]func(h http.Header, secret, body string){
		"github": func(h http.Header, secret, body string) {
			h.Set("X-GitHub-Event", "push")
			h.Set("X-Hub-Signature-256", "sha256="+sign(secret, body))
		},
		"gitea": func(h http.Header, secret, body string) {
			h.Set("X-Gitea-Event", "push")
			h.Set("X-Gitea-Signature", sign(secret, body))
		},
		"forgejo": func(h http.Header, secret, body string) {
			h.Set("X-Forgejo-Event", "push")
			h.Set("X-Forgejo-Signature", sign(secret, body))
		},
		"gitlab": func(h http.Header, secret, _ string) {
			h.Set("X-Gitlab-Event", "Push Hook")
			h.Set("X-Gitlab-Token", secret)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			body := pushed("refs/heads/main", sha1)
			if name == "gitlab" {
				body = fmt.Sprintf(`{"object_kind":"push","ref":"refs/heads/main","after":%q,"checkout_sha":%[1]q,
					"project":{"path_with_namespace":"acme/shop","default_branch":"main"},
					"commits":[{"id":%[1]q,"message":"change"}]}`, sha1)
			}
			h := http.Header{}
			head(h, f.secret, body)
			out, err := f.Deliver(t.Context(), f.app.ID, h, []byte(body))
			want := appspec.Source{Kind: appspec.SourceGit, Ref: "main", Commit: sha1}
			if err != nil || out.Deployment == "" || len(f.sources) != 1 || f.sources[0] != want ||
				!strings.HasPrefix(f.messages[0], "change") {
				t.Errorf("%+v, %v: deployed %+v %q", out, err, f.sources, f.messages)
			}
		})
	}
}

func TestForgedDeliveriesAreRefused(t *testing.T) {
	f := newFixture(t)
	body := pushed("refs/heads/main", sha1)
	other := f.insert("other", appspec.Settings{GitURL: "https://github.com/acme/other", AutoDeploy: true}, store.App{})
	for name, c := range map[string]struct {
		app  api.AppID
		head map[string]string
	}{
		"no signature":       {f.app.ID, nil},
		"another secret":     {f.app.ID, map[string]string{"X-Hub-Signature-256": "sha256=" + sign("guess", body)}},
		"another body":       {f.app.ID, map[string]string{"X-Hub-Signature-256": "sha256=" + sign(f.secret, "{}")}},
		"sha1 alone":         {f.app.ID, map[string]string{"X-Hub-Signature": "sha1=" + sign(f.secret, body)}},
		"no hex":             {f.app.ID, map[string]string{"X-Gitea-Signature": "zz"}},
		"part of it":         {f.app.ID, map[string]string{"X-Gitea-Signature": sign(f.secret, body)[:32]}},
		"another token":      {f.app.ID, map[string]string{"X-Gitlab-Token": "guess"}},
		"app without secret": {other.ID, map[string]string{"X-Hub-Signature-256": "sha256=" + sign("", body)}},
		"secret of another":  {other.ID, map[string]string{"X-Hub-Signature-256": "sha256=" + sign(f.secret, body)}},
		"no app":             {api.NewAppID(), map[string]string{"X-Gitlab-Token": f.secret}},
		"bad signature, good token": {f.app.ID,
			map[string]string{"X-Hub-Signature-256": "sha256=00", "X-Gitlab-Token": "guess"}},
	} {
		h := http.Header{}
		h.Set("X-GitHub-Event", "push")
		for k, v := range c.head {
			h.Set(k, v)
		}
		if out, err := f.Deliver(t.Context(), c.app, h, []byte(body)); api.CodeOf(err) != api.Unauthenticated {
			t.Errorf("%s: %+v, %v", name, out, err)
		}
	}
	if len(f.sources) != 0 {
		t.Errorf("deployed %+v", f.sources)
	}
}

func TestSecretIsReplaced(t *testing.T) {
	f := newFixture(t)
	if _, err := f.Webhook(t.Context(), alice, string(f.app.ID)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.send("push", "a", pushed("refs/heads/main", sha1)); api.CodeOf(err) != api.Unauthenticated {
		t.Errorf("the earlier secret still holds: %v", err)
	}
	if _, err := f.Webhook(t.Context(), auth.Principal{Workspace: "other"}, string(f.app.ID)); err == nil {
		t.Error("another workspace made a secret")
	}
}

// TestDeliveryIsTakenOnce: a delivery that is sent again deploys nothing, also under another id, which is not signed.
func TestDeliveryIsTakenOnce(t *testing.T) {
	f := newFixture(t)
	body := pushed("refs/heads/main", sha1)
	for i, id := range []string{"a", "a", "b", ""} {
		out, err := f.send("push", id, body)
		if err != nil || (out.Deployment != "") != (i == 0) {
			t.Errorf("delivery %d: %+v, %v", i, out, err)
		}
	}
	if out, err := f.send("push", "a", pushed("refs/heads/main", sha2)); err != nil || out.Deployment != "" {
		t.Errorf("an id that was used: %+v, %v", out, err)
	}
	if len(f.sources) != 1 {
		t.Errorf("deployed %+v", f.sources)
	}
}

func TestFailedDeliveryCanBeSentAgain(t *testing.T) {
	f := newFixture(t)
	f.fail = errors.New("the disk is broken")
	if _, err := f.send("push", "a", pushed("refs/heads/main", sha1)); err == nil {
		t.Fatal("the failure was not reported")
	}
	f.fail = nil
	if out, err := f.send("push", "a", pushed("refs/heads/main", sha1)); err != nil || out.Deployment == "" {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestDeliveriesThatDeployNothing(t *testing.T) {
	f := newFixture(t)
	set := appspec.Settings{GitURL: "https://github.com/acme/shop", AutoDeploy: true}
	release, manual, pushes := set, set, set
	release.GitBranch, manual.AutoDeploy, pushes.GitURL = "release", false, ""
	for name, c := range map[string]struct {
		set         appspec.Settings
		event, body string
		want        string
	}{
		"ping":           {set, "ping", `{"zen":"a"}`, "works"},
		"star":           {set, "star", `{"a":1}`, "not used"},
		"another branch": {set, "push", pushed("refs/heads/x", sha1), "not deployed from branch x"},
		"not the app's":  {release, "push", pushed("refs/heads/main", sha2), "not deployed from branch main"},
		"tag":            {set, "push", pushed("refs/tags/v1", sha1), "not a change of a branch"},
		"deleted":        {set, "push", pushed("refs/heads/main", strings.Repeat("0", 40)), "not a change"},
		"option":         {set, "push", pushed("refs/heads/--upload-pack=x", sha1), "not a change"},
		"no commit":      {set, "push", pushed("refs/heads/main", "$(touch x)"), "not a change"},
		"manual":         {manual, "push", pushed("refs/heads/main", sha1), "auto_deploy"},
		"pushed app":     {pushes, "push", pushed("refs/heads/main", sha1+sha1[:24]), "no git_url"},
		"no previews":    {set, "pull_request", pulled("opened", "open", 7, sha1), "not enabled"},
		"labeled":        {set, "pull_request", pulled("labeled", "open", 7, sha1), "changes nothing"},
	} {
		f.change(c.set)
		out, err := f.send(c.event, name, c.body)
		if err != nil || out.Deployment != "" || !strings.Contains(out.Result, c.want) {
			t.Errorf("%s: %+v, %v", name, out, err)
		}
	}
	if _, err := f.send("push", "form", "payload=x"); api.CodeOf(err) != api.Invalid {
		t.Errorf("a form: %v", err)
	}
	if len(f.sources) != 0 {
		t.Errorf("deployed %+v", f.sources)
	}
}

func TestPullRequest(t *testing.T) {
	f := newFixture(t)
	repo := api.PreviewRepo{GitHubRepoID: 7, RepoFullName: "acme/shop"}
	if _, err := f.EnablePreviewRepo(t.Context(), auth.Principal{Workspace: "other"}, repo); err != nil {
		t.Fatal(err)
	}
	out, err := f.send("pull_request", "0", pulled("opened", "open", 7, sha1))
	if err != nil || out.Deployment != "" {
		t.Fatalf("previews of another workspace: %+v, %v", out, err)
	}
	if _, err := f.EnablePreviewRepo(t.Context(), alice, repo); err != nil {
		t.Fatal(err)
	}
	out, err = f.send("pull_request", "1", pulled("reopened", "open", 7, sha1))
	want := appspec.Source{Kind: appspec.SourceGit, Ref: "refs/pull/12/head", Commit: sha1}
	if err != nil || out.App == f.app.ID || len(f.sources) != 1 || f.sources[0] != want {
		t.Fatalf("%+v, %v: deployed %+v", out, err, f.sources)
	}
	pr := f.previews[0]
	if pr.Number != 12 || pr.SHA != sha1 || pr.Fork || pr.Repo != "acme/shop" || pr.Title != "Better" {
		t.Errorf("preview of %+v", pr)
	}
	// A stranger's fork with the same number cannot get what the preview of the own branch has.
	out, err = f.send("pull_request", "2", pulled("synchronize", "open", 666, sha2))
	if err != nil || len(f.sources) != 2 || !f.sources[1].Untrusted || !f.previews[1].Fork || len(f.deleted) != 1 {
		t.Fatalf("%+v, %v: deployed %+v, deleted %v", out, err, f.sources, f.deleted)
	}
	out, err = f.send("pull_request", "3", pulled("closed", "closed", 666, sha2))
	if err != nil || len(f.deleted) != 2 || !strings.Contains(out.Result, "deleted") {
		t.Fatalf("%+v, %v: deleted %v", out, err, f.deleted)
	}
	// The delivery of an earlier change comes late.
	_, err = f.send("pull_request", "4", pulled("synchronize", "closed", 7, sha2))
	if err != nil || len(f.sources) != 2 {
		t.Errorf("%v: deployed %+v", err, f.sources)
	}
}

func TestPullRequestOfDeletedFork(t *testing.T) {
	f := newFixture(t)
	_, err := f.EnablePreviewRepo(t.Context(), alice, api.PreviewRepo{GitHubRepoID: 7, RepoFullName: "acme/shop"})
	if err != nil {
		t.Fatal(err)
	}
	body := strings.Replace(pulled("opened", "open", 7, sha1), `"repo":{"id":7}`, `"repo":null`, 1)
	if _, err := f.send("pull_request", "1", body); err != nil || len(f.sources) != 1 || !f.sources[0].Untrusted {
		t.Errorf("%v: deployed %+v", err, f.sources)
	}
}

func TestPreviewVariablesBelongToWorkspace(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	bob := auth.Principal{Workspace: "other"}
	set := api.SetVariableRequest{Value: "geheim", Secret: true}
	if _, err := f.SetPreviewVariable(ctx, alice, 7, "TOKEN", set); api.CodeOf(err) != api.NotFound {
		t.Errorf("a variable of a repository without previews: %v", err)
	}
	for _, p := range []auth.Principal{alice, bob} {
		repo := api.PreviewRepo{GitHubRepoID: 7, RepoFullName: "acme/shop"}
		if _, err := f.EnablePreviewRepo(ctx, p, repo); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.SetPreviewVariable(ctx, alice, 7, "TOKEN", set); err != nil {
		t.Fatal(err)
	}
	got, err := f.ImportPreviewEnv(ctx, alice, 7, api.ImportEnvRequest{Dotenv: "A=b"})
	if err != nil || got.Imported != 1 || got.Total != 2 {
		t.Errorf("imported %+v, %v", got, err)
	}
	if _, err := f.SetPreviewVariable(ctx, alice, 7, "1", set); api.CodeOf(err) != api.Invalid {
		t.Errorf("a bad name: %v", err)
	}
	env, err := f.PreviewEnv(ctx, alice, 7)
	if err != nil || len(env.Env) != 2 {
		t.Fatalf("%+v, %v", env, err)
	}
	for _, v := range env.Env {
		if v.Value == "geheim" || v.Scope != api.EnvPreview {
			t.Errorf("shown: %+v", v)
		}
	}
	if env, err := f.PreviewEnv(ctx, bob, 7); err != nil || len(env.Env) != 0 {
		t.Errorf("another workspace sees %+v, %v", env, err)
	}
	if err := f.DeletePreviewVariable(ctx, bob, 7, "TOKEN"); api.CodeOf(err) != api.NotFound {
		t.Errorf("another workspace deletes: %v", err)
	}
	if err := f.DeletePreviewVariable(ctx, alice, 7, "A"); err != nil {
		t.Error(err)
	}
	if err := f.DisablePreviewRepo(ctx, alice, 7); err != nil {
		t.Error(err)
	}
	if env, err := f.PreviewEnv(ctx, alice, 7); err != nil || len(env.Env) != 0 {
		t.Errorf("left: %+v, %v", env, err)
	}
	if err := f.DisablePreviewRepo(ctx, alice, 7); api.CodeOf(err) != api.NotFound {
		t.Errorf("disabled twice: %v", err)
	}
	list, err := f.PreviewRepos(ctx, bob)
	if err != nil || len(list.Repos) != 1 || !list.Repos[0].Enabled {
		t.Errorf("%+v, %v", list, err)
	}
}

func FuzzDeliver(f *testing.F) {
	f.Add("push", pushed("refs/heads/main", sha1))
	f.Add("pull_request", pulled("opened", "open", 7, sha1))
	f.Add("pull_request", `{"action":"opened","number":1,"pull_request":{"head":{}}}`)
	f.Fuzz(func(t *testing.T, event, body string) {
		w := newFixture(t)
		if _, err := w.EnablePreviewRepo(t.Context(), alice, api.PreviewRepo{GitHubRepoID: 7}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.send(event, "", body); err != nil && !json.Valid([]byte(body)) &&
			api.CodeOf(err) == api.Internal {
			t.Fatal(err)
		}
		for _, src := range w.sources {
			if strings.HasPrefix(src.Ref, "-") || len(src.Commit) != 40 && len(src.Commit) != 64 {
				t.Fatalf("deploys %+v", src)
			}
		}
	})
}

// Get implements hook.Apps.
func (f *fixture) Get(_ context.Context, p auth.Principal, app string) (api.App, error) {
	if p.Workspace != f.app.Workspace || app != string(f.app.ID) {
		return api.App{}, api.Errorf(api.NotFound, "app %s not found", app)
	}
	return f.app, nil
}

// Delete implements hook.Apps.
func (f *fixture) Delete(ctx context.Context, p auth.Principal, app string) error {
	if p.Workspace != "w" {
		return api.Errorf(api.NotFound, "app %s not found", app)
	}
	f.deleted = append(f.deleted, app)
	return f.db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
		row, err := tx.App(ctx, app)
		if err != nil {
			return err
		}
		row.State = store.AppDeleting
		return tx.UpdateApp(ctx, &row, store.AppActive, "state")
	})
}

// DeployFrom implements hook.Apps.
func (f *fixture) DeployFrom(
	_ context.Context,
	p auth.Principal,
	app api.AppID,
	src appspec.Source,
	message string,
) (api.Deployment, error) {
	if f.fail != nil {
		return api.Deployment{}, f.fail
	}
	if p.Workspace != "w" || p.KeyPrefix != hook.Actor {
		return api.Deployment{}, api.Errorf(api.Forbidden, "%+v may not deploy", p)
	}
	f.sources, f.messages = append(f.sources, src), append(f.messages, message)
	return api.Deployment{ID: api.NewDeploymentID(), AppID: app, Number: len(f.sources)}, nil
}

// CreatePreview implements hook.Apps.
func (f *fixture) CreatePreview(
	_ context.Context,
	_ auth.Principal,
	of api.AppID,
	pr appspec.PullRequest,
) (api.App, error) {
	f.previews = append(f.previews, pr)
	text, err := appspec.Encode(pr)
	if err != nil {
		return api.App{}, err
	}
	return f.insert(fmt.Sprintf("pr-%d--shop", pr.Number), appspec.Settings{},
		store.App{PreviewOf: string(of), PullRequest: int64(pr.Number), Preview: text}), nil
}
