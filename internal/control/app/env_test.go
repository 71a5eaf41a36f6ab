package app_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
)

// environ returns the environment of the program of an app's replica.
func (w *fixture) environ(a api.App) map[string]string {
	w.t.Helper()
	w.must(w.Wake(w.t.Context(), a.ID, 1))
	g, _, err := w.Open(w.t.Context(), a.ID, w.ready(a)[0].Sandbox)
	w.must(err)
	all, err := g.Processes(w.t.Context())
	w.must(err)
	for _, p := range all {
		if p.Tag == "app" && p.Exit == nil {
			return p.Env
		}
	}
	w.t.Fatal("the program does not run")
	return nil
}

// TestVariables sets, imports and removes variables. Secrets are masked, and a deployment has those of its scope.
func TestVariables(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	a := w.made(func(r *api.CreateAppRequest) { r.Env = map[string]string{"PLAIN": "one", "PORT": "1"} })
	_, err := w.SetVariable(ctx, alice, "site", "SECRET", api.SetVariableRequest{Value: "hunter2hunter2", Secret: true})
	w.must(err)
	_, err = w.SetVariable(ctx, alice, "site", "PLAIN", api.SetVariableRequest{Value: "live", Scope: api.EnvProduction})
	w.must(err)
	_, err = w.SetVariable(ctx, alice, "site", "PLAIN", api.SetVariableRequest{Value: "draft", Scope: api.EnvPreview})
	w.must(err)
	n, err := w.ImportEnv(ctx, alice, "site", api.ImportEnvRequest{Dotenv: "# a file\nexport A='x y'\nB=\"1\\n2\"\n"})
	if err != nil || n.Imported != 2 || n.Total != 7 {
		t.Errorf("%+v, %v", n, err)
	}
	_, err = w.ImportEnv(ctx, alice, "site", api.ImportEnvRequest{Dotenv: "no file"})
	w.wants("a bad file", err, api.Invalid)
	_, err = w.SetVariable(ctx, alice, "site", "no-name", api.SetVariableRequest{})
	w.wants("a bad name", err, api.Invalid)
	env, err := w.Env(ctx, alice, "site")
	w.must(err)
	for _, v := range env.Env {
		if v.Key == "SECRET" && (v.Value != api.MaskedValue || !v.Secret || v.CreatedBy != alice.KeyPrefix) {
			t.Errorf("%+v", v)
		}
	}
	if got := w.get(a).Env; got["SECRET"] != api.MaskedValue || got["PLAIN"] != "one" {
		t.Errorf("%v", got)
	}
	d := w.live(a, "one")
	for name, want := range map[string]string{"PLAIN": "live", "SECRET": "hunter2hunter2", "A": "x y", "B": "1\n2",
		"PORT": "8080"} {
		if got := w.environ(a)[name]; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if log := w.log(a, d.ID); strings.Contains(log, "hunter2") || !strings.Contains(log, api.MaskedValue) {
		t.Errorf("the log has a secret: %s", log)
	}
	w.must(w.DeleteVariable(ctx, alice, "site", "PLAIN", api.EnvProduction))
	w.wants("again", w.DeleteVariable(ctx, alice, "site", "PLAIN", api.EnvProduction), api.NotFound)
	if got := w.environ(a)["PLAIN"]; got != "live" {
		t.Errorf("a change applies without a deployment: %q", got)
	}
	builds := len(w.builder.builds)
	_, err = w.Deploy(ctx, alice, "site", api.DeployRequest{Restart: true})
	w.must(err)
	w.must(w.Reconcile(ctx))
	if got := w.environ(a)["PLAIN"]; got != "one" || len(w.builder.builds) != builds {
		t.Errorf("after a restart it is %q, with %d builds more", got, len(w.builder.builds)-builds)
	}
	// What comes back as it was shown stays.
	masked := w.get(a).Env
	_, err = w.Update(ctx, alice, "site", api.UpdateAppRequest{Env: &masked})
	w.must(err)
	w.live(a, "two")
	if got := w.environ(a)["SECRET"]; got != "hunter2hunter2" {
		t.Errorf("the secret is %q", got)
	}
}

// TestSecretsAreNotStored looks for the value of a secret in the file of the store.
func TestSecretsAreNotStored(t *testing.T) {
	w := newFixture(t)
	a := w.made()
	_, err := w.SetVariable(t.Context(), alice, "site", "TOKEN",
		api.SetVariableRequest{Value: "visible-in-guest", Secret: true})
	w.must(err)
	w.live(a, "one")
	vars, err := w.db.Read().AppVariables(t.Context(), string(a.ID))
	if err != nil || len(vars) != 1 || vars[0].Value != "visible-in-guest" {
		t.Fatalf("%+v, %v", vars, err)
	}
	boxes, err := w.boxes.List(t.Context(), w.builder.builds[0].Principal, api.SandboxFilter{})
	w.must(err)
	w.must(w.db.Close())
	defer w.start()
	for _, name := range []string{w.path, w.path + "-wal"} {
		data, err := os.ReadFile(name)
		if err != nil {
			continue // there is none
		}
		for _, m := range boxes.Sandboxes {
			if bytes.Contains(data, []byte("TOKEN=visible-in-guest")) {
				t.Errorf("the row of %s has the secret", m.ID)
			}
		}
	}
}

// TestLinkedDatabase links a database: its URL is in the environment, and a new password starts the app again.
func TestLinkedDatabase(t *testing.T) {
	w := newFixture(t)
	id := api.NewDatabaseID()
	a := w.made(func(r *api.CreateAppRequest) { r.Databases = []api.DatabaseID{id} })
	w.live(a, "one")
	seen := func(password string) string { // where machines reach databases
		return "postgres://u:" + password + "@192.168.241.1:5432/d?options=endpoint%3D" + string(id) +
			"&sslmode=require"
	}
	if got := w.environ(a)["DATABASE_URL"]; got != seen("one") {
		t.Errorf("%q", got)
	}
	builds := len(w.builder.builds)
	w.databases.mu.Lock()
	w.databases.url = "postgres://u:two@db.example.com:5432/d?sslmode=require"
	w.databases.mu.Unlock()
	w.must(w.Reconcile(t.Context())) // it is seen
	w.must(w.Reconcile(t.Context())) // and deployed
	if got := w.environ(a)["DATABASE_URL"]; got != seen("two") || len(w.builder.builds) != builds {
		t.Errorf("%q, %d builds", got, len(w.builder.builds)-builds)
	}
	n := len(w.deployments(a))
	w.must(w.Reconcile(t.Context()))
	if again := len(w.deployments(a)); again != n {
		t.Errorf("%d deployments after another look, want %d", again, n)
	}
	// A rollback has the old password in its memory: it is started again.
	_, err := w.Rollback(t.Context(), alice, "site", api.RollbackRequest{})
	w.must(err)
	w.must(w.Reconcile(t.Context()))
	w.must(w.Reconcile(t.Context()))
	if got := w.environ(a)["DATABASE_URL"]; got != seen("two") {
		t.Errorf("after a rollback: %q", got)
	}
}

func (w *fixture) deployments(a api.App) []api.Deployment {
	w.t.Helper()
	all, err := w.Deployments(w.t.Context(), alice, string(a.ID))
	w.must(err)
	return all
}

// TestPreviewVariables makes previews of pull requests: one has the variables of its scope, that of a stranger none.
func TestPreviewVariables(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	parent := w.made(func(r *api.CreateAppRequest) { r.Env = map[string]string{"A": "all"} })
	for scope, value := range map[api.EnvScope]string{api.EnvPreview: "preview", api.EnvProduction: "production"} {
		_, err := w.SetVariable(ctx, alice, "site", "B", api.SetVariableRequest{Value: value, Scope: scope})
		w.must(err)
	}
	own, err := w.CreatePreview(ctx, alice, parent.ID, appspec.PullRequest{Number: 3, SHA: "abc", State: "open"})
	w.must(err)
	if own.Name != "pr-3--site" || !own.IsPreview || own.PRNumber != 3 || own.HeadSHA != "abc" ||
		own.PreviewURL != "http://pr-3--site.apps.example.com" {
		t.Errorf("%+v", own)
	}
	again, err := w.CreatePreview(ctx, alice, parent.ID, appspec.PullRequest{Number: 3, SHA: "def"})
	if err != nil || again.ID != own.ID || again.HeadSHA != "def" {
		t.Errorf("%+v, %v", again, err)
	}
	w.live(own, "x")
	if env := w.environ(own); env["A"] != "all" || env["B"] != "preview" {
		t.Errorf("%v", env)
	}
	fork, err := w.CreatePreview(ctx, alice, parent.ID, appspec.PullRequest{Number: 4, SHA: "fed", Fork: true})
	w.must(err)
	src := appspec.Source{Kind: appspec.SourceGit, Ref: "f", Untrusted: true}
	_, err = w.DeployFrom(ctx, alice, fork.ID, src, "m\nn")
	w.must(err)
	w.must(w.Reconcile(ctx))
	if env := w.environ(fork); env["A"] != "" || env["B"] != "" || env["PORT"] == "" {
		t.Errorf("a stranger sees %v", env)
	}
	if d := w.deployments(fork)[0]; d.Message != "m" {
		t.Errorf("%+v", d)
	}
	w.must(w.Delete(ctx, alice, "site"))
	w.settle()
	w.empty("deleted with its previews")
}

// TestRunCommand runs a command once, in a machine of its own with the variables of the app.
func TestRunCommand(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	a := w.made(func(r *api.CreateAppRequest) { r.Env = map[string]string{"NAME": "value"} })
	_, _, _, err := w.RunCommand(ctx, alice, "site", api.AppRunRequest{Command: "env"})
	w.wants("before a deployment", err, api.WrongState)
	w.live(a, "one")
	g, command, end, err := w.RunCommand(ctx, alice, "site", api.AppRunRequest{Command: "env"})
	w.must(err)
	if command.Cmd != "env" || command.Env["NAME"] != "value" || command.TimeoutSeconds != 600 {
		t.Errorf("%+v", command)
	}
	if _, err := g.Stat(ctx, "/srv/", ""); err != nil {
		t.Error(err)
	}
	if _, err := g.Start(ctx, guestapi.ProcessSpec{Shell: command.Cmd, Env: command.Env}); err != nil {
		t.Error(err)
	}
	end()
	w.whole("ended")
}
