package app_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
)

// TestDeploy deploys an app three times: every deployment has a replica that serves, what was live before is
// superseded, and its machine is gone.
// TestNamesOfTheServer refuses names of apps that would take requests from the server.
func TestNamesOfTheServer(t *testing.T) {
	w := newFixture(t)
	for _, name := range []string{"panel", "api"} {
		_, err := w.Create(t.Context(), alice, api.CreateAppRequest{Name: name})
		if api.CodeOf(err) != api.Invalid || !strings.Contains(err.Error(), "host name of this server") {
			t.Errorf("Create(%s) = %v", name, err)
		}
		a := w.made(func(r *api.CreateAppRequest) { r.Name = "site-" + name })
		_, err = w.Update(t.Context(), alice, string(a.ID), api.UpdateAppRequest{Name: &name})
		if api.CodeOf(err) != api.Invalid || !strings.Contains(err.Error(), "host name of this server") {
			t.Errorf("Update(%s) = %v", name, err)
		}
	}
}

// TestHostKeysAreLearned builds from a server over ssh: the app remembers its keys until it has another repository.
func TestHostKeysAreLearned(t *testing.T) {
	const keys = "git.example.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl\n"
	w := newFixture(t)
	a := w.made(func(r *api.CreateAppRequest) { r.GitURL = "ssh://git@git.example.com/site.git" })
	w.builder.result.HostKeys = keys
	w.live(a, "one")
	if got := w.get(a).GitHostKeys; got != keys {
		t.Errorf("the app knows %q", got)
	}
	w.builder.result.HostKeys = strings.Replace(keys, "git.", "other.", 1)
	w.live(a, "two")
	if got := w.get(a).GitHostKeys; got != keys || w.builder.builds[1].Settings.GitHostKeys != keys {
		t.Errorf("the app knows %q, and the build %q", got, w.builder.builds[1].Settings.GitHostKeys)
	}
	other := "ssh://git@git.example.org/site.git"
	_, err := w.Update(t.Context(), alice, string(a.ID), api.UpdateAppRequest{GitURL: &other})
	w.must(err)
	if got := w.get(a).GitHostKeys; got != "" {
		t.Errorf("the app has another repository and knows %q", got)
	}
	bad := "nonsense"
	if err := (&api.UpdateAppRequest{GitHostKeys: &bad}).Validate(); api.CodeOf(err) != api.Invalid ||
		!strings.Contains(err.Error(), "git_host_keys") {
		t.Errorf("Validate() = %v", err)
	}
}

func TestDeploy(t *testing.T) {
	w := newFixture(t)
	a := w.made()
	if a.Status != api.AppCreated || a.URL != "http://site.apps.example.com" ||
		!strings.HasPrefix(a.DeployKey, "ssh-ed25519 ") {
		t.Errorf("%+v", a)
	}
	var all []api.Deployment
	for _, ref := range []string{"one", "two", "three", "four"} {
		all = append(all, w.live(a, ref))
		if got := w.page(a, ""); got != "version "+ref {
			t.Errorf("after %s, the response is %q", ref, got)
		}
		if n := len(w.ready(a)); n != 1 {
			t.Errorf("%d replicas", n)
		}
		w.whole(ref)
	}
	if now := w.get(a); now.Status != api.AppRunning || now.ActiveDeploymentID != all[3].ID || now.Replicas != 1 {
		t.Errorf("%+v", now)
	}
	rows, err := w.Deployments(t.Context(), alice, "site")
	w.must(err)
	var kept []bool
	for _, d := range rows {
		kept = append(kept, d.Kept)
	}
	if want := []bool{false, true, true, false}; len(kept) != 4 || kept[0] != want[0] || kept[1] != want[1] ||
		kept[2] != want[2] || kept[3] != want[3] {
		t.Errorf("kept: %v", kept) // the fixture keeps two
	}
	// What the program prints may be in the log of the deployment or, when it takes requests sooner, in the app's own.
	if log := w.log(a, all[0].ID); !strings.Contains(log, "built one") || !strings.Contains(log, "$ echo $SECRET") {
		t.Errorf("log: %s", log)
	}
	w.must(w.Delete(t.Context(), alice, "site"))
	w.empty("deleted")
}

// TestRoute looks up host names of apps.
func TestRoute(t *testing.T) {
	w := newFixture(t)
	a := w.made()
	ctx := t.Context()
	changed := w.Changed()
	d := w.live(a, "one")
	select {
	case <-changed:
	default:
		t.Error("the channel of Changed is open after a deployment")
	}
	r, err := w.Route(ctx, "SITE.apps.example.com")
	if err != nil || r.App != a.ID || r.Deployment != d.ID || r.Port != 8080 || !r.Machine || r.Idle != time.Hour {
		t.Errorf("%+v, %v", r, err)
	}
	w.live(a, "two")
	if next, err := w.Route(ctx, "site.apps.example.com"); err != nil || next.Generation <= r.Generation ||
		next.Deployment == r.Deployment {
		t.Errorf("%+v, %v", next, err)
	}
	for _, host := range []string{"other.apps.example.com", "apps.example.com", "a.site.apps.example.com",
		"example.com"} {
		_, err := w.Route(ctx, host)
		w.wants(host, err, api.NotFound)
	}
	w.must(w.Delete(ctx, alice, "site"))
	_, err = w.Route(ctx, "site.apps.example.com")
	w.wants("deleted", err, api.NotFound)
}

// TestFailedDeployment deploys what does not build, exits at once, or never listens. The answer says why, what is live
// stays, and nothing is left.
func TestFailedDeployment(t *testing.T) {
	for _, c := range []struct {
		name, start, want string
		fail              error
	}{
		{"build", "", "step 3 failed", api.Errorf(api.Invalid, "step 3 failed")},
		{"exits", "echo last words; exit 3", "the start command exited with code 3", nil},
		{"silent", "sleep 100", "nothing accepted connections on port 8080", nil},
		{"elsewhere", "httpd 9999", "port 8080", nil},
		{"unhealthy", "echo 500 > /srv/status; httpd $PORT", "answered with status 500", nil},
		{"release", "", "release_command: it exited with code 7", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newFixture(t, func(w *fixture) { w.cfg.StartTimeout = time.Second })
			a := w.made(func(r *api.CreateAppRequest) { r.Health = &api.AppHealth{Path: "/"} })
			live := w.live(a, "one")
			w.builder.start, w.builder.fail = c.start, c.fail
			if c.name == "release" {
				_, err := w.Update(t.Context(), alice, "site", api.UpdateAppRequest{ReleaseCommand: new("exit 7")})
				w.must(err)
			}
			if c.name == "silent" || c.name == "elsewhere" {
				_, err := w.Update(t.Context(), alice, "site", api.UpdateAppRequest{Health: &api.AppHealth{}})
				w.must(err)
			}
			d := w.deploy(a, "two")
			if d.Status != api.DeploymentFailed || !strings.Contains(d.Error, c.want) || d.Step == "" {
				t.Errorf("%s at %q: %s; want %q", d.Status, d.Step, d.Error, c.want)
			}
			if c.name == "exits" && !strings.Contains(d.BuildLogs, "last words") {
				t.Errorf("log: %s", d.BuildLogs)
			}
			if now := w.get(a); now.ActiveDeploymentID != live.ID || now.Status != api.AppRunning {
				t.Errorf("%+v", now)
			}
			if got := w.page(a, ""); got != "version one" {
				t.Errorf("response is %q, want that of version one", got)
			}
			w.whole(c.name)
		})
	}
}

// TestRollback goes back twice, and to a deployment that is named.
func TestRollback(t *testing.T) {
	w := newFixture(t)
	a := w.made()
	ctx := t.Context()
	_, err := w.Rollback(ctx, alice, "site", api.RollbackRequest{})
	w.wants("without a deployment", err, api.WrongState)
	one, two, three := w.live(a, "one"), w.live(a, "two"), w.live(a, "three")
	builds := len(w.builder.builds)
	for _, c := range []struct {
		to   api.DeploymentID
		want api.DeploymentID
		page string
	}{{"", two.ID, "two"}, {"", one.ID, "one"}, {three.ID, three.ID, "three"}} {
		d, err := w.Rollback(ctx, alice, "site", api.RollbackRequest{DeploymentID: c.to})
		w.must(err)
		if d.ID != c.want || d.Status != api.DeploymentLive {
			t.Errorf("%+v, want %s", d, c.want)
		}
		if got := w.page(a, ""); got != "version "+c.page {
			t.Errorf("response is %q, want %q", got, "version "+c.page)
		}
		w.must(w.Reconcile(ctx))
		w.whole("rolled back")
	}
	if len(w.builder.builds) != builds {
		t.Error("a rollback has built something")
	}
	_, err = w.Rollback(ctx, alice, "site", api.RollbackRequest{DeploymentID: three.ID})
	w.wants("to what is live", err, api.WrongState)
	_, err = w.Rollback(ctx, alice, "site", api.RollbackRequest{DeploymentID: api.NewDeploymentID()})
	w.wants("to nothing", err, api.NotFound)
	if d := w.deployment(a, two.ID); d.Status != api.DeploymentRolledBack || !d.Kept {
		t.Errorf("%+v", d)
	}
}

// TestQueue deploys while a build is under way: of those that wait only the newest is built.
func TestQueue(t *testing.T) {
	w := newFixture(t)
	a := w.made()
	ctx := t.Context()
	w.builder.block = make(chan struct{})
	w.run()
	var ids []api.DeploymentID
	for _, ref := range []string{"one", "two", "three"} {
		d, err := w.Deploy(ctx, alice, "site", api.DeployRequest{GitRef: ref})
		w.must(err)
		ids = append(ids, d.ID)
		if ref == "one" {
			w.until("build", func() bool { return w.deployment(a, d.ID).Status == api.DeploymentBuilding })
		}
	}
	close(w.builder.block)
	w.until("deployment", func() bool { return w.deployment(a, ids[2]).Status == api.DeploymentLive })
	if s := w.deployment(a, ids[1]).Status; s != api.DeploymentSuperseded {
		t.Errorf("the second is %s", s)
	}
	if s := w.deployment(a, ids[0]).Status; s != api.DeploymentSuperseded {
		t.Errorf("the first is %s", s)
	}
	if len(w.builder.builds) != 2 {
		t.Errorf("%d builds", len(w.builder.builds))
	}
}

// TestCancel cancels a deployment that is being built, and one that waits.
func TestCancel(t *testing.T) {
	w := newFixture(t)
	a := w.made()
	ctx := t.Context()
	w.live(a, "one")
	w.builder.block = make(chan struct{})
	w.run()
	two, err := w.Deploy(ctx, alice, "site", api.DeployRequest{GitRef: "two"})
	w.must(err)
	w.until("build", func() bool { return w.deployment(a, two.ID).Status == api.DeploymentBuilding })
	three, err := w.Deploy(ctx, alice, "site", api.DeployRequest{GitRef: "three"})
	w.must(err)
	for _, id := range []api.DeploymentID{three.ID, two.ID} {
		d, err := w.CancelDeployment(ctx, alice, "site", id)
		if err != nil || d.Status != api.DeploymentFailed || d.Code != api.Canceled {
			t.Errorf("%+v, %v", d, err)
		}
	}
	_, err = w.CancelDeployment(ctx, alice, "site", two.ID)
	w.wants("again", err, api.WrongState)
	if got := w.page(a, ""); got != "version one" {
		t.Errorf("response is %q, want that of version one", got)
	}
	w.whole("canceled")
}

// TestStaticFiles deploys files alone: there is no machine.
func TestStaticFiles(t *testing.T) {
	w := newFixture(t)
	a := w.made()
	w.builder.result = appspec.Result{Framework: "vite",
		Static: &appspec.Static{Dir: "/app/dist", Files: "x", SPA: true}}
	one := w.live(a, "one")
	w.live(a, "two")
	r, err := w.Route(t.Context(), "site.apps.example.com")
	if err != nil || r.Machine || r.Static == nil || !r.Static.SPA {
		t.Errorf("%+v, %v", r, err)
	}
	w.must(w.Wake(t.Context(), a.ID, 1))
	if now := w.get(a); len(w.ready(a)) != 0 || now.Status != api.AppRunning || now.Framework != "vite" {
		t.Errorf("%+v", now)
	}
	if d, err := w.Rollback(t.Context(), alice, "site", api.RollbackRequest{}); err != nil || d.ID != one.ID {
		t.Errorf("%+v, %v", d, err)
	}
	_, _, _, err = w.RunCommand(t.Context(), alice, "site", api.AppRunRequest{Command: "true"})
	w.wants("a command", err, api.WrongState)

	// Two deployments are kept for rollbacks, and none of an app that was deleted.
	w.live(a, "three")
	w.live(a, "four")
	w.must(w.Reconcile(t.Context()))
	if len(w.dropped) != 1 {
		t.Errorf("files of %v were removed, want those of one deployment", w.dropped)
	}
	w.must(w.Delete(t.Context(), alice, "site"))
	if !slices.Contains(w.dropped, one.ID) || len(w.dropped) != 5 {
		t.Errorf("files of %v were removed, want those of all four deployments", w.dropped)
	}
}

// TestIsolation lets another workspace try everything.
func TestIsolation(t *testing.T) {
	w := newFixture(t)
	a := w.made()
	d := w.live(a, "one")
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"get":    func() error { _, err := w.Get(ctx, bob, "site"); return err },
		"update": func() error { _, err := w.Update(ctx, bob, string(a.ID), api.UpdateAppRequest{}); return err },
		"delete": func() error { return w.Delete(ctx, bob, "site") },
		"deploy": func() error { _, err := w.Deploy(ctx, bob, "site", api.DeployRequest{}); return err },
		"list":   func() error { _, err := w.Deployments(ctx, bob, "site"); return err },
		"read":   func() error { _, err := w.Deployment(ctx, bob, "site", d.ID); return err },
		"cancel": func() error { _, err := w.CancelDeployment(ctx, bob, "site", d.ID); return err },
		"roll":   func() error { _, err := w.Rollback(ctx, bob, "site", api.RollbackRequest{}); return err },
		"log": func() error {
			return w.BuildLog(ctx, bob, "site", d.ID, 0, false, func(api.AppLogLine) error { return nil })
		},
		"output": func() error {
			return w.RuntimeLog(ctx, bob, "site", false, func(api.AppOutput) error { return nil })
		},
		"env":   func() error { _, err := w.Env(ctx, bob, "site"); return err },
		"set":   func() error { _, err := w.SetVariable(ctx, bob, "site", "A", api.SetVariableRequest{}); return err },
		"unset": func() error { return w.DeleteVariable(ctx, bob, "site", "A", "") },
		"import": func() error {
			_, err := w.ImportEnv(ctx, bob, "site", api.ImportEnvRequest{Dotenv: "A=1"})
			return err
		},
		"run": func() error {
			_, _, _, err := w.RunCommand(ctx, bob, "site", api.AppRunRequest{Command: "true"})
			return err
		},
		"stats": func() error { _, err := w.Stats(ctx, bob, "site"); return err },
		"preview": func() error {
			_, err := w.CreatePreview(ctx, bob, a.ID, appspec.PullRequest{Number: 1})
			return err
		},
	} {
		w.wants(name, call(), api.NotFound)
	}
	if list, err := w.List(ctx, bob); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	_, err := w.Create(ctx, bob, api.CreateAppRequest{Name: "site"})
	w.wants("the same name", err, api.Conflict)
	other, err := w.Create(ctx, bob, api.CreateAppRequest{Name: "other"})
	w.must(err)
	_, err = w.Deployment(ctx, alice, "site", api.NewDeploymentID())
	w.wants("no deployment", err, api.NotFound)
	_, err = w.Deployment(ctx, bob, string(other.ID), d.ID)
	w.wants("another app's deployment", err, api.NotFound)
	boxes, err := w.boxes.List(ctx, alice, api.SandboxFilter{})
	if err != nil || len(boxes.Sandboxes) != 0 {
		t.Errorf("users see the machines of apps: %v, %v", boxes, err)
	}
}
