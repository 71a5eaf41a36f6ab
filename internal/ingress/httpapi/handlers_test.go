package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/ingress/httpapi"
)

func TestExec(t *testing.T) {
	w := newFixture(t)
	_, path := w.create()
	var res map[string]any
	a := w.do(
		"POST",
		path+"/exec",
		`{"cmd":"echo out; echo err >&2; exit 3","env":{"A":"b"},"cwd":"/tmp","timeout_seconds":30}`,
	)
	a.json(t, &res)
	if a.status != 200 || res["stdout"] != "out\n" || res["stderr"] != "err\n" || res["exit_code"] != 3.0 ||
		res["duration_ms"] == nil {
		t.Errorf("exec: got %d %s", a.status, a.body)
	}
	a = w.do("POST", path+"/exec", `{"cmd":"echo part; sleep 600","timeout_seconds":1.5}`)
	e := a.failed(t)
	if a.status != 504 || e.Message != "command timeout after 1.5s" || e.Details["stdout"] != "part\n" {
		t.Errorf("exec with a timeout: got %d %s", a.status, a.body)
	}
	w.do("POST", path+"/pause", "")
	if e := w.do("POST", path+"/exec", `{"cmd":"true"}`).failed(t); e.Code != api.WrongState {
		t.Errorf("exec in a paused sandbox: got %s, want wrong_state", e.Code)
	}
}

// TestDefaultsOfTheSandbox checks that user and directory of the create apply where a command names none.
func TestDefaultsOfTheSandbox(t *testing.T) {
	w := newFixture(t)
	id, path := w.create()
	box, err := w.boxes.get(principal, id)
	if err != nil {
		t.Fatal(err)
	}
	box.User, box.Workdir = "dev", "/srv"
	w.boxes.set(box)
	var res api.ExecResult
	w.do("POST", path+"/exec", `{"cmd":"whoami; pwd"}`).json(t, &res)
	if res.Stdout != "dev\n/srv\n" {
		t.Errorf("output with the sandbox's defaults = %q", res.Stdout)
	}
	w.do("POST", path+"/exec", `{"cmd":"whoami; pwd","user":"root","cwd":"/tmp"}`).json(t, &res)
	if res.Stdout != "root\n/tmp\n" {
		t.Errorf("output with user and directory of the command = %q", res.Stdout)
	}
}

func TestBackgroundAndProcesses(t *testing.T) {
	w := newFixture(t)
	_, path := w.create()
	var res api.ExecResult
	w.do("POST", path+"/exec", `{"cmd":"echo hello; touch /said; sleep 600","background":true,"tag":"job"}`).
		json(t, &res)
	if res.PID == 0 {
		t.Fatal("exec in the background returned no pid")
	}
	var list []api.Process
	w.do("GET", path+"/processes", "").json(t, &list)
	if len(list) != 1 || list[0].PID != res.PID || list[0].Tag != "job" || !list[0].Running ||
		!strings.HasPrefix(list[0].Cmd, "echo hello") {
		t.Fatalf("got processes %+v, want the command", list)
	}
	for end := time.Now().Add(time.Minute); w.do("GET", path+"/fs/stat?path=/said", "").status != 200; {
		if time.Now().After(end) {
			t.Fatal("the command printed nothing")
		}
		<-time.After(5 * time.Millisecond)
	}
	signal := fmt.Sprintf("%s/processes/%d/signal", path, res.PID)
	if a := w.do("POST", signal, `{"signal":9,"group":true}`); a.status != 204 {
		t.Errorf("signal: got %d %s, want 204", a.status, a.body)
	}
	a := w.do("GET", fmt.Sprintf("%s/processes/%d/stream", path, res.PID), "", with("Accept", "text/event-stream"))
	if !strings.Contains(a.body, "event: stdout\ndata: {\"chunk\":\"hello\\n\"}") ||
		!strings.Contains(a.body, "event: exit\ndata: {\"exit_code\":137") {
		t.Errorf("got stream %q", a.body)
	}
}

func TestExecStream(t *testing.T) {
	w := newFixture(t)
	_, path := w.create()
	a := w.do("POST", path+"/exec/stream", `{"cmd":"printf 'é€'; exit 2"}`, with("Accept", "text/event-stream"))
	if a.header.Get("Content-Type") != "text/event-stream; charset=utf-8" ||
		!strings.Contains(a.body, "{\"chunk\":\"é€\"}\n\n") ||
		!strings.Contains(a.body, "event: exit\ndata: {\"exit_code\":2,") {
		t.Errorf("got stream %q", a.body)
	}
	a = w.do("POST", path+"/exec/stream", `{"cmd":"sleep 600","timeout_seconds":0.05}`)
	if !strings.Contains(a.body, "event: error\ndata: {\"error\":\"command timeout after 0.05s\"") {
		t.Errorf("got stream %q, want the error timeout", a.body)
	}
}

// TestEmptyBodies checks requests without a body: the SDKs send POST without a body and without a content type.
func TestEmptyBodies(t *testing.T) {
	w := newFixture(t)
	_, path := w.create()
	for _, tt := range []struct {
		verb   string
		status int
		body   string // "": none at all
	}{
		{"pause", 204, ""}, {"resume", 204, ""},
		{"hibernate", 200, `{"status":"hibernated"}`}, {"wake", 200, `{"status":"running"}`},
		{"stop", 200, `{"status":"hibernated"}`}, {"start", 200, `{"status":"running"}`},
		{"snapshots", 201, `"mem_path":""`}, {"fork", 201, `"children":[{"id":"sbx`},
		{"fork-tree", 201, `"fork_tree_id":"tre`},
		{"promote", 200, `"winner":`},
	} {
		t.Run(tt.verb, func(t *testing.T) {
			a := w.do("POST", path+"/"+tt.verb, "")
			if a.status != tt.status || !strings.Contains(a.body, tt.body) || tt.body == "" && a.body != "" {
				t.Errorf("got %d %q, want %d with %q", a.status, a.body, tt.status, tt.body)
			}
		})
	}
}

// TestListsAreArrays checks that lists are bare arrays, also empty ones, as clients expect.
func TestListsAreArrays(t *testing.T) {
	w := newFixture(t)
	for _, path := range []string{"/v1/sandboxes", "/v1/snapshots"} {
		if a := w.do("GET", path, ""); strings.TrimSpace(a.body) != "[]" {
			t.Errorf("%s: got %s, want []", path, a.body)
		}
	}
	_, path := w.create()
	for _, p := range []string{"/v1/sandboxes", "/v1/templates", path + "/ports", path + "/processes"} {
		if a := w.do("GET", p, ""); !strings.HasPrefix(a.body, "[") {
			t.Errorf("%s: got %s, want an array", p, a.body)
		}
	}
}

func TestPagesAndFilters(t *testing.T) {
	w := newFixture(t)
	for i := range 3 {
		w.do("POST", "/v1/sandboxes", fmt.Sprintf(`{"metadata":{"n":"%d"}}`, i))
	}
	var all, page []api.Sandbox
	w.do("GET", "/v1/sandboxes", "").json(t, &all)
	if len(all) != 3 {
		t.Fatalf("got %d sandboxes, want 3", len(all))
	}
	seen, cursor := 0, ""
	for range 3 {
		a := w.do("GET", "/v1/sandboxes?limit=1&cursor="+url.QueryEscape(cursor), "")
		a.json(t, &page)
		seen += len(page)
		if cursor = a.header.Get("X-Next-Cursor"); cursor == "" {
			break
		}
	}
	if seen != 3 || cursor != "" {
		t.Errorf("got %d on pages, then cursor %q; want 3 and none", seen, cursor)
	}
	w.do("GET", "/v1/sandboxes?metadata.n=1&status=running,paused", "").json(t, &page)
	if len(page) != 1 || page[0].Metadata["n"] != "1" {
		t.Errorf("filtered list = %+v", page)
	}
}

// TestCreateReturnsBeforeClientsGiveUp checks that a create of a template that is being baked fails in time and says
// so.
func TestCreateReturnsBeforeClientsGiveUp(t *testing.T) {
	w := newFixture(t)
	for _, name := range []string{"raw", "alias-of-raw"} {
		a := w.do("POST", "/v1/sandboxes", `{"template":"`+name+`"}`, with("Prefer", "respond-async, wait=1"))
		e := a.failed(t)
		if e.Code != api.Unavailable || !e.Retryable || !strings.Contains(e.Message, "raw is being baked") ||
			!strings.Contains(e.Message, "rootfs, 12 %") || a.header.Get("Retry-After") == "" {
			t.Errorf("create: got %d %s, want unavailable in time", a.status, a.body)
		}
		if strings.Contains(e.Message, "timeout") {
			t.Errorf("the SDKs take message %q for a command's timeout", e.Message)
		}
	}
	for header, want := range map[string]time.Duration{
		"": 25 * time.Second, "wait=x": 25 * time.Second, "wait=-1": 25 * time.Second, "a, wait=60": time.Minute,
		"wait=99999999": time.Hour,
	} {
		if got := httpapi.WaitOf(header); got != want {
			t.Errorf("WaitOf(%q) = %s, want %s", header, got, want)
		}
	}
}

func TestIdempotencyKey(t *testing.T) {
	w := newFixture(t)
	var a, b api.Sandbox
	w.do("POST", "/v1/sandboxes", "", with("Idempotency-Key", "k1")).json(t, &a)
	w.do("POST", "/v1/sandboxes", "", with("Idempotency-Key", "k1")).json(t, &b)
	if a.ID == "" || a.ID != b.ID {
		t.Errorf("got ids %q and %q, want one", a.ID, b.ID)
	}
	long := with("Idempotency-Key", strings.Repeat("x", 300))
	if e := w.do("POST", "/v1/sandboxes", "", long).failed(t); e.Code != api.Invalid {
		t.Errorf("create with a long key: got %s, want invalid", e.Code)
	}
}

// TestTemplateBesideSnapshot checks that a snapshot takes precedence: the SDKs always send a template.
func TestTemplateBesideSnapshot(t *testing.T) {
	w := newFixture(t)
	id := api.NewSnapshotID()
	a := w.do("POST", "/v1/sandboxes", fmt.Sprintf(`{"template":"base","from_snapshot":%q}`, id))
	if a.status != 201 || !strings.Contains(a.body, string(id)) {
		t.Errorf("create with both: got %d %s, want the snapshot used", a.status, a.body)
	}
}

func TestNetwork(t *testing.T) {
	w := newFixture(t)
	_, path := w.create()
	if a := w.do("GET", path+"/network", ""); a.status != 200 || strings.TrimSpace(string(a.body)) != "{}" {
		t.Errorf("network of a sandbox without rules: got %d %s", a.status, a.body)
	}
	const policy = `{"allow_out":["*.example.com"],"deny_others":true}`
	if a := w.do("PUT", path+"/network", policy); a.status != 200 || strings.TrimSpace(string(a.body)) != policy {
		t.Errorf("change of the network: got %d %s, want 200", a.status, a.body)
	}
	if a := w.do("GET", path, ""); !strings.Contains(string(a.body), `"network":`+policy) {
		t.Errorf("the sandbox %s does not show its network", a.body)
	}
	if e := w.do("PUT", path+"/network", `{"deny_out":["a.example:443"]}`).failed(t); e.Code != api.Invalid ||
		e.Details["field"] != "deny_out" {
		t.Errorf("change with a malformed entry: got %s %v, want invalid", e.Code, e.Details)
	}
	if e := w.do("PUT", path+"/network", `{"allow":["a.example"]}`).failed(t); e.Code != api.Invalid {
		t.Errorf("change with an unknown field: got %s, want invalid", e.Code)
	}
}

func TestFiles(t *testing.T) {
	w := newFixture(t)
	_, path := w.create()
	data := bytes.Repeat([]byte("\x00\xff\r\n0123456789"), 400_000)
	at := path + "/fs?path=" + url.QueryEscape("/tmp/a b/é.bin")
	var put api.FileWritten
	w.do("PUT", at+"&mode=0600", string(data), with("Content-Type", "application/octet-stream")).json(t, &put)
	if put.Bytes != int64(len(data)) || put.Path != "/tmp/a b/é.bin" {
		t.Fatalf("write returned %+v", put)
	}
	if a := w.do("GET", at, ""); a.status != 200 || a.body != string(data) ||
		a.header.Get("Content-Type") != "application/octet-stream" {
		t.Fatalf("read: got %d with %d bytes of type %s", a.status, len(a.body), a.header.Get("Content-Type"))
	}
	if a := w.do("HEAD", at, ""); a.status != 200 || a.header.Get("Content-Length") != fmt.Sprint(len(data)) {
		t.Errorf("HEAD: got %d %v", a.status, a.header)
	}
	var st api.FileEntry
	w.do("GET", strings.Replace(at, "/fs?", "/fs/stat?", 1), "").json(t, &st)
	if st.Size != int64(len(data)) || st.IsDir || st.Permissions != "0600" || st.Name != "é.bin" || st.Mode != "f" ||
		st.MTime == 0 {
		t.Errorf("got stat %+v", st)
	}
	var dir api.DirListing
	w.do("GET", path+"/fs/dir?path=/tmp", "").json(t, &dir)
	if len(dir.Entries) != 1 || dir.Entries[0].Name != "a b" || !dir.Entries[0].IsDir {
		t.Errorf("got listing %+v", dir)
	}
	w.do("GET", path+"/fs/dir?path=/tmp&depth=2", "").json(t, &dir)
	if len(dir.Entries) != 2 {
		t.Errorf("got listing of depth two %+v", dir)
	}
	if a := w.do("POST", path+"/fs/mkdir", `{"path":"/tmp/new/deep"}`); a.status != 201 {
		t.Errorf("mkdir: got %d %s, want 201", a.status, a.body)
	}
	if e := w.do("POST", path+"/fs/mkdir", `{"path":"/tmp/new/deep"}`).failed(t); e.Code != api.Conflict {
		t.Errorf("mkdir of a directory that exists: got %s, want conflict", e.Code)
	}
	if a := w.do("POST", path+"/fs/move", `{"from":"/tmp/a b/é.bin","to":"/tmp/moved"}`); a.status != 200 {
		t.Errorf("move: got %d %s, want 200", a.status, a.body)
	}
	for _, p := range []string{"/tmp/new&recursive=1", "/tmp/moved"} {
		if a := w.do("DELETE", path+"/fs?path="+p, ""); a.status != 204 || a.body != "" {
			t.Errorf("delete %s: got %d %s, want 204", p, a.status, a.body)
		}
	}
}

// TestMissingFilesAreNotFound checks the error that exists() of the SDKs depends on.
func TestMissingFilesAreNotFound(t *testing.T) {
	w := newFixture(t)
	_, path := w.create()
	for _, tt := range []struct{ method, path string }{
		{"GET", "/fs?path=/none"}, {"GET", "/fs/stat?path=/none"}, {"GET", "/fs/dir?path=/none"},
		{"DELETE", "/fs?path=/none"},
	} {
		if e := w.do(tt.method, path+tt.path, "").failed(t); e.Code != api.NotFound ||
			!strings.Contains(e.Message, "/none") {
			t.Errorf("%s %s: got %s %s, want not_found", tt.method, tt.path, e.Code, e.Message)
		}
	}
}

func TestWritesAreAtomicUnlessTold(t *testing.T) {
	w := newFixture(t)
	_, path := w.create()
	for query, want := range map[string]bool{
		"": true, "&atomic=true": true, "&atomic=1": true, "&atomic=false": false, "&atomic=0": false,
	} {
		if a := w.do("PUT", path+"/fs?path=/f"+query, "x"); a.status != 200 {
			t.Errorf("write with query %q: got %d %s", query, a.status, a.body)
		}
		w.boxes.mu.Lock()
		if w.boxes.atomic != want {
			t.Errorf("write with query %q: atomic is %t, want %t", query, w.boxes.atomic, want)
		}
		w.boxes.mu.Unlock()
	}
}

func TestRanges(t *testing.T) {
	w := newFixture(t)
	_, path := w.create()
	at := path + "/fs?path=/f"
	w.do("PUT", at, "0123456789")
	for _, tt := range []struct {
		header, body, span string
		status             int
	}{
		{"bytes=2-4", "234", "bytes 2-4/10", 206},
		{"bytes=7-", "789", "bytes 7-9/10", 206},
		{"bytes=-2", "89", "bytes 8-9/10", 206},
		{"bytes=-99", "0123456789", "bytes 0-9/10", 206},
		{"bytes=5-99", "56789", "bytes 5-9/10", 206},
		{"bytes=0-0", "0", "bytes 0-0/10", 206},
		{"bytes=1-2,4-5", "0123456789", "", 200},
		{"bytes=4-2", "0123456789", "", 200},
		{"lines=1-2", "0123456789", "", 200},
		{"bytes=10-", "", "bytes */10", 416},
	} {
		t.Run(tt.header, func(t *testing.T) {
			a := w.do("GET", at, "", with("Range", tt.header))
			if a.status != tt.status || a.header.Get("Content-Range") != tt.span ||
				tt.status != 416 && a.body != tt.body {
				t.Errorf(
					"%d %q %q, want %d %q %q",
					a.status,
					a.body,
					a.header.Get("Content-Range"),
					tt.status,
					tt.body,
					tt.span,
				)
			}
		})
	}
}

func (w *fixture) dial(path string, opt *websocket.DialOptions) *websocket.Conn {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, w.url+path, opt)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.CloseNow() })
	return conn
}

func (w *fixture) readMessage(c *websocket.Conn) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	_, b, err := c.Read(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(b)
}

// TestSocketsTakeKeys checks keys of WebSockets in the header, in the URL and in the subprotocol.
func TestSocketsTakeKeys(t *testing.T) {
	w := newFixture(t)
	_, path := w.create()
	for _, tt := range []struct {
		name, query, protocol string
		opt                   websocket.DialOptions
	}{
		{"header", "", "", websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + keyMember}}}},
		{"address", "&access_token=" + keyMember, "", websocket.DialOptions{}},
		{"subprotocol", "", "pds-pty", websocket.DialOptions{Subprotocols: []string{"pds-pty", "bearer." + keyMember}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := w.dial(path+"/exec/pty?rows=5&cols=6&cmd="+url.QueryEscape("echo hi; exit 4")+tt.query, &tt.opt)
			if c.Subprotocol() != tt.protocol {
				t.Errorf("got subprotocol %q, want %q", c.Subprotocol(), tt.protocol)
			}
			got := ""
			for !strings.Contains(got, "}") {
				got += w.readMessage(c)
			}
			if !strings.Contains(got, "hi") || !strings.HasSuffix(got, `{"exit":4,"type":"exit","code":4}`) {
				t.Errorf("got %q as the first message", got)
			}
		})
	}
	c := w.dial(
		path+"/exec/ws",
		&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + keyMember}}},
	)
	if err := c.Write(t.Context(), websocket.MessageText, []byte(`{"id":"1","cmd":"echo x"}`)); err != nil {
		t.Fatal(err)
	}
	if got := w.readMessage(c); got != `{"id":"1","stream":"stdout","data":"x\n"}` {
		t.Errorf("got %s", got)
	}
	if got := w.readMessage(c); !strings.HasPrefix(got, `{"id":"1","exit":0`) {
		t.Errorf("got %s", got)
	}
}

// TestSharedTerminal checks that all viewers see one program, including its output before they came, and that it
// outlives them.
func TestSharedTerminal(t *testing.T) {
	w := newFixture(t)
	_, path := w.create()
	join := func(query string) *websocket.Conn {
		return w.dial(
			path+"/exec/pty/shared?session=pair&cmd=cat"+query,
			&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + keyMember}}},
		)
	}
	say := func(c *websocket.Conn, text string) {
		t.Helper()
		if err := c.Write(t.Context(), websocket.MessageBinary, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	sees := func(c *websocket.Conn, want string) {
		t.Helper()
		got := ""
		for len(got) < len(want) {
			got += w.readMessage(c)
		}
		if got != want {
			t.Errorf("a viewer got %q, want %q", got, want)
		}
	}
	first := join("")
	say(first, "one\n")
	sees(first, "one\r\n")
	first.CloseNow()
	second, looks := join("&rows=5&cols=6"), join("&readonly=1")
	sees(second, "one\r\n")
	sees(looks, "one\r\n")
	say(looks, "not typed\n")
	say(second, "two\n")
	sees(second, "two\r\n")
	sees(looks, "two\r\n")
	var list []api.Process
	w.do("GET", path+"/processes", "").json(t, &list)
	if len(list) != 1 || list[0].Tag != "terminal:pair" {
		t.Fatalf("got processes %+v, want one", list)
	}
	w.do("POST", fmt.Sprintf("%s/processes/%d/signal", path, list[0].PID), `{"signal":9,"group":true}`)
	for _, c := range []*websocket.Conn{second, looks} {
		sees(c, `{"exit":137,"type":"exit","code":137}`)
	}
	sees(join(""), "") // a terminal that ended is started again
	if a := w.do("GET", path+"/exec/pty/shared?session=a/b", "", upgrade); a.status != 400 ||
		!strings.Contains(a.body, "session") {
		t.Errorf("a malformed name: got %d %s, want 400", a.status, a.body)
	}
}

// program starts a server inside the sandboxes, on port 3000.
func (w *fixture) program(h http.HandlerFunc) {
	srv := httptest.NewServer(h)
	w.t.Cleanup(srv.Close)
	w.boxes.dial = func() (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(w.t.Context(), "tcp", srv.Listener.Addr().String())
	}
}

func TestProxy(t *testing.T) {
	w := newFixture(t)
	w.program(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			c, err := websocket.Accept(rw, r, nil)
			if err != nil {
				return
			}
			kind, b, err := c.Read(r.Context())
			if err == nil {
				_ = c.Write(r.Context(), kind, append([]byte("echo "), b...))
			}
			_ = c.Close(websocket.StatusNormalClosure, "")
			return
		}
		body, _ := io.ReadAll(r.Body)
		rw.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(
			rw,
			"%s %s auth=%q host=%s prefix=%s body=%s",
			r.Method,
			r.RequestURI,
			r.Header.Get("Authorization"),
			r.Host,
			r.Header.Get("X-Forwarded-Prefix"),
			body,
		)
	})
	id, path := w.create()
	for _, tt := range []struct{ method, path, seen string }{
		{"POST", "/a//b%2Fc/?x=1&y", "/a//b%2Fc/?x=1&y"},
		{"DELETE", "/", "/"},
		{"GET", "", "/"},
		{"PATCH", "/../x", "/../x"},
	} {
		r := w.request(tt.method, "/v1/sandboxes", "hi")
		r.URL.Opaque = strings.TrimPrefix(w.url, "http:") + path + "/proxy/3000" + tt.path
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(res.Body)
		res.Body.Close()
		want := fmt.Sprintf(
			"%s %s auth=\"\" host=localhost:3000 prefix=%s/proxy/3000 body=hi",
			tt.method,
			tt.seen,
			path,
		)
		if res.StatusCode != http.StatusTeapot || string(got) != want {
			t.Errorf("%s %q: status %d\n got %s\nwant %s", tt.method, tt.path, res.StatusCode, got, want)
		}
	}
	c := w.dial(path+"/proxy/3000/ws?access_token="+keyMember, nil)
	if err := c.Write(t.Context(), websocket.MessageText, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got := w.readMessage(c); got != "echo x" {
		t.Errorf("WebSocket through the proxy: got %q, want echo x", got)
	}
	if e := w.do("GET", path+"/proxy/4000/", "").failed(t); e.Code != api.Unreachable || !e.Retryable ||
		e.RequestID == "" || e.Details["sandbox_id"] != string(id) || e.Details["port"] != 4000.0 {
		t.Errorf("closed port: got %+v, want unreachable", e)
	}
	if e := w.do("GET", path+"/proxy/99999/", "").failed(t); e.Code != api.Invalid {
		t.Errorf("malformed port: got %s, want invalid", e.Code)
	}
}

func TestLogs(t *testing.T) {
	w := newFixture(t)
	_, path := w.create()
	w.boxes.logs = sandbox.Logs{Console: "boot\n", Processes: []sandbox.ProcessEnd{
		{PID: 7, Stdout: "out", Stderr: "err\n"}, {PID: 8, Tag: "repl-python-x", Stdout: "{}"},
	}}
	for query, want := range map[string]string{
		"": "boot\nout\nerr\n", "?stream=both": "boot\nout\nerr\n", "?stream=stdout": "out\n",
		"?stream=stderr": "err\n", "?stream=console&follow=0": "boot\n",
	} {
		if a := w.do("GET", path+"/logs"+query, ""); a.body != want ||
			!strings.HasPrefix(a.header.Get("Content-Type"), "text/plain") {
			t.Errorf("logs%s: got %q, want %q", query, a.body, want)
		}
	}
}

// stream opens an event stream.
func (w *fixture) stream(path string, change ...func(*http.Request)) *bufio.Scanner {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	w.t.Cleanup(cancel)
	r := w.request("GET", path, "", append(change, with("Accept", "text/event-stream"))...).WithContext(ctx)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != 200 {
		w.t.Fatalf("%s: got %d, want 200", path, res.StatusCode)
	}
	return bufio.NewScanner(res.Body)
}

// data returns the data of the next event, "" at the end.
func data(s *bufio.Scanner) string {
	for s.Scan() {
		if d, ok := strings.CutPrefix(s.Text(), "data: "); ok {
			return d
		}
	}
	return ""
}

func TestLogsFollow(t *testing.T) {
	w := newFixture(t)
	_, path := w.create()
	set := func(l sandbox.Logs) { w.boxes.mu.Lock(); w.boxes.logs = l; w.boxes.mu.Unlock() }
	set(sandbox.Logs{Console: "one\ntw"})
	s := w.stream(path + "/logs?follow=1")
	if got := data(s); got != `{"line":"one","stream":"console"}` {
		t.Errorf("got %s", got)
	}
	set(
		sandbox.Logs{
			Console:   "e\ntwo\nthree\n",
			Processes: []sandbox.ProcessEnd{{PID: 7, Stdout: "out"}},
			Tombstone: &sandbox.Tombstone{},
		},
	)
	for _, want := range []string{
		`{"line":"two","stream":"console"}`,
		`{"line":"three","stream":"console"}`,
		`{"line":"out","stream":"stdout","pid":7}`,
		"",
	} {
		if got := data(s); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestEvents(t *testing.T) {
	w := newFixture(t)
	id, path := w.create()
	for _, kind := range []string{"a", "b", "c"} {
		w.boxes.addEvent(id, kind)
	}
	var list api.EventList
	w.do("GET", path+"/events?tail=2", "").json(t, &list)
	if len(list.Events) != 2 || list.Events[0].Type != "b" || list.Events[0].Time.IsZero() ||
		list.Events[0].Timestamp.IsZero() {
		t.Errorf("got events %+v, want the last ones", list)
	}
	s := w.stream(path+"/events?follow=1", with("Last-Event-ID", "2"))
	w.boxes.addEvent(id, "d")
	for _, want := range []string{"c", "d"} {
		var e api.Event
		if err := json.Unmarshal([]byte(data(s)), &e); err != nil || e.Type != want {
			t.Errorf("got event %+v, %v; want %s", e, err, want)
		}
	}
}

func TestKeysAndMe(t *testing.T) {
	w := newFixture(t)
	var made map[string]any
	w.do("POST", "/v1/me/tokens", `{"name":"ci","expires_in_days":2}`, as(keyAdmin)).json(t, &made)
	if made["label"] != "ci" || made["name"] != "ci" || made["expires_at"] == nil ||
		!strings.HasPrefix(fmt.Sprint(made["token"]), "pds_") {
		t.Errorf("got new key %v", made)
	}
	var list api.TokenList
	w.do("GET", "/v1/me/tokens", "", as(keyAdmin)).json(t, &list)
	if len(list.Items) != 1 || list.Items[0].Name != "first" {
		t.Errorf("got keys %+v", list)
	}
	if a := w.do("DELETE", "/v1/me/tokens/pds_admi", "", as(keyAdmin)); a.status != 204 {
		t.Errorf("revoke: got %d %s, want 204", a.status, a.body)
	}
	var me api.Me
	w.do("GET", "/v1/me", "").json(t, &me)
	for path, want := range map[string]int{"/v1/orgs": 200, "/v1/orgs/ours": 200, "/v1/orgs/theirs": 404} {
		if a := w.do("GET", path, ""); a.status != want || want == 200 && !strings.Contains(a.body, `"slug":"ours"`) {
			t.Errorf("%s: got %d %s", path, a.status, a.body)
		}
	}
	for body, want := range map[string]int{`{"org_id":"ours"}`: 200, `{"org_id":"theirs"}`: 404, `{}`: 400} {
		if a := w.do("POST", "/v1/me/current-org", body); a.status != want ||
			want == 200 && !strings.Contains(a.body, `"current_org":"ours"`) {
			t.Errorf("choice of %s: got %d %s", body, a.status, a.body)
		}
	}
	if me.CurrentOrg != "ours" || me.AuthMethod != "token" || len(me.Orgs) != 1 || me.Role != "developer" {
		t.Errorf("got me %+v", me)
	}
}

func TestNode(t *testing.T) {
	w := newFixture(t)
	w.create()
	for path, want := range map[string]string{
		"/healthz": `"status":"ok"`, "/readyz": `"host":"ok"`, "/version": `"version":"1.2.3"`,
		"/openapi.json": `"openapi": "3.1.0"`,
	} {
		if a := w.do("GET", path, "", as("")); a.status != 200 || !strings.Contains(a.body, want) {
			t.Errorf("%s: got %d %.200s, want 200", path, a.status, a.body)
		}
	}
	a := w.do("GET", "/metrics", "", as(keyOperator))
	for _, want := range []string{
		`pandastack_sandboxes{state="running"} 1`,
		`pandastack_sandbox_creates_total{boot_mode="snapshot",result="ok"} 1`,
		`pandastack_http_requests_total{method="POST",route="/v1/sandboxes",status="201"} 1`,
	} {
		if !strings.Contains(a.body, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	_, path := w.create()
	w.do("POST", path+"/pause", "")
	w.do("POST", path+"/snapshots", "")
	var have api.Overview
	w.do("GET", "/v1/metrics/overview", "").json(t, &have)
	if have.Workspace != "ours" || have.Sandboxes != 2 || have.ByStatus[api.Running] != 1 ||
		have.ByStatus[api.Paused] != 1 ||
		have.Snapshots != 1 {
		t.Errorf("got overview %+v", have)
	}
	var theirs api.Overview
	if w.do("GET", "/v1/metrics/overview", "", as(keyStranger)).json(t, &theirs); theirs.Sandboxes != 0 ||
		theirs.Snapshots != 0 {
		t.Errorf("got the overview of another workspace %+v, want it empty", theirs)
	}
	var boots api.BootStats
	w.do("GET", "/stats/boot", "", as(keyOperator)).json(t, &boots)
	if len(boots.Boots) != 1 || boots.Boots[0].BootMode != "snapshot" || boots.Boots[0].Count != 2 {
		t.Errorf("got boots %+v", boots)
	}
	w.boxes.mu.Lock()
	w.boxes.diskShort = true
	w.boxes.mu.Unlock()
	if e := w.do("GET", "/readyz", "", as("")).failed(t); e.Code != api.Unavailable ||
		!strings.Contains(e.Message, "disk is full") || !strings.Contains(e.Message, "12 MiB") {
		t.Errorf("readyz with a full disk: got %+v, want unavailable with the numbers", e)
	}
	w.boxes.mu.Lock()
	w.boxes.gone = true
	w.boxes.mu.Unlock()
	if e := w.do("GET", "/readyz", "", as("")).failed(t); e.Code != api.Unavailable {
		t.Errorf("readyz without a host: got %s, want unavailable", e.Code)
	}
	// The client gets no details of a fault of the server; the log has all of them.
	if e := w.do("GET", "/v1/capacity", "").failed(t); e.Code != api.Internal || strings.Contains(e.Message, "EOF") ||
		!strings.Contains(w.log.String(), "unexpected EOF") || !strings.Contains(w.log.String(), string(e.RequestID)) {
		t.Errorf("capacity without a host: got %+v with log %s, want internal", e, w.log)
	}
}
