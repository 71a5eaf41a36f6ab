package e2b_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/storetest"
	"github.com/pandastack/pandastack/internal/control/template"
	"github.com/pandastack/pandastack/internal/control/volume"
	"github.com/pandastack/pandastack/internal/control/volume/helper"
	"github.com/pandastack/pandastack/internal/ingress/e2b"
	pb "github.com/pandastack/pandastack/internal/ingress/e2b/envd/proto/process"
	"github.com/pandastack/pandastack/internal/ingress/e2b/envd/proto/process/processconnect"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
	"github.com/pandastack/pandastack/internal/ingress/repl"
)

const domain = "sandboxes.test"

// maxVolumes is the quota of volumes of each workspace.
const maxVolumes = 5

// fixture is a whole control plane over a simulated host, reached through the proxy and E2B's protocol.
type fixture struct {
	t    *testing.T
	url  string
	key  string // of the default workspace
	host *hosttest.Host
	keys *auth.Keys

	volumes   *volume.Service
	helpers   *helper.Helpers
	boxes     *sandbox.Service
	templates *template.Service
}

func newFixture(t *testing.T, change ...func(*e2b.Config, *auth.Keys)) *fixture {
	t.Helper()
	host := hosttest.New()
	t.Cleanup(host.Close)
	host.AddTemplate(hostapi.Template{Name: "mini", VCPUs: 1, MemoryMiB: 256, DiskMiB: 1024, Baked: true, Hidden: true})
	db, err := store.Open(t.Context(), store.Config{DSN: storetest.Empty(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // the directory goes with the test
	templates, err := template.New(host, db, template.BuiltinAliases(), nil)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	limits := quota.New(quota.Config{Defaults: map[quota.Kind]int64{quota.Volumes: maxVolumes}}, db)
	helpers, err := helper.New(helper.Config{Template: "mini", Idle: time.Hour, PerWorkspace: 2}, db, host, log)
	if err != nil {
		t.Fatal(err)
	}
	service, err := sandbox.New(sandbox.Defaults(), sandbox.Deps{Store: db, Host: host, Templates: templates,
		Quotas: limits, Volumes: helpers, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	jobs, err := job.New(job.Config{Exclusive: true, Poll: time.Hour}, db, log)
	if err != nil {
		t.Fatal(err)
	}
	volumes, err := volume.New(volume.Config{}, volume.Deps{Store: db, Host: host, Sandboxes: service,
		Helpers: helpers, Jobs: jobs, Quotas: limits, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := auth.New(db, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	key, err := keys.CreateFirst(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cfg := e2b.Config{Domain: domain, Secret: bytes.Repeat([]byte{7}, 32), Volumes: volumes}
	for _, f := range change {
		f(&cfg, keys)
	}
	p, err := e2b.New(cfg, service, templates, keys, &repl.Runner{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	ports := proxy.New(proxy.Config{
		Resolver:    proxy.NewSandboxResolver(service, p.SandboxConfig(nil)),
		HideHeaders: e2b.HiddenHeaders(),
		Log:         log,
	})
	t.Cleanup(ports.Close)
	srv := httptest.NewServer(ports.Middleware(p.Middleware(http.NotFoundHandler())))
	t.Cleanup(srv.Close)
	return &fixture{t: t, url: srv.URL, key: key, host: host, keys: keys, boxes: service, templates: templates,
		volumes: volumes, helpers: helpers}
}

// call sends a request to the control API and returns status, body and header of the response.
func (w *fixture) call(method, path, key, body string) (int, string, http.Header) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("X-API-Key", key)
	return w.do(req)
}

func (w *fixture) do(req *http.Request) (int, string, http.Header) {
	w.t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(data), resp.Header
}

func (w *fixture) must(status int, method, path, body string) string {
	w.t.Helper()
	got, text, _ := w.call(method, path, w.key, body)
	if got != status {
		w.t.Fatalf("%s %s: got %d %s, want %d", method, path, got, text, status)
	}
	return text
}

func (w *fixture) decode(text string, v any) {
	w.t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		w.t.Fatalf("%s: %v", text, err)
	}
}

type created struct {
	SandboxID, EnvdAccessToken, Domain, EnvdVersion string
}

func (w *fixture) create(path, body string) created {
	w.t.Helper()
	var c created
	if err := json.Unmarshal([]byte(w.must(http.StatusCreated, "POST", path, body)), &c); err != nil {
		w.t.Fatal(err)
	}
	return c
}

func TestSandboxLifecycle(t *testing.T) {
	w := newFixture(t)
	c := w.create("/v2/sandboxes", `{"templateID":"base","timeout":60,"metadata":{"a":"x y"},"envVars":{"V":"1"}}`)
	if c.Domain != domain || c.EnvdAccessToken == "" || c.EnvdVersion == "" {
		t.Errorf("create returned %+v, want domain, token and version", c)
	}
	path := "/sandboxes/" + c.SandboxID
	detail := w.must(200, "GET", path, "")
	for _, want := range []string{`"state":"running"`, `"metadata":{"a":"x y"}`, `"cpuCount":`, c.EnvdAccessToken} {
		if !strings.Contains(detail, want) {
			t.Errorf("detail %s lacks %s", detail, want)
		}
	}
	list := w.must(200, "GET", "/v2/sandboxes?metadata="+url.QueryEscape(url.Values{"a": {"x y"}}.Encode()), "")
	if !strings.Contains(list, c.SandboxID) {
		t.Errorf("list %s lacks the sandbox", list)
	}
	if list := w.must(200, "GET", "/v2/sandboxes?metadata=a%3Dother", ""); strings.TrimSpace(list) != "[]" {
		t.Errorf("filtered list = %s, want none", list)
	}

	w.must(204, "POST", path+"/pause", "")
	w.must(409, "POST", path+"/pause", "")
	if list := w.must(200, "GET", "/sandboxes", ""); strings.TrimSpace(list) != "[]" {
		t.Errorf("the first version of the list shows paused ones: %s", list)
	}
	if list := w.must(200, "GET", "/v2/sandboxes?state=paused", ""); !strings.Contains(list, c.SandboxID) {
		t.Errorf("paused list %s lacks the sandbox", list)
	}
	w.must(201, "POST", path+"/connect", `{"timeout":30}`)
	w.must(200, "POST", "/v2"+path+"/connect", `{"timeout":30}`)
	w.must(409, "POST", path+"/resume", `{}`)
	w.must(204, "POST", path+"/timeout", `{"timeout":100}`)
	w.must(204, "POST", path+"/refreshes", `{"duration":200}`)
	if got := w.must(201, "POST", path+"/fork", `{"count":2}`); strings.Count(got, `"sandboxID"`) != 2 {
		t.Errorf("fork returned %s, want two sandboxes", got)
	}
	var snap struct{ SnapshotID string }
	if err := json.Unmarshal([]byte(w.must(201, "POST", path+"/snapshots", `{"name":"first"}`)), &snap); err != nil {
		t.Fatal(err)
	}
	if got := w.must(200, "GET", "/snapshots?name=first", ""); !strings.Contains(got, snap.SnapshotID) {
		t.Errorf("list of snapshots %s lacks the snapshot", got)
	}
	w.create("/v2/sandboxes", fmt.Sprintf(`{"templateID":%q}`, snap.SnapshotID))
	w.must(200, "GET", path+"/metrics", "")
	w.must(200, "GET", "/v2"+path+"/logs", "")
	w.must(204, "DELETE", path, "")
	for _, gone := range []string{
		"GET " + path, "DELETE " + path, "POST " + path + "/pause", "POST " + path + "/connect",
	} {
		method, p, _ := strings.Cut(gone, " ")
		w.must(404, method, p, "")
	}
}

func TestRefusals(t *testing.T) {
	w := newFixture(t)
	for name, c := range map[string]struct {
		method, path, key, body string
		status                  int
		want                    string
	}{
		"no-key":    {"GET", "/v2/sandboxes", "", "", 401, "error_code"},
		"wrong-key": {"GET", "/v2/sandboxes", "e2b_0123", "", 401, "error_code"},
		"unknown-field": {"POST", "/v2/sandboxes", w.key,
			`{"templateID":"base","allowColour":{}}`, 400, `field \"allowColour\"`},
		"no-template":    {"POST", "/v2/sandboxes", w.key, `{}`, 400, "templateID"},
		"other-template": {"POST", "/v2/sandboxes", w.key, `{"templateID":"nope"}`, 400, "nope"},
		"bad-json":       {"POST", "/v2/sandboxes", w.key, `{"templateID":`, 400, "body"},
		"two-values":     {"POST", "/v2/sandboxes", w.key, `{"templateID":"base"}{}`, 400, "more than one"},
		"huge": {"POST", "/v2/sandboxes", w.key,
			`{"templateID":"` + strings.Repeat("x", 2<<20) + `"}`, 413, "larger"},
		"timeout": {"POST", "/v2/sandboxes", w.key, `{"templateID":"base","timeout":0}`, 400, "timeout"},
		"state":   {"GET", "/v2/sandboxes?state=dead", w.key, "", 400, "state"},
		"limit":   {"GET", "/v2/sandboxes?limit=1000", w.key, "", 400, "limit"},
		"network": {"PUT", "/sandboxes/x/network", w.key,
			`{"rules":{"a.example":[{"transform":{"headers":{"a":"b"}}}]}}`, 501, "rules"},
		"build":           {"POST", "/v3/templates", w.key, "{}", 501, "template builds"},
		"unknown-sandbox": {"GET", "/sandboxes/sbxnone", w.key, "", 404, "sbxnone"},
	} {
		t.Run(name, func(t *testing.T) {
			status, text, _ := w.call(c.method, c.path, c.key, c.body)
			if status != c.status || !strings.Contains(text, c.want) {
				t.Errorf("got %d %.300s; want %d with %q", status, text, c.status, c.want)
			}
		})
	}
	if status, _, _ := w.call("GET", "/v2/sandboxes", "e2b_"+strings.TrimPrefix(w.key, "pds_"), ""); status != 200 {
		t.Errorf("status with a key in the form of old clients = %d, want 200", status)
	}
}

// life returns what happens at the end of a sandbox, and the time left until then.
func (w *fixture) life(id string) (onTimeout string, left time.Duration) {
	w.t.Helper()
	var detail struct {
		EndAt     time.Time
		Lifecycle struct{ OnTimeout string }
	}
	w.decode(w.must(200, "GET", "/sandboxes/"+id, ""), &detail)
	return detail.Lifecycle.OnTimeout, time.Until(detail.EndAt)
}

// agent returns a client of the agent of one sandbox, which it reaches by host name.
func (w *fixture) agent(id, token string) processconnect.ProcessClient {
	return processconnect.NewProcessClient(
		&http.Client{Transport: asHost{"49983-" + id + "." + domain, token}},
		w.url,
		connect.WithProtoJSON(),
	)
}

// listProcesses lists the processes of a sandbox through its agent.
func (w *fixture) listProcesses(id, token string) error {
	_, err := w.agent(id, token).List(w.t.Context(), connect.NewRequest(&pb.ListRequest{}))
	return err
}

// asHost sends requests to another host than their URL has, with the agent's token.
type asHost struct{ host, token string }

func (a asHost) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Host = a.host
	r.Header.Set("X-Access-Token", a.token)
	return http.DefaultTransport.RoundTrip(r)
}

func TestAgentByHostName(t *testing.T) {
	w := newFixture(t)
	c := w.create("/v2/sandboxes", `{"templateID":"base"}`)
	list := func(token string) error {
		_, err := w.agent(c.SandboxID, token).List(t.Context(), connect.NewRequest(&pb.ListRequest{}))
		return err
	}
	if err := list(c.EnvdAccessToken); err != nil {
		t.Error(err)
	}
	if err := list("wrong"); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("List with a wrong token returned %v, want unauthenticated", err)
	}
	open := w.create("/sandboxes", `{"templateID":"base"}`)
	if open.EnvdAccessToken != "" {
		t.Error("a client of the first version got a token that it did not request")
	}
	if _, err := w.agent(open.SandboxID, "").List(t.Context(), connect.NewRequest(&pb.ListRequest{})); err != nil {
		t.Error(err)
	}
	// A sandbox that sleeps is not found, and requests do not wake it.
	w.must(204, "POST", "/sandboxes/"+c.SandboxID+"/pause", "")
	req, err := http.NewRequestWithContext(t.Context(), "GET", w.url+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "3000-" + c.SandboxID + "." + domain
	if status, text, _ := w.do(req); status != 502 || !strings.Contains(text, "The sandbox was not found") {
		t.Errorf("request to a paused sandbox: got %d %s, want 502", status, text)
	}
	if err := list(c.EnvdAccessToken); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("List of a paused sandbox returned %v, want unavailable", err)
	}
	// A sandbox that was made to resume by itself is woken.
	auto := w.create("/v2/sandboxes", `{"templateID":"base","autoPause":true,"autoResume":{"enabled":true}}`)
	if detail := w.must(200, "GET", "/sandboxes/"+auto.SandboxID, ""); !strings.Contains(
		detail,
		`"lifecycle":{"autoResume":true,"onTimeout":"pause"}`,
	) {
		t.Errorf("detail %s lacks its lifecycle", detail)
	}
	w.must(204, "POST", "/sandboxes/"+auto.SandboxID+"/pause", "")
	if err := w.listProcesses(auto.SandboxID, auto.EnvdAccessToken); err != nil {
		t.Errorf("List of a sandbox that resumes by itself returned %v, want it woken", err)
	}
	if life, left := w.life(auto.SandboxID); life != "pause" || left < 200*time.Second || left > 300*time.Second {
		t.Errorf("a sandbox that a request woke has %s until %q, want 300 s until pause", left, life)
	}
	long := w.create(
		"/v2/sandboxes",
		`{"templateID":"base","timeout":4000,"autoPause":true,"autoResume":{"enabled":true}}`,
	)
	w.must(204, "POST", "/sandboxes/"+long.SandboxID+"/pause", "")
	if life, _ := w.life(long.SandboxID); life != "pause" {
		t.Errorf("lifecycle of the paused sandbox = %q, want pause", life)
	}
	if err := w.listProcesses(long.SandboxID, long.EnvdAccessToken); err != nil {
		t.Error(err)
	}
	if _, left := w.life(long.SandboxID); left < 3900*time.Second || left > 4000*time.Second {
		t.Errorf("a sandbox that a request woke has %s, want the timeout of its create", left)
	}
	w.must(201, "POST", "/sandboxes/"+c.SandboxID+"/connect", "")
	if err := list(c.EnvdAccessToken); err != nil {
		t.Errorf("List with the old token after the wake returned %v, want no error", err)
	}
}

// TestListInOrder checks the order of lists, and lists from a time on.
func TestListInOrder(t *testing.T) {
	w := newFixture(t)
	var ids, started []string
	for range 3 {
		made := w.create("/v2/sandboxes", `{"templateID":"base"}`)
		var detail struct {
			StartedAt string `json:"startedAt"`
		}
		if err := json.Unmarshal([]byte(w.must(200, "GET", "/sandboxes/"+made.SandboxID, "")), &detail); err != nil {
			t.Fatal(err)
		}
		ids, started = append(ids, made.SandboxID), append(started, detail.StartedAt)
	}
	list := func(query string) (got []string) {
		var all []struct {
			SandboxID string `json:"sandboxID"`
		}
		if err := json.Unmarshal([]byte(w.must(200, "GET", "/v2/sandboxes?"+query, "")), &all); err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			got = append(got, s.SandboxID)
		}
		return got
	}
	if got := list("order=asc"); !slices.Equal(got, ids) {
		t.Errorf("oldest first: %v, want %v", got, ids)
	}
	if got := list("order=asc&startedAfter=" + started[1]); !slices.Equal(got, ids[1:]) {
		t.Errorf("from the second on: %v, want %v", got, ids[1:])
	}
	if got := list("order=desc&limit=1"); !slices.Equal(got, ids[2:]) {
		t.Errorf("newest first: %v, want %v", got, ids[2:])
	}
	for _, wrong := range []string{"order=up", "startedAfter=yesterday"} {
		w.must(400, "GET", "/v2/sandboxes?"+wrong, "")
	}
}

// TestPauseWithoutMemory checks that a sandbox without memory boots when a client connects, and so does one with memory
// whose client does not want it.
func TestPauseWithoutMemory(t *testing.T) {
	w := newFixture(t)
	boot := func(id string) hostapi.BootMode {
		t.Helper()
		m, err := w.host.Get(t.Context(), hostapi.MachineID(id))
		if err != nil {
			t.Fatal(err)
		}
		return m.BootMode
	}
	for _, c := range []struct {
		pause, connect string
		want           hostapi.BootMode
	}{
		{`{"memory":false}`, `{"timeout":60}`, hostapi.BootCold},
		{`{"memory":true}`, `{"timeout":60}`, hostapi.BootWake},
		{`{}`, `{"timeout":60,"memory":false}`, hostapi.BootCold},
	} {
		path := "/sandboxes/" + w.create("/v2/sandboxes", `{"templateID":"base"}`).SandboxID
		w.must(204, "POST", path+"/pause", c.pause)
		w.must(409, "POST", path+"/pause", c.pause)
		w.must(201, "POST", path+"/connect", c.connect)
		if got := boot(strings.TrimPrefix(path, "/sandboxes/")); got != c.want {
			t.Errorf("pause %s, connect %s: started by %s, want %s", c.pause, c.connect, got, c.want)
		}
	}
	w.create("/v2/sandboxes", `{"templateID":"base","autoPause":true,"autoPauseMemory":false}`)
	w.must(
		400,
		"POST",
		"/v2/sandboxes",
		`{"templateID":"base","autoPause":true,"autoPauseMemory":false,"autoResume":{"enabled":true}}`,
	)
}
