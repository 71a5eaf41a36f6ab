package execstream_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
)

// testTimeout bounds every wait of the tests.
const testTimeout = 60 * time.Second

// guest runs scripted processes.
type guest struct {
	guestapi.Guest // nil: other methods panic

	mu      sync.Mutex
	started []guestapi.ProcessSpec
	signals []int
	procs   map[uint32]*process
	script  func(guestapi.ProcessSpec) (*process, error)
}

func newGuest(script func(guestapi.ProcessSpec) (*process, error)) *guest {
	return &guest{procs: map[uint32]*process{}, script: script}
}

func (g *guest) Start(_ context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p, err := g.script(spec)
	if err != nil {
		return nil, err
	}
	g.started = append(g.started, spec)
	p.pid = uint32(len(g.started))
	g.procs[p.pid] = p
	return p, nil
}

func (g *guest) Attach(_ context.Context, ref guestapi.ProcessRef, from guestapi.Offsets) (guestapi.Process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.procs[ref.PID]
	if p == nil {
		return nil, guestapi.ErrNotFound
	}
	return &process{pid: p.pid, events: p.after(from), dead: make(chan struct{})}, nil
}

func (g *guest) Signal(_ context.Context, ref guestapi.ProcessRef, signal int, group bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.procs[ref.PID]
	if p == nil || !group {
		return guestapi.ErrNotFound
	}
	g.signals = append(g.signals, signal)
	p.die()
	return nil
}

func (g *guest) sent() []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]int(nil), g.signals...)
}

// process returns its events and then, with hang, waits until it is killed.
type process struct {
	pid    uint32
	events []guestapi.Event
	hang   bool
	echo   bool // input comes back as output; "exit\n" ends it

	echoed int64 // bytes; used only by Next

	once  sync.Once
	dead  chan struct{}
	typed chan string

	mu    sync.Mutex
	next  int
	stdin strings.Builder
	sizes []guestapi.Size
}

// proc returns a process with events, whose offsets it sets from their lengths.
func proc(events ...guestapi.Event) *process {
	var at guestapi.Offsets
	for i, e := range events {
		if e.Exit == nil {
			events[i].Offset = *at.Of(e.Stream)
			*at.Of(e.Stream) += int64(len(e.Data))
		}
	}
	return &process{events: events, dead: make(chan struct{}), typed: make(chan string, 100)}
}

func (p *process) die() { p.once.Do(func() { close(p.dead) }) }

func (p *process) after(o guestapi.Offsets) []guestapi.Event {
	var list []guestapi.Event
	for _, e := range p.events {
		from := map[guestapi.Stream]int64{guestapi.StreamStdout: o.Stdout, guestapi.StreamStderr: o.Stderr,
			guestapi.StreamPTY: o.PTY}[e.Stream]
		if e.Exit == nil {
			skip := clamp(int(from-e.Offset), 0, len(e.Data))
			e.Data, e.Offset = e.Data[skip:], e.Offset+int64(skip)
		}
		if e.Exit != nil || len(e.Data) > 0 {
			list = append(list, e)
		}
	}
	return list
}

func (p *process) PID() uint32 { return p.pid }

func (p *process) Next(ctx context.Context) (guestapi.Event, error) {
	p.mu.Lock()
	if p.next < len(p.events) {
		p.next++
		defer p.mu.Unlock()
		return p.events[p.next-1], nil
	}
	p.mu.Unlock()
	if !p.hang && !p.echo {
		return guestapi.Event{}, io.EOF
	}
	select {
	case <-ctx.Done():
		return guestapi.Event{}, context.Cause(ctx)
	case s := <-p.typed:
		if s == "exit\n" {
			return guestapi.Event{Exit: &guestapi.Exit{Code: 5}}, nil
		}
		p.echoed += int64(len(s))
		return guestapi.Event{Stream: guestapi.StreamPTY, Offset: p.echoed - int64(len(s)), Data: []byte(s)}, nil
	case <-p.dead:
		return guestapi.Event{Exit: &guestapi.Exit{Code: 137, Signal: 9}}, nil
	}
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	p.stdin.Write(b)
	p.mu.Unlock()
	if p.echo {
		p.typed <- string(b)
	}
	return len(b), nil
}

func (p *process) CloseInput() error { return nil }
func (p *process) Close() error      { return nil }

func (p *process) Resize(_ context.Context, s guestapi.Size) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sizes = append(p.sizes, s)
	return nil
}

func out(s string) guestapi.Event {
	return guestapi.Event{Stream: guestapi.StreamStdout, Data: []byte(s)}
}
func errs(s string) guestapi.Event {
	return guestapi.Event{Stream: guestapi.StreamStderr, Data: []byte(s)}
}

// killed is the exit of a command that ran out of memory.
var killed = guestapi.Event{Exit: &guestapi.Exit{Code: 137, Signal: 9, OutOfMemory: true}}

func exit(code int) guestapi.Event { return guestapi.Event{Exit: &guestapi.Exit{Code: code}} }

// waitUntil waits for a condition.
func waitUntil(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(testTimeout)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", testTimeout, what)
		}
		<-tick.C
	}
}

func TestExec(t *testing.T) {
	in := "input"
	for _, tt := range []struct {
		name string
		req  api.ExecRequest
		p    *process
		err  error
		want api.ExecResult
		code api.Code
	}{
		{"output", api.ExecRequest{Cmd: "x", Stdin: &in}, proc(out("a"), errs("e"), out("\xff"), exit(3)), nil,
			api.ExecResult{Stdout: "a\uFFFD", Stderr: "e", ExitCode: 3}, ""},
		{"timeout", api.ExecRequest{Cmd: "x", TimeoutSeconds: 1.5}, proc(out("part"),
			guestapi.Event{Exit: &guestapi.Exit{Code: 137, TimedOut: true}}), nil, api.ExecResult{Stdout: "part",
			ExitCode: 137}, api.Timeout},
		{"no-memory", api.ExecRequest{Cmd: "x"}, proc(killed), nil, api.ExecResult{ExitCode: 137, OutOfMemory: true},
			""},
		{"no-such-dir", api.ExecRequest{Cmd: "x"}, proc(guestapi.Event{Exit: &guestapi.Exit{Error: "no such " +
			"directory"}}), nil, api.ExecResult{}, api.Invalid},
		{"no-exit", api.ExecRequest{Cmd: "x"}, proc(out("a")), nil, api.ExecResult{}, api.Unavailable},
		{"lost", api.ExecRequest{Cmd: "x"}, nil, guestapi.ErrLost, api.ExecResult{}, api.Unavailable},
		{"busy", api.ExecRequest{Cmd: "x"}, nil, guestapi.ErrBusy, api.ExecResult{}, api.QuotaExceeded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGuest(func(guestapi.ProcessSpec) (*process, error) { return tt.p, tt.err })
			got, err := execstream.Exec(t.Context(), g, tt.req)
			if api.CodeOf(err) != tt.code {
				t.Fatalf("Exec() = %v, want code %q", err, tt.code)
			}
			if got.Stdout != tt.want.Stdout || got.Stderr != tt.want.Stderr || got.ExitCode != tt.want.ExitCode ||
				got.OutOfMemory != tt.want.OutOfMemory {
				t.Errorf("Exec() = %+v, want %+v", got, tt.want)
			}
			if e, ok := errors.AsType[*api.Error](err); ok && tt.code == api.Timeout {
				if e.Message != "command timeout after 1.5s" || e.Details["stdout"] != "part" ||
					e.Details["duration_ms"] == nil {
					t.Errorf("timeout error is %q with %v, want the output so far", e.Message, e.Details)
				}
			}
			if tt.req.Stdin != nil && tt.p.stdin.String() != in {
				t.Errorf("standard input was %q", tt.p.stdin.String())
			}
		})
	}
}

func TestExecBoundsOutput(t *testing.T) {
	big := strings.Repeat("x", api.MaxOutput)
	g := newGuest(
		func(guestapi.ProcessSpec) (*process, error) { return proc(out(big), out("y"), errs("e"), exit(0)), nil },
	)
	got, err := execstream.Exec(t.Context(), g, api.ExecRequest{Cmd: "x"})
	if err != nil || len(got.Stdout) != api.MaxOutput || !got.StdoutTruncated || got.StderrTruncated {
		t.Errorf("Exec() = %d bytes, truncated %v and %v, %v, want %d bytes and only stdout truncated",
			len(got.Stdout), got.StdoutTruncated, got.StderrTruncated, err, api.MaxOutput)
	}
}

func TestExecKillsWhenClientIsGone(t *testing.T) {
	p := proc(out("a"))
	p.hang = true
	g := newGuest(func(guestapi.ProcessSpec) (*process, error) { return p, nil })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := execstream.Exec(ctx, g, api.ExecRequest{Cmd: "x"})
		done <- err
	}()
	cancel()
	if err := <-done; api.CodeOf(err) != api.Canceled {
		t.Errorf("Exec() = %v, want canceled", err)
	}
	if s := g.sent(); len(s) > 1 || len(s) == 1 && s[0] != 9 {
		t.Errorf("signals are %v, want one kill", s)
	}
}

// serve serves h over HTTP and returns the address.
func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

func body(t *testing.T, url string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestToSSE(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		p          *process
	}{
		{"split-character", "event: start\ndata: {\"pid\":1}\n\nevent: stdout\ndata: {\"chunk\":\"a\"}\n\nevent: " +
			"stderr\ndata: {\"chunk\":\"x\"}\n\nevent: stdout\ndata: {\"chunk\":\"€\"}\n\nevent: stdout\ndata: " +
			"{\"chunk\":\"\uFFFD\"}\n\nevent: exit\n",
			proc(out("a\xe2"), errs("x"), out("\x82\xac"), out("\xf0"), exit(0))},
		{"line-ends", "event: start\ndata: {\"pid\":1}\n\nevent: stdout\ndata: " +
			"{\"chunk\":\"a\\u0085\\u2028\\r\\u000b\\f\\u001cb\"}\n\nevent: exit\n",
			proc(out("a\u0085\u2028\r\v\f\x1cb"), exit(0))},
		{"timeout", "event: start\ndata: {\"pid\":1}\n\nevent: error\ndata: {\"error\":\"command timeout after " +
			"2s\",\"code\":\"timeout\",",
			proc(guestapi.Event{Exit: &guestapi.Exit{Code: 137, TimedOut: true}})},
		{"no-memory", "event: start\ndata: {\"pid\":1}\n\nevent: exit\ndata: " +
			"{\"exit_code\":137,\"out_of_memory\":true,", proc(killed)},
		{"newline", "event: start\ndata: {\"pid\":1}\n\nevent: stdout\ndata: {\"chunk\":\"a\\n\\nb\"}\n\nevent: " +
			"exit\ndata: {\"exit_code\":7,", proc(out("a\n\nb"), exit(7))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGuest(func(guestapi.ProcessSpec) (*process, error) { return tt.p, nil })
			got := body(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
				if err := execstream.ToSSE(r.Context(), g, api.ExecRequest{Cmd: "x", TimeoutSeconds: 2},
					func() *execstream.SSE { return execstream.NewSSE(w) }); err != nil {
					t.Error(err)
				}
			}))
			if !strings.HasPrefix(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

// A stream that is cut after any event and resumed with the id of the event loses no character and repeats none.
func TestAttachResumes(t *testing.T) {
	const text = "aé€😀b€c"
	p := proc()
	for i := range len(text) {
		p.events = append(
			p.events,
			guestapi.Event{Stream: guestapi.StreamStdout, Offset: int64(i), Data: []byte(text[i : i+1])},
		)
	}
	p.events = append(p.events, exit(4))
	g := newGuest(func(guestapi.ProcessSpec) (*process, error) { return p, nil })
	if _, err := g.Start(t.Context(), guestapi.ProcessSpec{}); err != nil {
		t.Fatal(err)
	}
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		from, err := execstream.ParseOffsets(r.URL.Query().Get("from"))
		if err != nil {
			t.Error(err)
		}
		if err := execstream.AttachSSE(r.Context(), g, guestapi.ProcessRef{PID: 1}, from,
			func() *execstream.SSE { return execstream.NewSSE(w) }); err != nil {
			t.Error(err)
		}
	})
	got, from, ended := "", "", false
	for range 100 {
		all := body(t, url+"?from="+from)
		event, ok := first(all, "id: ")
		if !ok {
			ended = strings.Contains(all, "event: exit\ndata: {\"exit_code\":4")
			break
		}
		from, _, _ = strings.Cut(event, "\n")
		_, data, _ := strings.Cut(event, `{"chunk":"`)
		chunk, _, _ := strings.Cut(data, `"}`)
		got += chunk
	}
	if got != text || !ended {
		t.Errorf("resumed text is %q, ended %v, want %q", got, ended, text)
	}
}

func first(s, mark string) (string, bool) {
	_, after, ok := strings.Cut(s, mark)
	return after, ok
}

// dial opens a WebSocket to a handler.
func dial(t *testing.T, h http.HandlerFunc) *websocket.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, serve(t, h), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	return conn
}

func send(t *testing.T, c *websocket.Conn, kind websocket.MessageType, s string) {
	t.Helper()
	if err := c.Write(t.Context(), kind, []byte(s)); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, c *websocket.Conn) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	_, b, err := c.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestExecMux(t *testing.T) {
	stuck := proc()
	stuck.hang = true
	left := proc()
	left.hang = true
	g := newGuest(func(s guestapi.ProcessSpec) (*process, error) {
		switch s.Shell {
		case "hang":
			return stuck, nil
		case "left":
			return left, nil
		case "bad":
			return nil, guestapi.ErrBusy
		case "hog":
			return proc(killed), nil
		}
		return proc(out("o"), errs("e"), exit(2)), nil
	})
	served := make(chan struct{})
	c := dial(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(served)
		conn, err := execstream.Accept(w, r)
		if err != nil {
			t.Error(err)
			return
		}
		if err := execstream.ExecMux(r.Context(), g, conn, api.ExecRequest{User: "u"}); err != nil {
			t.Error(err)
		}
	})
	send(t, c, websocket.MessageText, `{"id":1,"cmd":"hang"}`)
	waitUntil(t, "the first command", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.started) == 1 })
	for _, tt := range []struct {
		send string
		want []string
	}{
		{`{"id":"b","cmd":"x"}`, []string{`{"id":"b","stream":"stdout","data":"o"}`,
			`{"id":"b","stream":"stderr","data":"e"}`, `{"id":"b","exit":2,"duration_ms":`}},
		{`{"id":"b","cmd":"x"}`, []string{`{"id":"b","stream":"stdout"`, `{"id":"b","stream":"stderr"`,
			`{"id":"b","exit":2,`}},
		{`{"id":"m","cmd":"hog"}`, []string{`{"id":"m","exit":137,"out_of_memory":true,`}},
		{`{"id":1,"cmd":"x"}`, []string{`{"id":1,"error":"id: a command with this id is running: use another ` +
			`one","code":"conflict"}`}},
		{`{"id":"c"}`, []string{`{"id":"c","error":"cmd: is missing`}},
		{`{"cmd":"x"}`, []string{`{"id":null,"error":"id: is missing`}},
		{`no json`, []string{`{"id":null,"error":"message is not JSON`}},
		{`{"id":"d","cmd":"bad"}`, []string{`{"id":"d","error":"command: too many at once`}},
		{`{"id":"nobody","cancel":true}`, nil},
		{`{"id":1,"cancel":true}`, []string{`{"id":1,"error":"command was canceled","code":"canceled"}`}},
	} {
		send(t, c, websocket.MessageText, tt.send)
		for _, want := range tt.want {
			if got := receive(t, c); !strings.HasPrefix(got, want) {
				t.Errorf("after %s: got %s, want %s", tt.send, got, want)
			}
		}
	}
	send(t, c, websocket.MessageText, `{"id":9,"cmd":"left"}`)
	waitUntil(t, "the last command", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.procs) == 5 })
	c.CloseNow()
	select {
	case <-served:
	case <-time.After(testTimeout):
		t.Fatal("the command runs after its connection closed, want it killed")
	}
	if s := g.sent(); len(s) != 2 || s[0] != 9 || s[1] != 9 {
		t.Errorf("signals are %v, want two kills: of the canceled command and of the last one", s)
	}
}

func terminal(t *testing.T, term execstream.Terminal, p *process) (*websocket.Conn, *guest, chan struct{}) {
	t.Helper()
	g := newGuest(func(guestapi.ProcessSpec) (*process, error) { return p, nil })
	served := make(chan struct{})
	c := dial(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(served)
		p, err := term.Start(r.Context(), g)
		if err != nil {
			t.Error(err)
			return
		}
		conn, err := execstream.Accept(w, r)
		if err != nil {
			t.Error(err)
			return
		}
		term.PTY(r.Context(), g, p, conn)
	})
	return c, g, served
}

func TestTerminal(t *testing.T) {
	p := proc()
	p.echo = true
	c, g, served := terminal(t, execstream.Terminal{}, p)
	for _, tt := range []struct {
		kind       websocket.MessageType
		send, want string
	}{
		{websocket.MessageBinary, "\x00\xff", "\x00\xff"},
		{websocket.MessageText, `{"resize":{"rows":10,"cols":20}}`, ""},
		{websocket.MessageText, `{"type":"resize","rows":30,"cols":40}`, ""},
		{websocket.MessageText, `{"resize":{"rows":0,"cols":0}}`, ""},
		{websocket.MessageText, `{"stdin":"typed"}`, "typed"},
		{websocket.MessageText, `{"type":"stdin","data":"more"}`, "more"},
		{websocket.MessageText, "ls\n", "ls\n"},
		{websocket.MessageText, "5", "5"},
	} {
		send(t, c, tt.kind, tt.send)
		if tt.want != "" {
			if got := receive(t, c); got != tt.want {
				t.Errorf("after %q: got %q, want %q", tt.send, got, tt.want)
			}
		}
	}
	send(t, c, websocket.MessageBinary, "exit\n")
	if got := receive(t, c); got != `{"exit":5,"type":"exit","code":5}` {
		t.Errorf("last message is %s, want the exit", got)
	}
	if _, _, err := c.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("end is %v, want a normal close", err)
	}
	<-served
	if len(p.sizes) != 2 || p.sizes[0] != (guestapi.Size{Rows: 10, Cols: 20}) ||
		p.sizes[1] != (guestapi.Size{Rows: 30, Cols: 40}) {
		t.Errorf("sizes are %v, want those of the client", p.sizes)
	}
	if s := g.started[0]; s.PTY == nil || *s.PTY != (guestapi.Size{Rows: 24, Cols: 80}) || s.Env["TERM"] == "" ||
		!strings.Contains(s.Shell, "bash -l") {
		t.Errorf("started %+v, want a login shell in a terminal", s)
	}
	if len(g.sent()) != 0 {
		t.Errorf("signals to an exited program: %v, want none", g.sent())
	}
}

func TestTerminalIsHungUp(t *testing.T) {
	p := proc()
	p.hang = true
	c, g, served := terminal(t, execstream.Terminal{Cmd: "top"}, p)
	c.CloseNow()
	select {
	case <-served:
	case <-time.After(testTimeout):
		t.Fatal("the terminal still runs, want it hung up")
	}
	if s := g.sent(); len(s) != 1 || s[0] != 1 {
		t.Errorf("signals are %v, want a hang-up", s)
	}
}

func TestSilentTerminalOnlyCloses(t *testing.T) {
	p := proc(guestapi.Event{Stream: guestapi.StreamPTY, Data: []byte("bye")}, exit(3))
	c, _, _ := terminal(t, execstream.Terminal{Silent: true}, p)
	if got := receive(t, c); got != "bye" {
		t.Errorf("first message is %q", got)
	}
	if kind, b, err := c.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("last message is %v %q, %v, want a normal close without a message", kind, b, err)
	}
}

func TestSharedTerminalKeepsRunning(t *testing.T) {
	p := proc()
	p.echo = true
	term := execstream.Terminal{Shared: "pair", Size: guestapi.Size{Rows: 9, Cols: 8}, ReadOnly: true}
	c, g, served := terminal(t, term, p)
	send(t, c, websocket.MessageText, `{"resize":{"rows":1,"cols":1}}`)
	send(t, c, websocket.MessageBinary, "not typed")
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Fatal(err)
	}
	select {
	case <-served:
	case <-time.After(testTimeout):
		t.Fatal("the stream of the viewer is open, want it closed")
	}
	if s := g.sent(); len(s) != 0 || g.started[0].Tag != "terminal:pair" {
		t.Errorf("signals to %+v when its viewer left: %v, want none", g.started[0], s)
	}
	if p.stdin.Len() != 0 || len(p.sizes) != 0 {
		t.Errorf("a read-only client typed %q and set sizes %v, want nothing", p.stdin.String(), p.sizes)
	}
}
