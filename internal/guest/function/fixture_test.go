package function_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/fnruntime"
	"github.com/pandastack/pandastack/internal/guest/function"
)

// The program of the tests is the program that becomes a handler, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "launch" {
		os.Exit(function.Machine.Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	if api := os.Getenv("AWS_LAMBDA_RUNTIME_API"); api != "" {
		fmt.Fprintln(os.Stderr, runLambda(api))
		os.Exit(1)
	}
	goTool, _ = exec.LookPath("go") // tests that need it skip themselves
	// Interpreters that an unprivileged user may run.
	if err := os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// goTool is the go command; "": none.
var goTool string

var tools = map[string]string{"python": "python3", "nodejs": "node"}

// needs skips a test whose interpreter this machine lacks.
func needs(t testing.TB, runtime string) {
	t.Helper()
	if tool := tools[runtime]; tool != "" {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("probe %s: %v", tool, err)
		}
	}
}

// place returns the place of one machine, with a bundle of files already unpacked.
func place(t testing.TB, files map[string]string) function.Place {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} { // for the handler's user
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := function.Place{
		Code: filepath.Join(dir, "code"), Bundle: filepath.Join(dir, "bundle"), Socket: filepath.Join(dir, "run", "s"),
		State: filepath.Join(dir, "state"), Program: program, UID: -1,
	}
	if os.Getuid() == 0 {
		p.UID = function.Machine.UID
	}
	for name, text := range files {
		at := filepath.Join(p.Code, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// machine is a server with a function.
type machine struct {
	t      testing.TB
	url    string
	log    *buffer
	server *function.Server
}

type buffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

func open(t testing.TB, p function.Place, cfg fnruntime.Serve) *machine {
	t.Helper()
	needs(t, cfg.Runtime)
	if cfg.Name == "" {
		cfg.Name, cfg.Version = "hello", 7
	}
	log := &buffer{}
	s, err := function.NewServer(t.Context(), p, cfg, log, log)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	t.Cleanup(s.Close) // first: it ends the calls that srv would wait for
	return &machine{t: t, url: srv.URL, log: log, server: s}
}

// python and node return a machine with a handler in one file.
func python(t testing.TB, source string) *machine {
	t.Helper()
	m := open(t, place(t, map[string]string{"handler.py": source}), fnruntime.Serve{Runtime: "python"})
	m.ready()
	return m
}

func node(t testing.TB, source string) *machine {
	t.Helper()
	m := open(t, place(t, map[string]string{"index.mjs": source}), fnruntime.Serve{Runtime: "nodejs"})
	m.ready()
	return m
}

// response is what came of a call.
type response struct {
	status  int
	header  http.Header
	body    string
	summary fnruntime.Summary
}

// failure returns the failure of a call, which must have one.
func (r response) failure(t testing.TB) fnruntime.Failure {
	t.Helper()
	if r.summary.Failure == nil {
		t.Fatalf("status %d with %q and no failure", r.status, r.body)
	}
	return *r.summary.Failure
}

// ready waits for the handler and returns its style.
func (m *machine) ready() string {
	m.t.Helper()
	style, f := m.load()
	if f != nil {
		m.t.Fatalf("the handler cannot be loaded: %+v; output %s", *f, m.log)
	}
	return style
}

func (m *machine) load() (string, *fnruntime.Failure) {
	m.t.Helper()
	resp, err := http.Get(m.url + fnruntime.PathReady)
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	if resp.StatusCode == http.StatusNoContent {
		return resp.Header.Get(fnruntime.HeaderStyle), nil
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		m.t.Fatal(err)
	}
	f, err := fnruntime.DecodeFailure(body)
	if err != nil {
		m.t.Fatalf("status %d with %q: %v", resp.StatusCode, body, err)
	}
	return "", &f
}

var invocations struct {
	sync.Mutex
	n int
}

// do sends a request as the control plane does, and reads its response with its summary.
func (m *machine) do(method, path, body string, headers ...string) response {
	m.t.Helper()
	invocations.Lock()
	invocations.n++
	id := "inv" + strconv.Itoa(invocations.n)
	invocations.Unlock()
	req, err := http.NewRequest(method, m.url+path, strings.NewReader(body))
	if err != nil {
		m.t.Error(err)
		return response{}
	}
	req.Header.Set(fnruntime.HeaderInvocation, id)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		m.t.Error(err)
		return response{}
	}
	return m.read(id, resp)
}

func (m *machine) read(id string, resp *http.Response) response {
	m.t.Helper()
	defer resp.Body.Close() //nolint:errcheck // it was only read
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		m.t.Error(err)
	}
	r := response{status: resp.StatusCode, header: resp.Header, body: string(data)}
	trailer := resp.Trailer.Get(fnruntime.TrailerSummary)
	if r.summary, err = fnruntime.ParseSummary(trailer); trailer != "" && err != nil {
		m.t.Errorf("trailer %q: %v", trailer, err)
	}
	if trailer != "" && !r.summary.More {
		return r
	}
	all, err := http.Get(m.url + fnruntime.PathSummary + id)
	if err != nil {
		m.t.Error(err)
		return r
	}
	defer all.Body.Close() //nolint:errcheck // it was only read
	if data, err = io.ReadAll(all.Body); err == nil {
		r.summary, err = fnruntime.DecodeSummary(data)
	}
	if err != nil {
		m.t.Errorf("summary %.200q: %v", data, err)
	}
	return r
}

// event calls the handler with an event.
func (m *machine) event(event string, headers ...string) response {
	m.t.Helper()
	return m.do(http.MethodPost, fnruntime.PathEvent, event, headers...)
}

// want checks the result of an event.
func (m *machine) want(event, result string) response {
	m.t.Helper()
	r := m.event(event)
	if r.status != http.StatusOK || !sameJSON(r.body, result) {
		m.t.Errorf("event %s: status %d with %s, want %s; %+v", event, r.status, r.body, result, r.summary.Failure)
	}
	return r
}

func sameJSON(a, b string) bool {
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	p, err := json.Marshal(x)
	q, err2 := json.Marshal(y)
	return err == nil && err2 == nil && bytes.Equal(p, q)
}

// field returns a text of the result.
func (r response) field(t testing.TB, name string) string {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal([]byte(r.body), &all); err != nil {
		t.Fatalf("status %d with %q: %v; %+v", r.status, r.body, err, r.summary.Failure)
	}
	s, _ := all[name].(string)
	return s
}
