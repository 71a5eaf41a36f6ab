package httpapi_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/httpapi"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/appapi"
)

// fakeApps has one app of the workspace "ours", and remembers the calls.
type fakeApps struct {
	dep   api.DeploymentID
	lines []string // of the log of the deployment
	fail  error    // what the log ends with
	guest guestapi.Guest

	mu    sync.Mutex
	calls []string // guarded by mu
	end   int      // how many commands were ended; guarded by mu
}

func (f *fakeApps) on(p auth.Principal, app, call string, args ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.Workspace != "ours" || app != "shop" && app != "appaaaaaaaaaaaaaaaaaaaa" {
		return api.Errorf(api.NotFound, "app %s not found", app)
	}
	f.calls = append(f.calls, strings.TrimSpace(call+" "+fmt.Sprint(args...)))
	return nil
}

// last returns the last call.
func (f *fakeApps) last() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.calls) == 0 {
		return ""
	}
	return f.calls[len(f.calls)-1]
}

func theApp() api.App {
	return api.App{
		ID: "appaaaaaaaaaaaaaaaaaaaa", Name: "shop", Workspace: "ours",
		Env: map[string]string{"GREETING": "hello", "PASSWORD": api.MaskedValue},
	}
}

func (f *fakeApps) Create(_ context.Context, p auth.Principal, req api.CreateAppRequest) (api.App, error) {
	return theApp(), f.on(p, "shop", "create", req.Name)
}

func (f *fakeApps) List(_ context.Context, p auth.Principal) ([]api.App, error) {
	if f.on(p, "shop", "list") != nil {
		return nil, nil
	}
	return []api.App{theApp()}, nil
}

func (f *fakeApps) Get(_ context.Context, p auth.Principal, app string) (api.App, error) {
	return theApp(), f.on(p, app, "get")
}

func (f *fakeApps) Update(
	_ context.Context,
	p auth.Principal,
	app string,
	req api.UpdateAppRequest,
) (api.App, error) {
	return theApp(), f.on(p, app, "update", req.Port != nil && *req.Port == 8000)
}

func (f *fakeApps) Delete(_ context.Context, p auth.Principal, app string) error {
	return f.on(p, app, "delete")
}

func (f *fakeApps) Stats(_ context.Context, p auth.Principal, app string) (api.AppStats, error) {
	return api.AppStats{Requests: 7}, f.on(p, app, "stats")
}

func (f *fakeApps) deployment() api.Deployment {
	return api.Deployment{ID: f.dep, Status: api.DeploymentQueued}
}

func (f *fakeApps) Deploy(
	_ context.Context,
	p auth.Principal,
	app string,
	req api.DeployRequest,
) (api.Deployment, error) {
	return f.deployment(), f.on(p, app, "deploy", req.GitRef, req.Upload)
}

func (f *fakeApps) Deployments(_ context.Context, p auth.Principal, app string) ([]api.Deployment, error) {
	return nil, f.on(p, app, "deployments")
}

func (f *fakeApps) one(p auth.Principal, app string, id api.DeploymentID, call string) (api.Deployment, error) {
	err := f.on(p, app, call)
	if err == nil && id != f.dep {
		err = api.Errorf(api.NotFound, "deployment %s not found", id)
	}
	return f.deployment(), err
}

func (f *fakeApps) Deployment(
	_ context.Context,
	p auth.Principal,
	app string,
	id api.DeploymentID,
) (api.Deployment, error) {
	return f.one(p, app, id, "deployment")
}

func (f *fakeApps) CancelDeployment(
	_ context.Context,
	p auth.Principal,
	app string,
	id api.DeploymentID,
) (api.Deployment, error) {
	return f.one(p, app, id, "cancel")
}

func (f *fakeApps) Rollback(
	_ context.Context,
	p auth.Principal,
	app string,
	req api.RollbackRequest,
) (api.Deployment, error) {
	return f.deployment(), f.on(p, app, "rollback", req.DeploymentID)
}

func (f *fakeApps) BuildLog(
	_ context.Context,
	p auth.Principal,
	app string,
	_ api.DeploymentID,
	after int64,
	follow bool,
	yield func(api.AppLogLine) error,
) error {
	if err := f.on(p, app, "build log", after, " ", follow); err != nil {
		return err
	}
	for i, line := range f.lines {
		if int64(i) < after {
			continue
		}
		if err := yield(api.AppLogLine{Seq: int64(i + 1), Level: "info", Step: "build", Line: line}); err != nil {
			return err
		}
	}
	return f.fail
}

func (f *fakeApps) RuntimeLog(
	_ context.Context,
	p auth.Principal,
	app string,
	follow bool,
	yield func(api.AppOutput) error,
) error {
	if err := f.on(p, app, "runtime log", follow); err != nil {
		return err
	}
	return yield(api.AppOutput{SandboxID: "sbx", Stream: "stdout", Line: "listening"})
}

func (f *fakeApps) Env(_ context.Context, p auth.Principal, app string) (api.AppEnv, error) {
	return api.AppEnv{Env: []api.AppVariable{
		{Key: "GREETING", Value: "hello", Scope: api.EnvAll},
		{Key: "PASSWORD", Value: "sesame", Secret: true, Scope: api.EnvAll},
	}}, f.on(p, app, "env")
}

func (f *fakeApps) SetVariable(
	_ context.Context,
	p auth.Principal,
	app, key string,
	req api.SetVariableRequest,
) (api.SetVariableResponse, error) {
	err := f.on(p, app, "set", key, "=", req.Value)
	return api.SetVariableResponse{Key: key, Secret: req.Secret, Scope: req.Scope}, err
}

func (f *fakeApps) DeleteVariable(
	_ context.Context,
	p auth.Principal,
	app, key string,
	scope api.EnvScope,
) error {
	return f.on(p, app, "unset", key, " ", scope)
}

func (f *fakeApps) ImportEnv(
	_ context.Context,
	p auth.Principal,
	app string,
	req api.ImportEnvRequest,
) (api.ImportEnvResponse, error) {
	return api.ImportEnvResponse{Imported: 1, Total: 3}, f.on(p, app, "import", req.Dotenv)
}

func (f *fakeApps) RunCommand(
	_ context.Context,
	p auth.Principal,
	app string,
	req api.AppRunRequest,
) (guestapi.Guest, api.ExecRequest, func(), error) {
	ended := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.end++
	}
	return f.guest, api.ExecRequest{Cmd: req.Command}, ended, f.on(p, app, "run", req.Command)
}

func (f *fakeApps) Domains(_ context.Context, p auth.Principal, app string) (api.AppDomains, error) {
	return api.AppDomains{}, f.on(p, app, "domains")
}

func (f *fakeApps) AddDomain(
	_ context.Context,
	p auth.Principal,
	app string,
	req api.AddDomainRequest,
) (api.AppDomain, error) {
	return api.AppDomain{Domain: req.Domain}, f.on(p, app, "add", req.Domain)
}

func (f *fakeApps) Domain(_ context.Context, p auth.Principal, app, domain string) (api.AppDomain, error) {
	return api.AppDomain{Domain: domain}, f.on(p, app, "domain", domain)
}

func (f *fakeApps) DeleteDomain(_ context.Context, p auth.Principal, app, domain string) error {
	return f.on(p, app, "delete domain", domain)
}

func (f *fakeApps) Upload(_ context.Context, p auth.Principal, app api.App, r io.Reader) (api.AppUpload, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return api.AppUpload{}, err
	}
	return api.AppUpload{ID: "upl1", Bytes: int64(len(data))}, f.on(p, app.Name, "upload")
}

func (f *fakeApps) ForwardApp(
	w http.ResponseWriter,
	r *http.Request,
	app api.App,
	prefix string,
	_ func(http.ResponseWriter, *http.Request, *api.Error),
) {
	key := r.Header.Get("Authorization") + r.URL.Query().Get("access_token")
	fmt.Fprintf(w, "%s %s %s?%s below %s key %q", app.Name, r.Method, r.URL.Path, r.URL.RawQuery, prefix, key)
}

func (f *fakeApps) Webhook(_ context.Context, p auth.Principal, app string) (api.AppWebhook, error) {
	return api.AppWebhook{Secret: "whsec"}, f.on(p, app, "webhook")
}

func (f *fakeApps) PreviewRepos(_ context.Context, p auth.Principal) (api.PreviewRepos, error) {
	return api.PreviewRepos{}, f.on(p, "shop", "preview repos")
}

func (f *fakeApps) EnablePreviewRepo(
	_ context.Context,
	p auth.Principal,
	repo api.PreviewRepo,
) (api.PreviewRepo, error) {
	return repo, f.on(p, "shop", "enable", repo.GitHubRepoID)
}

func (f *fakeApps) DisablePreviewRepo(_ context.Context, p auth.Principal, repo int64) error {
	return f.on(p, "shop", "disable", repo)
}

func (f *fakeApps) PreviewEnv(ctx context.Context, p auth.Principal, repo int64) (api.AppEnv, error) {
	env, _ := f.Env(ctx, p, "shop")
	return env, f.on(p, "shop", "preview env", repo)
}

func (f *fakeApps) SetPreviewVariable(
	_ context.Context,
	p auth.Principal,
	repo int64,
	key string,
	req api.SetVariableRequest,
) (api.SetVariableResponse, error) {
	return api.SetVariableResponse{Key: key}, f.on(p, "shop", "preview set", repo, key, "=", req.Value)
}

func (f *fakeApps) DeletePreviewVariable(_ context.Context, p auth.Principal, repo int64, key string) error {
	return f.on(p, "shop", "preview unset", repo, key)
}

func (f *fakeApps) ImportPreviewEnv(
	_ context.Context,
	p auth.Principal,
	repo int64,
	req api.ImportEnvRequest,
) (api.ImportEnvResponse, error) {
	return api.ImportEnvResponse{Imported: 1}, f.on(p, "shop", "preview import", repo, req.Dotenv)
}

func withApps(f *fakeApps) func(*httpapi.Deps) {
	f.dep = api.NewDeploymentID()
	return func(d *httpapi.Deps) {
		d.Apps = appapi.API{Apps: f, Domains: f, Uploads: f, Edge: f, Hooks: f}
	}
}

func TestApps(t *testing.T) {
	f := &fakeApps{}
	w := newFixture(t, withApps(f))
	const path = "/v1/apps/shop"
	dep := path + "/deploys/" + string(f.dep)
	for _, tt := range []struct {
		method, path, body string
		status             int
		call, want         string // the call of the service, and part of the response
	}{
		{"POST", "/v1/apps", `{"name":"shop","port":3000}`, 201, "create shop", `"id":"appaaaaaaaaaaaaaaaaaaaa"`},
		{"GET", "/v1/apps", "", 200, "list", `[{"id":"app`},
		{"GET", path, "", 200, "get", `"name":"shop"`},
		{"GET", "/v1/apps/appaaaaaaaaaaaaaaaaaaaa", "", 200, "get", `"name":"shop"`},
		{"PATCH", path, `{"port":8000}`, 200, "update true", `"name"`},
		{"GET", path + "/stats", "", 200, "stats", `"requests":7`},
		{"POST", path + "/uploads", "some files", 201, "upload", `"bytes":10`},
		{"POST", path + "/deploys", "", 202, "deploy", `"status":"queued"`},
		{"POST", path + "/deploys", `{"git_ref":"v1"}`, 202, "deploy v1", `"status":"queued"`},
		{"GET", path + "/deploys", "", 200, "deployments", `[]`},
		{"GET", dep, "", 200, "deployment", string(f.dep)},
		{"POST", dep + "/cancel", "", 200, "cancel", string(f.dep)},
		{"POST", path + "/rollback", "", 200, "rollback", string(f.dep)},
		{"POST", path + "/rollback", `{"deployment_id":"` + string(f.dep) + `"}`, 200, "rollback " + string(f.dep), ""},
		{"GET", path + "/runtime-logs", "", 200, "runtime log false", "listening\n"},
		{"GET", path + "/runtime-logs?follow=1", "", 200, "runtime log true", "data: listening\n\nevent: done"},
		{"GET", path + "/runtime-logs?format=json", "", 200, "runtime log false", `"stream":"stdout"`},
		{"GET", path + "/env", "", 200, "env", `"value":"hello"`},
		{"PUT", path + "/env/A", `{"value":"b","scope":"preview"}`, 200, "set A=b", `"scope":"preview"`},
		{"DELETE", path + "/env/A?scope=preview", "", 204, "unset A preview", ""},
		{"POST", path + "/env/import", `{"dotenv":"A=1"}`, 200, "import A=1", `{"imported":1,"total":3}`},
		{"GET", path + "/domains", "", 200, "domains", `{"domains":[]}`},
		{"POST", path + "/domains", `{"domain":"www.example.com"}`, 201, "add www.example.com", `"domain"`},
		{"GET", path + "/domains/WWW.example.com", "", 200, "domain www.example.com", `"domain"`},
		{"DELETE", path + "/domains/www.example.com", "", 204, "delete domain www.example.com", ""},
		{"POST", path + "/webhook", "", 200, "webhook", `"secret":"whsec"`},
		{"GET", "/v1/preview-repos", "", 200, "preview repos", `{"repos":[]}`},
		{"POST", "/v1/preview-repos", `{"github_repo_id":7,"repo_full_name":"a/b"}`, 200, "enable 7", `"enabled":true`},
		{"DELETE", "/v1/preview-repos/7", "", 204, "disable 7", ""},
		{"GET", "/v1/repos/7/preview-env", "", 200, "preview env 7", `"value":"hello"`},
		{"PUT", "/v1/repos/7/preview-env/A", `{"value":"b"}`, 200, "preview set 7A=b", `"key":"A"`},
		{"DELETE", "/v1/repos/7/preview-env/A", "", 204, "preview unset 7A", ""},
		{"POST", "/v1/repos/7/preview-env/import", `{"dotenv":"A=1"}`, 200, "preview import 7A=1", `"imported":1`},
		{"DELETE", path, "", 204, "delete", ""},
	} {
		a := w.do(tt.method, tt.path, tt.body)
		if a.status != tt.status || f.last() != tt.call || !strings.Contains(a.body, tt.want) {
			t.Errorf("%s %s: got %d %s after %q, want %d with %s after %q",
				tt.method, tt.path, a.status, a.body, f.last(), tt.status, tt.want, tt.call)
		}
	}
}

// TestAppRequestsThatAreWrong checks that bad input is refused before the service is called.
func TestAppRequestsThatAreWrong(t *testing.T) {
	f := &fakeApps{}
	w := newFixture(t, withApps(f))
	dep := "/v1/apps/shop/deploys/" + string(f.dep)
	for _, tt := range []struct {
		method, path, body string
		code               api.Code
		field              string
	}{
		{"POST", "/v1/apps", `{"name":"A b"}`, api.Invalid, "name"},
		{"PATCH", "/v1/apps/shop", `{"prot":1}`, api.Invalid, "prot"},
		{"GET", "/v1/apps/A.b", "", api.NotFound, ""},
		{"GET", "/v1/apps/shop/deploys/dpl", "", api.NotFound, ""},
		{"POST", "/v1/apps/shop/deploys", `{"git_ref":"-x"}`, api.Invalid, "git_ref"},
		{"GET", dep + "/logs?after=x", "", api.Invalid, "after"},
		{"GET", dep + "/logs?format=xml", "", api.Invalid, "format"},
		{"GET", "/v1/apps/shop/runtime-logs?format=xml", "", api.Invalid, "format"},
		{"POST", "/v1/apps/shop/run", `{}`, api.Invalid, "command"},
		{"PUT", "/v1/apps/shop/env/A-B", `{"value":""}`, api.Invalid, "env"},
		{"PUT", "/v1/apps/shop/env/A", `{"value":"","scope":"x"}`, api.Invalid, "scope"},
		{"DELETE", "/v1/apps/shop/env/A?scope=x", "", api.Invalid, "scope"},
		{"POST", "/v1/apps/shop/domains", `{"domain":"http://x"}`, api.Invalid, "domain"},
		{"GET", "/v1/apps/shop/domains/x", "", api.NotFound, ""},
		{"GET", "/v1/repos/x/preview-env", "", api.NotFound, ""},
		{"DELETE", "/v1/preview-repos/-1", "", api.NotFound, ""},
	} {
		e := w.do(tt.method, tt.path, tt.body).failed(t)
		if e.Code != tt.code || tt.field != "" && e.Details["field"] != tt.field {
			t.Errorf("%s %s %s: got %s %s %v, want %s of %q",
				tt.method, tt.path, tt.body, e.Code, e.Message, e.Details, tt.code, tt.field)
		}
	}
	if f.last() != "" {
		t.Errorf("the service was called: %s", f.last())
	}
}

// TestDeployLogs checks the stream that published clients read, and that it can be resumed.
func TestDeployLogs(t *testing.T) {
	f := &fakeApps{lines: []string{"npm ci", "end", `{"error":"x"}`, "a event: done b", "c\rd\u0085e", "last"}}
	w := newFixture(t, withApps(f))
	path := "/v1/apps/shop/deploys/" + string(f.dep) + "/logs"
	a := w.do("GET", path, "")
	want := "id: 1\ndata: npm ci\n\n" +
		"id: 2\ndata: {\"line\":\"end\"}\n\n" +
		"id: 3\ndata: {\"line\":\"{\\\"error\\\":\\\"x\\\"}\"}\n\n" +
		"id: 4\ndata: {\"line\":\"a event\\u003a done b\"}\n\n" +
		"id: 5\ndata: {\"line\":\"c\\rd\\u0085e\"}\n\n" +
		"id: 6\ndata: last\n\n" +
		"event: done\ndata: end\n\n"
	if a.status != 200 || a.body != want || a.header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
		t.Errorf("got %d %q, want %q", a.status, a.body, want)
	}
	if f.last() != "build log 0 true" {
		t.Errorf("got the call %s", f.last())
	}
	resume := func(r *http.Request) { r.Header.Set("Last-Event-ID", "5") }
	if a = w.do("GET", path, "", resume); a.body != "id: 6\ndata: last\n\nevent: done\ndata: end\n\n" {
		t.Errorf("resumed: got %q", a.body)
	}
	a = w.do("GET", path+"?after=5&follow=0&format=json", "")
	if !strings.HasPrefix(a.body, "id: 6\nevent: line\ndata: {\"seq\":6,") || f.last() != "build log 5 false" {
		t.Errorf("as JSON: got %q after %s", a.body, f.last())
	}
	f.fail = api.Errorf(api.Unavailable, "the store is away")
	a = w.do("GET", path+"?after=6", "")
	if !strings.Contains(a.body, "event: error") || strings.Contains(a.body, "event: done") {
		t.Errorf("a log that fails: got %q, want an error and no end", a.body)
	}
	other := "/v1/apps/shop/deploys/" + string(api.NewDeploymentID()) + "/logs"
	if e := w.do("GET", other, "").failed(t); e.Code != api.NotFound {
		t.Errorf("unknown deployment: got %+v, want not_found", e)
	}
}

// TestAppVariables checks who sees the values of variables: those of secrets no caller does, others only callers that
// may run commands.
func TestAppVariables(t *testing.T) {
	w := newFixture(t, withApps(&fakeApps{}))
	for _, tt := range []struct {
		path, key string
		value     bool
	}{
		{"/v1/apps", keyMember, true}, {"/v1/apps/shop", keyMember, true}, {"/v1/apps/shop/env", keyMember, true},
		{"/v1/apps", keyViewer, false}, {"/v1/apps/shop", keyViewer, false}, {"/v1/apps/shop/env", keyViewer, false},
		{"/v1/repos/7/preview-env", keyMember, true}, {"/v1/repos/7/preview-env", keyViewer, false},
	} {
		a := w.do("GET", tt.path, "", as(tt.key))
		if a.status != 200 || strings.Contains(a.body, "hello") != tt.value || strings.Contains(a.body, "sesame") ||
			!strings.Contains(a.body, "GREETING") {
			t.Errorf("%s with %s: got %d %s, values wanted: %t", tt.path, tt.key, a.status, a.body, tt.value)
		}
	}
}

// TestAppScopes checks what a viewer may not do.
func TestAppScopes(t *testing.T) {
	f := &fakeApps{}
	w := newFixture(t, withApps(f))
	for _, rt := range httpapi.Table() {
		if !strings.Contains(rt.Pattern, "{app}") || rt.Method == "GET" {
			continue
		}
		e := w.do(rt.Method, strings.NewReplacer("{app}", "shop", "{path...}", "x").Replace(rt.Pattern), "",
			as(keyViewer)).failed(t)
		if e.Code != api.Forbidden {
			t.Errorf("a viewer: %s %s: got %+v, want forbidden", rt.Method, rt.Pattern, e)
		}
	}
	if f.last() != "" {
		t.Errorf("the service was called: %s", f.last())
	}
}

// TestAppsOfOthers checks that strangers find no app on any route.
func TestAppsOfOthers(t *testing.T) {
	f := &fakeApps{}
	w := newFixture(t, withApps(f))
	bodies := map[string]string{
		"env/{key}": `{"value":"x"}`, "import": `{"dotenv":"A=1"}`, "domains": `{"domain":"a.example.com"}`,
		"run": `{"command":"id"}`,
	}
	for _, rt := range httpapi.Table() {
		if !strings.Contains(rt.Pattern, "{app}") {
			continue
		}
		body := ""
		for end, b := range bodies {
			if strings.HasSuffix(rt.Pattern, end) && rt.JSON {
				body = b
			}
		}
		method := rt.Method
		if method == "" {
			method = "GET"
		}
		for _, app := range []string{"shop", string(api.NewAppID()), "a.b", "..%2f..%2fetc"} {
			path := strings.NewReplacer("{app}", app, "{deployment}", string(f.dep), "{domain}", "a.example.com",
				"{key}", "A", "{path...}", "x").Replace(rt.Pattern)
			if e := w.do(method, path, body, as(keyStranger)).failed(t); e.Code != api.NotFound {
				t.Errorf("%s %s: got %s %s, want not_found", method, path, e.Code, e.Message)
			}
		}
	}
}

// TestNoApps checks that a server without apps, or without a part of them, says so.
func TestNoApps(t *testing.T) {
	none, some := newFixture(t), newFixture(t, func(d *httpapi.Deps) { d.Apps = appapi.API{Apps: &fakeApps{}} })
	for _, tt := range []struct {
		w            *fixture
		method, path string
	}{
		{none, "GET", "/v1/apps"}, {none, "GET", "/v1/apps/shop"}, {none, "GET", "/v1/preview-repos"},
		{none, "GET", "/v1/apps/shop/proxy/"}, {some, "GET", "/v1/apps/shop/domains"},
		{some, "GET", "/v1/preview-repos"}, {some, "GET", "/v1/apps/shop/proxy/"},
		{some, "POST", "/v1/apps/shop/uploads"},
	} {
		if e := tt.w.do(tt.method, tt.path, "").failed(t); e.Code != api.Unsupported || e.Message == "" {
			t.Errorf("%s: got %+v, want unsupported", tt.path, e)
		}
	}
}

// TestAppRun checks that the output of a command is streamed, and that its machine is removed.
func TestAppRun(t *testing.T) {
	f := &fakeApps{}
	w := newFixture(t, withApps(f))
	box, _ := w.create()
	var err error
	if f.guest, err = w.boxes.Guest(t.Context(), principal, box); err != nil {
		t.Fatal(err)
	}
	a := w.do("POST", "/v1/apps/shop/run", `{"command":"echo hi"}`)
	if a.status != 200 || f.last() != "run echo hi" || !strings.Contains(a.body, "event: exit") {
		t.Errorf("got %d %s after %s, want the events of a command", a.status, a.body, f.last())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.end != 1 {
		t.Errorf("the machine was removed %d times, want once", f.end)
	}
}

// TestAppProxy checks what an app gets of a request: its own path, and no key.
func TestAppProxy(t *testing.T) {
	w := newFixture(t, withApps(&fakeApps{}))
	for path, want := range map[string]string{
		"":                         `shop GET /? below /v1/apps/shop/proxy key ""`,
		"a/b?x=1":                  `shop GET /a/b?x=1 below /v1/apps/shop/proxy key ""`,
		"//a?access_token=k&y=2":   `shop GET ///a?y=2 below /v1/apps/shop/proxy key ""`,
		"a%2Fb":                    `shop GET /a/b? below /v1/apps/shop/proxy key ""`,
		"sandboxes/x/proxy/80/etc": `shop GET /sandboxes/x/proxy/80/etc? below /v1/apps/shop/proxy key ""`,
	} {
		if a := w.do("GET", "/v1/apps/shop/proxy/"+path, ""); a.status != 200 || a.body != want {
			t.Errorf("%s: got %d %s, want %s", path, a.status, a.body, want)
		}
	}
	if e := w.do("GET", "/v1/apps/shop/proxy", "").failed(t); e.Code != api.NotFound {
		t.Errorf("without a slash: got %+v, want not_found", e)
	}
}

// TestAppsAreRecorded checks what the audit log says of calls on apps.
func TestAppsAreRecorded(t *testing.T) {
	w := newFixture(t, withApps(&fakeApps{}))
	w.do("POST", "/v1/apps", `{"name":"shop"}`)
	w.do("PUT", "/v1/apps/shop/env/PASSWORD", `{"value":"sesame","secret":true}`)
	w.do("GET", "/v1/apps/shop/env", "")
	all := w.entries("order=asc", 2)
	if len(all) != 2 || all[0].Action != "POST /v1/apps" || all[0].Target != "appaaaaaaaaaaaaaaaaaaaa" ||
		all[1].Action != "PUT /v1/apps/{app}/env/{key}" || all[1].Target != "shop" {
		t.Errorf("got entries %+v, want a create and a change of a variable", all)
	}
}
