package httpapi_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/fnruntime/bundletest"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/httpapi"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/functionapi"
)

// fakeFunctions has one function of the workspace "ours", and remembers the calls. Methods that a test does not need
// are nil ones of the interfaces.
type fakeFunctions struct {
	functionapi.Functions
	functionapi.Jobs

	bundle []byte // that Code returns
	fail   error  // what a map ends with
	mapped int    // lines of a map

	mu    sync.Mutex
	calls []string // guarded by mu
}

const functionID = "funaaaaaaaaaaaaaaaaaaaa"

func (f *fakeFunctions) on(p auth.Principal, fn, call string, args ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.Workspace != "ours" || fn != "hello" && fn != functionID {
		return api.Errorf(api.NotFound, "function %s not found", fn)
	}
	f.calls = append(f.calls, strings.TrimSpace(call+" "+fmt.Sprint(args...)))
	return nil
}

// last returns the last call.
func (f *fakeFunctions) last() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.calls) == 0 {
		return ""
	}
	return f.calls[len(f.calls)-1]
}

func theFunction() api.Function {
	return api.Function{
		ID: functionID, Name: "hello", Workspace: "ours", Secret: "fnsec", Env: map[string]string{"A": "hidden"},
	}
}

func theRun(status api.RunStatus) api.FunctionRun {
	return api.FunctionRun{ID: "invaaaaaaaaaaaaaaaaaaaa", FunctionID: functionID, Status: status, Stdout: "hi\n"}
}

func (f *fakeFunctions) Create(
	_ context.Context,
	p auth.Principal,
	req api.CreateFunctionRequest,
) (api.Function, error) {
	return theFunction(), f.on(p, "hello", "create", req.Name, " ", string(req.Code))
}

func (f *fakeFunctions) List(_ context.Context, p auth.Principal) ([]api.Function, error) {
	if f.on(p, "hello", "list") != nil {
		return nil, nil
	}
	return []api.Function{theFunction()}, nil
}

func (f *fakeFunctions) Get(_ context.Context, p auth.Principal, fn string) (api.Function, error) {
	return theFunction(), f.on(p, fn, "get")
}

func (f *fakeFunctions) Update(
	_ context.Context,
	p auth.Principal,
	fn string,
	req api.UpdateFunctionRequest,
) (api.Function, error) {
	return theFunction(), f.on(p, fn, "update", req.Public != nil && *req.Public)
}

func (f *fakeFunctions) Delete(_ context.Context, p auth.Principal, fn string) error {
	return f.on(p, fn, "delete")
}

func (f *fakeFunctions) Metrics(
	_ context.Context,
	p auth.Principal,
	fn string,
	hours int,
) (api.FunctionMetrics, error) {
	return api.FunctionMetrics{Period: hours, Total: 7}, f.on(p, fn, "metrics", hours)
}

func (f *fakeFunctions) Deploy(
	_ context.Context,
	p auth.Principal,
	fn string,
	bundle io.Reader,
	entrypoint string,
	wait bool,
) (api.Function, error) {
	data, err := io.ReadAll(bundle)
	return theFunction(), errors.Join(err, f.on(p, fn, "deploy", string(data), " ", entrypoint, " ", wait))
}

func (f *fakeFunctions) Code(
	_ context.Context,
	p auth.Principal,
	fn string,
	version int64,
) (io.ReadCloser, int64, error) {
	return io.NopCloser(bytes.NewReader(f.bundle)), int64(len(f.bundle)), f.on(p, fn, "code", version)
}

func (f *fakeFunctions) Versions(_ context.Context, p auth.Principal, fn string) ([]api.FunctionVersion, error) {
	return []api.FunctionVersion{{Number: 2}, {Number: 1}}, f.on(p, fn, "versions")
}

func (f *fakeFunctions) DeleteVersion(_ context.Context, p auth.Principal, fn string, version int64) error {
	return f.on(p, fn, "delete version", version)
}

func (f *fakeFunctions) BuildLog(_ context.Context, p auth.Principal, fn string, version int64) ([]string, error) {
	return []string{"one", "two"}, f.on(p, fn, "build log", version)
}

func (f *fakeFunctions) Rollback(_ context.Context, p auth.Principal, fn string, version int64) (api.Function, error) {
	return theFunction(), f.on(p, fn, "rollback", version)
}

func (f *fakeFunctions) Aliases(_ context.Context, p auth.Principal, fn string) ([]api.FunctionAlias, error) {
	return nil, f.on(p, fn, "aliases")
}

func (f *fakeFunctions) SetAlias(
	_ context.Context,
	p auth.Principal,
	fn, name string,
	req api.SetAliasRequest,
) (api.FunctionAlias, error) {
	return api.FunctionAlias{Name: name, Versions: req.Versions}, f.on(p, fn, "alias", name, req.Versions)
}

func (f *fakeFunctions) DeleteAlias(_ context.Context, p auth.Principal, fn, name string) error {
	return f.on(p, fn, "delete alias", name)
}

func (f *fakeFunctions) Invoke(
	_ context.Context,
	p auth.Principal,
	fn string,
	req api.InvokeRequest,
) (api.FunctionRun, error) {
	err := f.on(p, fn, "invoke", string(req.Input), " ", req.IdempotencyKey, " ", req.Trace)
	return theRun(api.RunError), err
}

func (f *fakeFunctions) Runs(
	_ context.Context,
	p auth.Principal,
	fn string,
	filter api.RunFilter,
) ([]api.FunctionRun, error) {
	err := f.on(p, fn, "runs", filter.Status, " ", filter.Version, filter.Limit, " ", filter.Before)
	return []api.FunctionRun{theRun(api.RunSuccess), theRun(api.RunError)}, err
}

func (f *fakeFunctions) GetRun(
	_ context.Context,
	p auth.Principal,
	fn string,
	id api.InvocationID,
) (api.FunctionRun, error) {
	return theRun(api.RunSuccess), f.on(p, fn, "run", id)
}

func (f *fakeFunctions) RecordRun(
	_ context.Context,
	p auth.Principal,
	fn string,
	req api.RecordRunRequest,
) (api.FunctionRun, error) {
	return theRun(req.Status), f.on(p, fn, "record", req.Stdout)
}

func (f *fakeFunctions) FollowRuns(
	_ context.Context,
	p auth.Principal,
	fn string,
	last int,
	yield func(api.FunctionRun) error,
) error {
	return errors.Join(f.on(p, fn, "follow", last), yield(theRun(api.RunSuccess)))
}

func (f *fakeFunctions) Submit(
	_ context.Context,
	p auth.Principal,
	fn string,
	req api.InvokeRequest,
) (api.FunctionRun, error) {
	return theRun(api.RunQueued), f.on(p, fn, "submit", req.DelaySeconds)
}

func (f *fakeFunctions) Cancel(
	_ context.Context,
	p auth.Principal,
	fn string,
	id api.InvocationID,
) (api.FunctionRun, error) {
	return theRun(api.RunCanceled), f.on(p, fn, "cancel", id)
}

func (f *fakeFunctions) Map(
	_ context.Context,
	p auth.Principal,
	fn string,
	req api.MapRequest,
	yield func(api.MapProgress) error,
) error {
	if err := f.on(p, fn, "map", len(req.Inputs)); err != nil {
		return err
	}
	for i := range f.mapped {
		run := theRun(api.RunSuccess)
		if err := yield(api.MapProgress{Index: &i, Run: &run, Done: i + 1, Total: 2}); err != nil {
			return err
		}
	}
	if f.fail != nil {
		return f.fail
	}
	return yield(api.MapProgress{Done: 2, Total: 2})
}

func (f *fakeFunctions) CreateQueue(
	_ context.Context,
	p auth.Principal,
	req api.CreateQueueRequest,
) (api.Queue, error) {
	return api.Queue{Name: req.Name}, f.on(p, "hello", "create queue", req.Name)
}

func (f *fakeFunctions) Queues(_ context.Context, p auth.Principal) ([]api.Queue, error) {
	return nil, f.on(p, "hello", "queues")
}

func (f *fakeFunctions) Queue(_ context.Context, p auth.Principal, name string) (api.Queue, error) {
	return api.Queue{Name: name}, f.on(p, "hello", "queue", name)
}

func (f *fakeFunctions) UpdateQueue(
	_ context.Context,
	p auth.Principal,
	name string,
	req api.UpdateQueueRequest,
) (api.Queue, error) {
	return api.Queue{Name: name}, f.on(p, "hello", "update queue", name, req.Settings.BatchSize)
}

func (f *fakeFunctions) DeleteQueue(_ context.Context, p auth.Principal, name string) error {
	return f.on(p, "hello", "delete queue", name)
}

func (f *fakeFunctions) Send(
	_ context.Context,
	p auth.Principal,
	name string,
	req api.SendRequest,
) (api.SendResponse, error) {
	return api.SendResponse{IDs: []string{"m"}}, f.on(p, "hello", "send", name, string(req.Messages[0].Body))
}

func (f *fakeFunctions) Receive(
	_ context.Context,
	p auth.Principal,
	name string,
	req api.ReceiveRequest,
) (api.ReceiveResponse, error) {
	return api.ReceiveResponse{}, f.on(p, "hello", "receive", name, req.Max)
}

func (f *fakeFunctions) Ack(_ context.Context, p auth.Principal, name string, req api.AckRequest) error {
	return f.on(p, "hello", "ack", name, req.Receipts)
}

func (f *fakeFunctions) Extend(_ context.Context, p auth.Principal, name string, req api.ExtendRequest) error {
	return f.on(p, "hello", "extend", name, req.Receipt)
}

// ForwardFunction implements functionapi.Edge.
func (f *fakeFunctions) ForwardFunction(
	w http.ResponseWriter,
	r *http.Request,
	fn, prefix string,
	_ func(http.ResponseWriter, *http.Request, *api.Error),
) (auth.Principal, api.FunctionID) {
	_, _ = fmt.Fprintf(w, "%s %s %s %s %s", r.Method, r.URL.RequestURI(), fn, prefix, r.Header.Get("Authorization"))
	return auth.Principal{Workspace: "ours", KeyPrefix: "pds_0123abcd"}, functionID
}

func withFunctions(f *fakeFunctions) func(*httpapi.Deps) {
	return func(d *httpapi.Deps) { d.Functions = functionapi.API{Functions: f, Jobs: f, Edge: f} }
}

func TestFunctions(t *testing.T) {
	f := &fakeFunctions{}
	w := newFixture(t, withFunctions(f))
	const path, queue = "/v1/functions/hello", "/v1/queues/jobs"
	const run = "invaaaaaaaaaaaaaaaaaaaa"
	for _, tt := range []struct {
		method, path, body string
		status             int
		call, want         string // the call of the service, and part of the response
	}{
		{"POST", "/v1/functions", `{"name":"hello","runtime":"python","entrypoint":"handler.py","code":"aGk=",` +
			`"template":"code-interpreter","public":false}`, 201, "create hello hi", `"id":"fun`},
		{"POST", "/v1/functions", `{"name":"hello","runtime":"nodejs","code":""}`, 201, "create hello", `"aliases":[]`},
		{"GET", "/v1/functions", "", 200, "list", `[{"id":"fun`},
		{"GET", path, "", 200, "get", `"env":{"A":"` + api.MaskedValue},
		{"GET", "/v1/functions/" + functionID, "", 200, "get", `"secret":"fnsec"`},
		{"PATCH", path, `{"public":true}`, 200, "update true", `"name":"hello"`},
		{"GET", path + "/metrics?period=3", "", 200, "metrics 3", `"total":7`},
		{"GET", path + "/metrics", "", 200, "metrics 24", `"period":24`},
		{"GET", path + "/versions", "", 200, "versions", `[{"number":2`},
		{"GET", path + "/versions/1", "", 200, "versions", `{"number":1`},
		{"GET", path + "/versions/2/logs", "", 200, "build log 2", "one\ntwo\n"},
		{"DELETE", path + "/versions/2", "", 204, "delete version 2", ""},
		{"POST", path + "/rollback", "", 200, "rollback 0", `"id"`},
		{"POST", path + "/rollback", `{"version":3}`, 200, "rollback 3", `"id"`},
		{"GET", path + "/aliases", "", 200, "aliases", `[]`},
		{"PUT", path + "/aliases/live", `{"versions":[{"version":1}]}`, 200, "alias live[{1 100}]", `"weight":100`},
		{"DELETE", path + "/aliases/live", "", 204, "delete alias live", ""},
		{"POST", path + "/invoke", "{}", 200, "invoke", `"status":"error"`},
		{"POST", path + "/invoke", `{"input":{"a":1}}`, 200, `invoke {"a":1}`, `"stdout":"hi\n"`},
		{"POST", path + "/invoke", `{"async":true,"delay_seconds":5}`, 202, "submit 5", `"status":"queued"`},
		{"POST", path + "/runs", `{"sandbox_id":"sbxaaaaaaaaaaaaaaaaaaaa","status":"success","exit_code":0,` +
			`"stdout":"x","stderr":"","duration_ms":12}`, 201, "record x", `"status":"success"`},
		{"GET", path + "/runs", "", 200, "runs  0 100", `[{"id":"inv`},
		{"GET", path + "/runs?status=error&version=2&limit=5&before=" + run, "", 200, "runs error 2 5 " + run, `[`},
		{"GET", path + "/runs/" + run, "", 200, "run " + run, run},
		{"POST", path + "/runs/" + run + "/cancel", "", 200, "cancel " + run, `"status":"canceled"`},
		{"GET", path + "/logs?limit=2", "", 200, "runs  0 2", "event: done"},
		{"GET", path + "/logs?follow=1", "", 200, "follow 20", "event: run\ndata: {\"id\":\"inv"},
		{"POST", "/v1/queues", `{"name":"jobs"}`, 201, "create queue jobs", `"name":"jobs"`},
		{"GET", "/v1/queues", "", 200, "queues", `[]`},
		{"GET", queue, "", 200, "queue jobs", `"name":"jobs"`},
		{"PATCH", queue, `{"settings":{"batch_size":3}}`, 200, "update queue jobs3", `"name"`},
		{"POST", queue + "/messages", `{"messages":[{"body":{"a":1}}]}`, 201, `send jobs{"a":1}`, `{"ids":["m"]}`},
		{"POST", queue + "/receive", `{"max":2}`, 200, "receive jobs2", `{"messages":[]}`},
		{"POST", queue + "/ack", `{"receipts":["r"]}`, 204, "ack jobs[r]", ""},
		{"POST", queue + "/extend", `{"receipt":"r","visibility_seconds":5}`, 204, "extend jobsr", ""},
		{"DELETE", queue, "", 204, "delete queue jobs", ""},
		{"DELETE", path, "", 204, "delete", ""},
	} {
		a := w.do(tt.method, tt.path, tt.body)
		if a.status != tt.status || f.last() != tt.call || !strings.Contains(a.body, tt.want) {
			t.Errorf("%s %s: got %d %s after %q, want %d with %s after %q",
				tt.method, tt.path, a.status, a.body, f.last(), tt.status, tt.want, tt.call)
		}
	}
	headers := func(r *http.Request) {
		r.Header.Set("Idempotency-Key", "once")
		r.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	}
	w.do("POST", path+"/invoke", `{}`, headers)
	if want := "invoke  once 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"; f.last() != want {
		t.Errorf("headers of an invocation: got %q, want %q", f.last(), want)
	}
}

// TestFunctionRequestsThatAreWrong checks that bad input is refused before the service is called.
func TestFunctionRequestsThatAreWrong(t *testing.T) {
	f := &fakeFunctions{}
	w := newFixture(t, withFunctions(f))
	const path = "/v1/functions/hello"
	for _, tt := range []struct {
		method, path, body string
		code               api.Code
		field              string
	}{
		{"POST", "/v1/functions", `{"name":"hello","runtime":"cobol"}`, api.Invalid, "runtime"},
		{"POST", "/v1/functions", `{"name":"a b","runtime":"python"}`, api.Invalid, "name"},
		{"POST", "/v1/functions", `{"name":"a","runtime":"python","entrypoint":"../x"}`, api.Invalid, "entrypoint"},
		{"PATCH", path, `{"publik":true}`, api.Invalid, "publik"},
		{"PATCH", path, `{"name":""}`, api.Invalid, "name"},
		{"PATCH", path, `{"settings":{"mode":"x"}}`, api.Invalid, "settings.mode"},
		{"GET", "/v1/functions/a%20b", "", api.NotFound, ""},
		{"GET", path + "/metrics?period=0", "", api.Invalid, "period"},
		{"GET", path + "/versions/x", "", api.NotFound, ""},
		{"GET", path + "/versions/0/code", "", api.NotFound, ""},
		{"POST", path + "/rollback", `{"version":-1}`, api.Invalid, "version"},
		{"PUT", path + "/aliases/a%20b", `{"versions":[{"version":1}]}`, api.Invalid, "alias"},
		{"PUT", path + "/aliases/a", `{"versions":[]}`, api.Invalid, "versions"},
		{"PUT", path + "/aliases/a", `{"versions":[{"version":1,"weight":50},{"version":2,"weight":40}]}`, api.Invalid,
			"versions"},
		{"POST", path + "/invoke", `{"delay_seconds":5}`, api.Invalid, "delay_seconds"},
		{"POST", path + "/invoke", `{"alias":"a","version":2}`, api.Invalid, "version"},
		{"POST", path + "/runs", `{"status":"running"}`, api.Invalid, "status"},
		{"GET", path + "/runs?status=x", "", api.Invalid, "status"},
		{"GET", path + "/runs?before=x", "", api.NotFound, ""},
		{"GET", path + "/runs/x", "", api.NotFound, ""},
		{"GET", path + "/logs?limit=x", "", api.Invalid, "limit"},
		{"POST", path + "/map", `{"inputs":[]}`, api.Invalid, "inputs"},
		{"POST", "/v1/queues", `{"name":"a b"}`, api.Invalid, "name"},
		{"POST", "/v1/queues", `{"name":"a","settings":{"dead_letter":"a"}}`, api.Invalid, "settings.dead_letter"},
		{"POST", "/v1/queues/a/messages", `{"messages":[]}`, api.Invalid, "messages"},
		{"POST", "/v1/queues/a/receive", `{"wait_seconds":21}`, api.Invalid, "wait_seconds"},
		{"POST", "/v1/queues/a/ack", `{}`, api.Invalid, "receipts"},
		{"GET", "/v1/functions/a%20b/http-invoke", "", api.NotFound, ""},
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

// TestWhoSeesTheSecretOfAFunction checks that callers that may not run commands do not get it, and no list has it.
func TestWhoSeesTheSecretOfAFunction(t *testing.T) {
	w := newFixture(t, withFunctions(&fakeFunctions{}))
	for _, tt := range []struct {
		path, key string
		seen      bool
	}{
		{"/v1/functions/hello", keyMember, true}, {"/v1/functions/hello", keyViewer, false},
		{"/v1/functions", keyMember, false}, {"/v1/functions", keyViewer, false},
	} {
		a := w.do("GET", tt.path, "", as(tt.key))
		if a.status != 200 || strings.Contains(a.body, "fnsec") != tt.seen || strings.Contains(a.body, "hidden") {
			t.Errorf("%s with %s: got %d %s, want the secret: %v", tt.path, tt.key, a.status, a.body, tt.seen)
		}
	}
}

// form returns a form as the published clients send it.
func form(t *testing.T, parts ...string) (body string, header func(*http.Request)) {
	t.Helper()
	var out bytes.Buffer
	m := multipart.NewWriter(&out)
	for i := 0; i < len(parts); i += 2 {
		create := m.CreateFormField
		if parts[i] == "bundle" {
			create = func(name string) (io.Writer, error) { return m.CreateFormFile(name, "code.tar.gz") }
		}
		to, err := create(parts[i])
		if err == nil {
			_, err = io.WriteString(to, parts[i+1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String(), func(r *http.Request) { r.Header.Set("Content-Type", m.FormDataContentType()) }
}

func TestDeployForm(t *testing.T) {
	f := &fakeFunctions{}
	w := newFixture(t, withFunctions(f))
	const path = "/v1/functions/hello/deploy"
	for _, tt := range []struct {
		query string
		parts []string
		want  string // the call of the service, or the field of the error
	}{
		{"", []string{"bundle", "code", "entrypoint", "main.py"}, "deploy code main.py true"},
		{"?wait=0", []string{"entrypoint", "main.py", "bundle", "code"}, "deploy code main.py false"},
		{"", []string{"bundle", "code"}, "deploy code  true"},
		{"", []string{"entrypoint", "main.py"}, "bundle"},
		{"", []string{"bundle", ""}, "bundle"},
		{"", []string{"bundle", "code", "entrypoint", "/etc/passwd"}, "entrypoint"},
		{"", []string{"bundle", "code", "entrypoint", strings.Repeat("x", 5000)}, "entrypoint"},
		{"?wait=x", []string{"bundle", "code"}, "wait"},
	} {
		body, header := form(t, tt.parts...)
		a := w.do("POST", path+tt.query, body, header)
		if strings.HasPrefix(tt.want, "deploy") {
			if a.status != 200 || f.last() != tt.want {
				t.Errorf("%q: got %d %s after %q, want %q", tt.parts, a.status, a.body, f.last(), tt.want)
			}
			continue
		}
		if e := a.failed(t); e.Details["field"] != tt.want {
			t.Errorf("%.80q: got %s %v, want an error of %s", tt.parts, e.Message, e.Details, tt.want)
		}
	}
	if e := w.do("POST", path, "{}").failed(t); e.Code != api.Invalid || e.Details["field"] != "bundle" {
		t.Errorf("without a form: got %+v", e)
	}
}

// TestCodeOfAFunction checks that the code is compressed with gzip whatever was deployed, and is a file if one file
// was: published clients write what they decompress to the path of the entrypoint.
func TestCodeOfAFunction(t *testing.T) {
	f := &fakeFunctions{}
	w := newFixture(t, withFunctions(f))
	two := bundletest.Tar(t, "a.py", "one", "b.py", "two")
	for name, tt := range map[string]struct{ bundle, want []byte }{
		"text":          {[]byte("print(1)"), []byte("print(1)")},
		"gzip of text":  {bundletest.Gzip(t, []byte("print(1)")), []byte("print(1)")},
		"tar.gz of one": {bundletest.Gzip(t, bundletest.Tar(t, "handler.py", "print(1)")), []byte("print(1)")},
		"tar of one":    {bundletest.Tar(t, "handler.py", "print(1)"), []byte("print(1)")},
		"tar.gz of two": {bundletest.Gzip(t, two), two},
		"tar of two":    {two, two},
		"broken gzip":   {[]byte("\x1f\x8bnonsense"), nil},
	} {
		f.bundle = tt.bundle
		a := w.do("GET", "/v1/functions/hello/versions/3/code", "")
		if f.last() != "code 3" {
			t.Errorf("%s: got the call %q", name, f.last())
		}
		z, err := gzip.NewReader(strings.NewReader(a.body))
		if tt.want == nil {
			if a.body != string(tt.bundle) {
				t.Errorf("%s: got %q, want it as it is", name, a.body)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v in %q", name, err, a.body)
			continue
		}
		if got, err := io.ReadAll(z); err != nil || !bytes.Equal(got, tt.want) {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, tt.want)
		}
	}
}

// TestMap checks the lines and the events of a map, and what becomes of an error before and after the first of them.
func TestMap(t *testing.T) {
	f := &fakeFunctions{mapped: 1}
	w := newFixture(t, withFunctions(f))
	const path, body = "/v1/functions/hello/map", `{"inputs":[1,2]}`
	a := w.do("POST", path, body)
	lines := strings.Split(strings.TrimSpace(a.body), "\n")
	var first, second api.MapProgress
	if len(lines) != 2 || json.Unmarshal([]byte(lines[0]), &first) != nil ||
		json.Unmarshal([]byte(lines[1]), &second) != nil ||
		first.Index == nil || *first.Index != 0 || first.Run == nil || second.Run != nil || second.Done != 2 ||
		a.header.Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("got %s %q", a.header.Get("Content-Type"), a.body)
	}
	events := func(r *http.Request) { r.Header.Set("Accept", "text/event-stream") }
	if a = w.do("POST", path, body, events); !strings.Contains(a.body, "event: progress\ndata: {\"index\":0") {
		t.Errorf("as events: got %q", a.body)
	}
	f.fail = api.Errorf(api.Unavailable, "the store is away")
	a = w.do("POST", path, body)
	lines = strings.Split(strings.TrimSpace(a.body), "\n")
	second = api.MapProgress{}
	if len(lines) != 2 || json.Unmarshal([]byte(lines[1]), &second) != nil || second.Error == nil ||
		second.Error.Code != api.Unavailable || second.Done != 1 {
		t.Errorf("a map that breaks off: got %q", a.body)
	}
	f.mapped = 0
	if e := w.do("POST", path, body).failed(t); e.Code != api.Unavailable {
		t.Errorf("a map that does not begin: got %+v", e)
	}
}

// TestHTTPInvoke checks what the edge gets of a request below a function's path, and what the audit log gets.
func TestHTTPInvoke(t *testing.T) {
	w := newFixture(t, withFunctions(&fakeFunctions{}))
	const at = "/v1/functions/" + functionID + "/http-invoke"
	for path, want := range map[string]string{
		at:                                  "PUT / " + functionID + " " + at + " Bearer " + keyMember,
		at + "/":                            "PUT / " + functionID + " " + at + " Bearer " + keyMember,
		at + "//a%2Fb/?c=d&d":               "PUT //a%2Fb/?c=d&d " + functionID + " " + at + " Bearer " + keyMember,
		"/v1/functions/hello/http-invoke/x": "PUT /x hello /v1/functions/hello/http-invoke Bearer " + keyMember,
	} {
		if a := w.do("PUT", path, "", as(keyMember)); a.body != want {
			t.Errorf("%s: got %q, want %q", path, a.body, want)
		}
	}
	for _, e := range w.entries("order=asc", 4) {
		if e.Action != "function" || e.Target != functionID || e.Workspace != "ours" || e.Key != "pds_0123abcd" {
			t.Errorf("audit entry %+v, want the function's id and the caller of the edge", e)
		}
	}
}
