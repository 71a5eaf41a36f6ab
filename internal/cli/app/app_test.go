package app_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/app"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

// server has apps by name, and keeps the calls.
type server struct {
	*httptest.Server

	mu      sync.Mutex
	apps    map[string]api.App // by name
	calls   []string
	uploads [][]string     // names in the archives
	status  string         // of deployments
	cut     int            // how many streams of logs break off
	lines   []string       // of logs
	failure *api.Error     // of the next call that changes something
	after   []string       // queries of streams
	stdout  map[string]any // event of a command
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{apps: map[string]api.App{}, status: "live", lines: []string{"npm ci", "ready"}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *server) find(name string) (api.App, bool) {
	for _, a := range s.apps {
		if a.Name == name || string(a.ID) == name {
			return a, true
		}
	}
	return api.App{}, false
}

func fail(w http.ResponseWriter, e *api.Error) {
	w.WriteHeader(e.Code.Info().Status)
	_ = json.NewEncoder(w).Encode(e)
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/apps"), "/")
	name, rest := "", ""
	if len(parts) > 1 {
		name, rest = parts[1], strings.Join(parts[2:], "/")
	}
	if rest == "uploads" {
		s.upload(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	s.calls = append(s.calls, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+string(body)))
	found, ok := s.find(name)
	switch {
	case name == "" && r.Method == http.MethodPost:
		var req api.CreateAppRequest
		_ = json.Unmarshal(body, &req)
		if s.failure != nil {
			fail(w, s.failure)
			return
		}
		a := api.App{ID: api.NewAppID(), Name: req.Name, Status: api.AppCreated, URL: "http://" + req.Name + ".test"}
		s.apps[req.Name] = a
		_ = json.NewEncoder(w).Encode(a)
	case name == "":
		all := []api.App{}
		for _, a := range s.apps {
			all = append(all, a)
		}
		_ = json.NewEncoder(w).Encode(all)
	case !ok:
		fail(w, api.Errorf(api.NotFound, "app %s not found", name))
	case rest == "":
		_ = json.NewEncoder(w).Encode(found)
	case strings.HasSuffix(rest, "/logs"):
		s.logs(w, r)
	case rest == "run":
		for name, data := range s.stdout {
			text, _ := json.Marshal(data)
			fmt.Fprintf(w, "event: %s\ndata: %s\n\n", name, text)
		}
	default:
		s.reply(w, rest)
	}
}

func (s *server) reply(w http.ResponseWriter, rest string) {
	d := api.Deployment{ID: "dpl1", Number: 3, Status: api.DeploymentStatus(s.status), Error: "it does not listen"}
	if s.status == "failed" {
		d.Code, d.Step = api.Timeout, "health check"
	}
	var out any = d
	switch rest {
	case "deploys":
		out = any([]api.Deployment{d})
		if strings.HasPrefix(s.calls[len(s.calls)-1], "POST") {
			out = d
		}
	case "env":
		out = api.AppEnv{Env: []api.AppVariable{{Key: "A", Value: strings.Repeat("x", 200), Scope: api.EnvAll}}}
	case "env/import":
		out = api.ImportEnvResponse{Imported: 2, Total: 3}
	case "webhook":
		out = api.AppWebhook{URL: "http://hook", Secret: "whsec"}
	case "stats":
		out = api.AppStats{Requests: 12, Statuses: map[string]int64{"2xx": 12}}
	case "runtime-logs":
		fmt.Fprint(w, "event: line\ndata: {\"line\":\"listening\"}\n\nevent: done\ndata: end\n\n")
		return
	case "domains", "domains/www.example.com":
		domain := api.AppDomain{
			Domain: "www.example.com", Status: api.DomainPending,
			Records: []api.DomainRecord{{Type: "TXT", Name: "_pandastack.www.example.com", Value: "token"}},
		}
		out = any(api.AppDomains{Domains: []api.AppDomain{domain}})
		if !strings.HasPrefix(s.calls[len(s.calls)-1], "GET") || rest != "domains" {
			out = domain
		}
	}
	_ = json.NewEncoder(w).Encode(out)
}

func (s *server) logs(w http.ResponseWriter, r *http.Request) {
	s.after = append(s.after, r.URL.Query().Get("after"))
	for i, line := range s.lines {
		if after := r.URL.Query().Get("after"); after >= fmt.Sprint(i+1) {
			continue
		}
		data, _ := json.Marshal(api.AppLogLine{Seq: int64(i + 1), Step: "build", Line: line})
		fmt.Fprintf(w, "id: %d\nevent: line\ndata: %s\n\n", i+1, data)
		if s.cut > 0 {
			s.cut--
			return
		}
	}
	fmt.Fprint(w, "event: done\ndata: end\n\n")
}

func (s *server) upload(w http.ResponseWriter, r *http.Request) {
	s.calls = append(s.calls, "POST "+r.URL.Path)
	var names []string
	plain, err := gzip.NewReader(r.Body)
	for in := tar.NewReader(plain); err == nil; {
		var h *tar.Header
		if h, err = in.Next(); err == nil {
			names = append(names, h.Name)
		}
	}
	if !errors.Is(err, io.EOF) {
		fail(w, api.Errorf(api.Invalid, "archive: %v", err))
		return
	}
	s.uploads = append(s.uploads, names)
	_ = json.NewEncoder(w).Encode(api.AppUpload{ID: "upl1"})
}

// taken returns the calls since it was last called, with ids of apps as ID.
func (s *server) taken() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.calls
	s.calls = nil
	for i := range out {
		for _, a := range s.apps {
			out[i] = strings.ReplaceAll(out[i], string(a.ID), "ID")
		}
	}
	return out
}

// run runs a command.
func (s *server) run(t *testing.T, asJSON bool, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	f := &cmdutil.Factory{JSON: asJSON, Stdin: strings.NewReader("A=1\n"), Stdout: &out, Stderr: &errs,
		Dial: func() (*client.Client, error) { return client.New(s.URL, "pds_test") }}
	c := &cobra.Command{Use: "pandastack", SilenceUsage: true, SilenceErrors: true}
	c.AddCommand(app.Command(f), app.Deploy(f))
	c.SetArgs(args)
	err = c.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

// project makes a directory with files.
func project(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "My Shop")
	for name, text := range files {
		at := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		if err = errors.Join(err, os.WriteFile(at, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestDeploy checks the first deployment of a directory, and that the second one finds its app.
func TestDeploy(t *testing.T) {
	s := newServer(t)
	dir := project(t, map[string]string{"index.js": "x", ".env": "A=1", ".gitignore": "x.log\n", "x.log": "x"})
	out, errs, err := s.run(t, false, "deploy", dir, "--port", "8080", "-e", "LEVEL=debug")
	if err != nil || out != "http://my-shop.test\n" {
		t.Fatalf("got %q %v, want the URL; %s", out, err, errs)
	}
	want := []string{
		"GET /v1/apps/my-shop", `POST /v1/apps {"name":"my-shop","port":8080,"env":{"LEVEL":"debug"}}`,
		"POST /v1/apps/ID/uploads", `POST /v1/apps/ID/deploys {"upload":"upl1"}`,
		"GET /v1/apps/my-shop/deploys/dpl1/logs", "GET /v1/apps/my-shop/deploys/dpl1", "GET /v1/apps/my-shop",
	}
	if got := s.taken(); !slices.Equal(got, want) {
		t.Errorf("calls:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if names := s.uploads[0]; !slices.Equal(names, []string{".gitignore", "index.js"}) {
		t.Errorf("sent %q", names)
	}
	for _, part := range []string{"created app my-shop", "not sent: .env", "sending 2 files", "s build", "npm ci"} {
		if !strings.Contains(errs, part) {
			t.Errorf("the messages lack %q:\n%s", part, errs)
		}
	}
	if _, _, err := s.run(t, false, "deploy", dir, "--no-cache", "-e", "LEVEL=info"); err != nil {
		t.Fatal(err)
	}
	got := s.taken()
	if got[0] != "GET /v1/apps/ID" || !slices.Contains(got, `PUT /v1/apps/ID/env/LEVEL {"value":"info"}`) ||
		!slices.Contains(got, `POST /v1/apps/ID/deploys {"upload":"upl1","no_cache":true}`) {
		t.Errorf("second deployment: calls %q", got)
	}
	if names := s.uploads[1]; len(names) != 2 {
		t.Errorf("second deployment: sent %q", names)
	}
}

// TestWhichApp checks which app a directory is deployed to.
func TestWhichApp(t *testing.T) {
	s := newServer(t)
	named := project(t, map[string]string{"a": "x", "pandastack.json": "{\n// comment\n\"name\": \"web\"}"})
	for _, tt := range []struct {
		dir  string
		args []string
		app  string // that is deployed
		err  string
	}{
		{named, nil, "web", ""},
		{named, []string{"--app", "other"}, "other", ""},
		{project(t, map[string]string{"a": "x"}), nil, "my-shop", ""},
		{project(t, map[string]string{"a": "x"}), nil, "", "app my-shop exists: 'pandastack deploy --app my-shop'"},
		{project(t, map[string]string{"a": "x"}), []string{"--app", "my-shop"}, "my-shop", ""},
		{project(t, map[string]string{"a": "x"}), []string{"--app", "My Shop"}, "", "name:"},
		{project(t, map[string]string{"a": "x"}), []string{"--app", string(api.NewAppID())}, "", "does not exist"},
		{project(t, map[string]string{"a": "x", "pandastack.json": "{"}), nil, "", "pandastack.json cannot be read"},
		{project(t, map[string]string{".env": "x"}), nil, "", "no files to deploy"},
		{filepath.Join(named, "a"), nil, "", "is a file"},
		{filepath.Join(named, "none"), nil, "", "no such file"},
	} {
		s.taken()
		_, _, err := s.run(t, false, append([]string{"deploy", tt.dir}, tt.args...)...)
		calls := strings.Join(s.taken(), "\n")
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(calls, "/uploads") {
				t.Errorf("%s %q: got %v, want %q and no upload:\n%s", tt.dir, tt.args, err, tt.err, calls)
			}
			continue
		}
		if err != nil || !strings.Contains(calls, "GET /v1/apps/"+tt.app+"/deploys/") {
			t.Errorf("%s %q: %v after\n%s\nwant a deployment of %s", tt.dir, tt.args, err, calls, tt.app)
		}
	}
}

// TestDeploymentThatFails checks the error of a deployment: where and why it failed.
func TestDeploymentThatFails(t *testing.T) {
	s := newServer(t)
	s.status = "failed"
	_, errs, err := s.run(t, false, "deploy", project(t, map[string]string{"a": "x"}))
	if api.CodeOf(err) != api.Timeout || err.Error() != "deployment 3 failed at health check: it does not listen" {
		t.Errorf("got %v; %s", err, errs)
	}
}

// TestLogThatBreaksOff checks that the log of a build goes on where its connection was cut.
func TestLogThatBreaksOff(t *testing.T) {
	s := newServer(t)
	s.cut = 1
	_, errs, err := s.run(t, false, "deploy", project(t, map[string]string{"a": "x"}))
	if err != nil || strings.Count(errs, "npm ci") != 1 || !slices.Equal(s.after, []string{"", "1"}) {
		t.Errorf("got %v after %q:\n%s", err, s.after, errs)
	}
}

// TestCreateThatIsRefused checks that nothing is sent if there is no app to send it to.
func TestCreateThatIsRefused(t *testing.T) {
	s := newServer(t)
	s.failure = api.Errorf(api.Conflict, "the name my-shop is taken")
	_, _, err := s.run(t, false, "deploy", project(t, map[string]string{"a": "x"}))
	if api.CodeOf(err) != api.Conflict || len(s.uploads) > 0 {
		t.Errorf("got %v after %d uploads", err, len(s.uploads))
	}
}

func TestCommands(t *testing.T) {
	s := newServer(t)
	s.apps["shop"] = api.App{ID: api.NewAppID(), Name: "shop", URL: "http://shop.test", Scale: api.AppScale{Max: 1}}
	s.stdout = map[string]any{"exit": api.ExecExit{ExitCode: 7}}
	env := filepath.Join(t.TempDir(), "x.env")
	if err := os.WriteFile(env, []byte("A=1\nB=2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args string
		call string // the last one
		out  string // part of the output
		err  string
	}{
		{"app create api --git https://git.example.com/api.git --branch main --auto-deploy=false",
			`POST /v1/apps {"name":"api","git_url":"https://git.example.com/api.git","git_branch":"main",` +
				`"auto_deploy":false}`,
			"api\n", ""},
		{"app create api --git file:///etc", "", "", "git_url: is not a repository"},
		{"app list", "GET /v1/apps", "http://shop.test", ""},
		{"app get shop", "GET /v1/apps/shop", "http://shop.test", ""},
		{"app update shop --start=", `PATCH /v1/apps/shop {"start_command":""}`, "shop", ""},
		{"app scale shop --min 2 --idle 5m",
			`PATCH /v1/apps/shop {"scale":{"min":2,"max":2,"concurrency":0},"idle_timeout_seconds":300}`, "shop:", ""},
		{"app scale shop", "", "", "at least one of the flags"},
		{"app open shop", "GET /v1/apps/shop", "http://shop.test\n", ""},
		{"app stats shop", "GET /v1/apps/shop/stats", "2xx 12", ""},
		{"app deploy shop --ref v1", "GET /v1/apps/shop", "http://shop.test\n", ""},
		{"app deploy shop --detach --restart", `POST /v1/apps/shop/deploys {"restart":true}`, "dpl1\n", ""},
		{"app deploy shop --ref -x", "", "", "git_ref"},
		{"app deploys shop", "GET /v1/apps/shop/deploys", "it does not listen", ""},
		{"app cancel shop dpl1", "POST /v1/apps/shop/deploys/dpl1/cancel", "dpl1\n", ""},
		{"app rollback shop", "POST /v1/apps/shop/rollback {}", "dpl1\tlive\n", ""},
		{"app rollback shop dpl0", `POST /v1/apps/shop/rollback {"deployment_id":"dpl0"}`, "dpl1", ""},
		{"app logs shop", "GET /v1/apps/shop/runtime-logs", "listening\n", ""},
		{"app logs shop --build", "GET /v1/apps/shop/deploys/dpl1/logs", "npm ci\nready\n", ""},
		{"app logs shop --deployment dpl1", "GET /v1/apps/shop/deploys/dpl1/logs", "npm ci\n", ""},
		{"app run shop -- ls -l /a", `POST /v1/apps/shop/run {"command":"ls -l /a"}`, "", "exit code 7"},
		{"app env list shop", "GET /v1/apps/shop/env", "...", ""},
		{"app env set shop B=2 --scope preview", `PUT /v1/apps/shop/env/B {"value":"2","scope":"preview"}`, "", ""},
		{"app env set shop B --secret", `PUT /v1/apps/shop/env/B {"value":"A=1","secret":true}`, "", ""},
		{"app env set shop B C", "", "", `"B" is not NAME=VALUE`},
		{"app env set shop A-B=1", "", "", "is not a name of a variable"},
		{"app env unset shop B", "DELETE /v1/apps/shop/env/B", "", ""},
		{"app env import shop " + env, `POST /v1/apps/shop/env/import {"dotenv":"A=1\nB=2\n"}`, "", ""},
		{"app env import shop -", `POST /v1/apps/shop/env/import {"dotenv":"A=1\n"}`, "", ""},
		{"app env import shop none.env", "", "", "no such file"},
		{"app domain add shop www.example.com", `POST /v1/apps/shop/domains {"domain":"www.example.com"}`, "TXT", ""},
		{"app domain list shop", "GET /v1/apps/shop/domains", "pending", ""},
		{"app domain get shop www.example.com", "GET /v1/apps/shop/domains/www.example.com", "TXT", ""},
		{"app domain remove shop www.example.com", "DELETE /v1/apps/shop/domains/www.example.com", "", ""},
		{"app webhook shop", "POST /v1/apps/shop/webhook", "whsec", ""},
		{"app delete shop", "DELETE /v1/apps/shop", "", ""},
		{"app get none", "GET /v1/apps/none", "", "app none not found"},
		{"app logz shop", "", "", `unknown command "logz" in "pandastack app"; did you mean logs?`},
	} {
		s.taken()
		out, _, err := s.run(t, false, strings.Fields(tt.args)...)
		last := ""
		if calls := s.taken(); len(calls) > 0 {
			last = calls[len(calls)-1]
		}
		if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) ||
			last != tt.call || !strings.Contains(out, tt.out) {
			t.Errorf("%s:\ngot %q %q %v\nwant %q %q %q", tt.args, last, out, err, tt.call, tt.out, tt.err)
		}
	}
}

// TestTablesAreNarrow checks that tables fit into a terminal of 80 columns.
func TestTablesAreNarrow(t *testing.T) {
	s := newServer(t)
	s.apps["shop"] = api.App{
		ID: api.NewAppID(), Name: "shop-with-a-name", Status: api.AppHibernated,
		URL: "https://shop-with-a-name.example.com",
	}
	for _, args := range []string{"app list", "app deploys shop-with-a-name", "app env list shop-with-a-name",
		"app domain list shop-with-a-name"} {
		out, _, err := s.run(t, false, strings.Fields(args)...)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out) {
			if len([]rune(strings.TrimSpace(line))) > 80 {
				t.Errorf("%s: more than 80 columns: %s", args, line)
			}
		}
	}
}

// TestJSON checks that commands print what the API sent.
func TestJSON(t *testing.T) {
	s := newServer(t)
	dir := project(t, map[string]string{"a": "x"})
	out, errs, err := s.run(t, true, "deploy", dir)
	var got api.App
	if err != nil || json.Unmarshal([]byte(out), &got) != nil || got.Name != "my-shop" || errs != "" {
		t.Errorf("got %s %q %v", out, errs, err)
	}
}
