package httpapi_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/httpapi"
	"github.com/pandastack/pandastack/internal/ingress/repl"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// memoryTotal is the memory budget of these tests.
const memoryTotal = 16 << 20

func newMemory() *budget.Pool {
	return budget.New(budget.Config{
		Name: "memory", Total: memoryTotal, Levels: []budget.Level{{Name: "workspace"}, {Name: "sandbox"}},
		Account: budget.Level{Name: "request", Max: memoryTotal / 4},
	})
}

// loudGuest is the guest of a hostile sandbox: everything in it prints as much as it can.
type loudGuest struct {
	guestapi.Guest
	events  func(tag string) []guestapi.Event // of a process, again and again
	times   int
	entered func() // called when all output of a process was taken
}

func (g *loudGuest) Start(_ context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	return &loudProcess{g: g, tag: spec.Tag}, nil
}

func (g *loudGuest) Attach(
	_ context.Context,
	ref guestapi.ProcessRef,
	_ guestapi.Offsets,
) (guestapi.Process, error) {
	return &loudProcess{g: g, tag: ref.Tag, got: make(chan string, 1)}, nil
}

func (*loudGuest) Signal(context.Context, guestapi.ProcessRef, int, bool) error { return nil }

type loudProcess struct {
	guestapi.Process
	g       *loudGuest
	tag     string
	got     chan string // the mark of the cell, from what is written; nil: a command
	mark    string
	n       int
	written [3]int64
	left    []guestapi.Event
}

func (*loudProcess) PID() uint32       { return 7 }
func (*loudProcess) Close() error      { return nil }
func (*loudProcess) CloseInput() error { return nil }

func (p *loudProcess) Write(b []byte) (int, error) {
	if p.got != nil {
		mark, _, _ := strings.Cut(string(b), " ")
		p.got <- mark
	}
	return len(b), nil
}

func (p *loudProcess) Next(ctx context.Context) (guestapi.Event, error) {
	if p.got != nil && p.mark == "" {
		p.mark = <-p.got
	}
	for len(p.left) == 0 {
		if p.n == p.g.times {
			if p.g.entered != nil {
				p.g.entered()
			}
			if p.got == nil {
				return guestapi.Event{Exit: &guestapi.Exit{}}, nil
			}
			end := []byte("\x01" + p.mark + ":0\x02")
			p.left = []guestapi.Event{
				{Stream: guestapi.StreamStdout, Data: end}, {Stream: guestapi.StreamStderr, Data: end},
			}
			p.n++
			break
		}
		p.n++
		p.left = p.g.events(p.mark)
	}
	e := p.left[0]
	p.left = p.left[1:]
	e.Offset = p.written[e.Stream]
	p.written[e.Stream] += int64(len(e.Data))
	return e, ctx.Err()
}

// hostile serves sandboxes of a workspace that attacks, and of its neighbour, whose guest is an ordinary one.
type hostile struct {
	*fakeSandboxes
	guest guestapi.Guest
}

func (h hostile) GuestAndSandbox(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
) (guestapi.Guest, api.Sandbox, error) {
	g, box, err := h.fakeSandboxes.GuestAndSandbox(ctx, p, id)
	if err == nil && p.Workspace == "ours" {
		g = h.guest
	}
	return g, box, err
}

// createAs creates a sandbox with the key of another workspace and returns its path.
func (w *fixture) createAs(key string) string {
	w.t.Helper()
	a := w.do("POST", "/v1/sandboxes", `{"template":"base"}`, as(key))
	var box api.Sandbox
	a.json(w.t, &box)
	return "/v1/sandboxes/" + string(box.ID)
}

// attack sends many requests at once, whose output is held until all of them have it, and returns the responses.
func attack(t *testing.T, w *fixture, memory *budget.Pool, guest *loudGuest, path, body string) []response {
	t.Helper()
	const requests = 12
	var all sync.WaitGroup
	var mu sync.Mutex
	var responses []response
	most := int64(0)
	inside, release := make(chan struct{}, requests), make(chan struct{})
	guest.entered = func() {
		inside <- struct{}{}
		<-release
	}
	for i := range requests {
		all.Go(func() {
			a := w.do("POST", strings.ReplaceAll(path, "{i}", fmt.Sprint(i)), body)
			mu.Lock()
			defer mu.Unlock()
			responses = append(responses, a)
			if a.status != http.StatusOK {
				inside <- struct{}{} // it was refused before it began
			}
		})
	}
	for range requests {
		<-inside
		most = max(most, memory.Used())
	}
	if most > memoryTotal/4 {
		t.Errorf("the sandbox held %d bytes, want at most a quarter of %d", most, memoryTotal)
	}
	if most < memoryTotal/8 {
		t.Errorf("the sandbox held %d bytes at most: the attack does not reach the budget", most)
	}
	neighbour := w.createAs(keyStranger)
	a := w.do("POST", neighbour+"/exec", `{"cmd":"echo hello"}`, as(keyStranger))
	if a.status != http.StatusOK || !strings.Contains(a.body, `"stdout":"hello\n"`) {
		t.Errorf("the neighbour got %d %.200s, want hello", a.status, a.body)
	}
	close(release)
	all.Wait()
	if used := memory.Used(); used != 0 {
		t.Errorf("%d bytes are held after all requests have ended, want none", used)
	}
	return responses
}

func hostileFixture(t *testing.T, guest guestapi.Guest) (*fixture, *budget.Pool) {
	t.Helper()
	memory := newMemory()
	w := newFixture(t, func(d *httpapi.Deps) {
		d.Memory = memory
		boxes, _ := d.Sandboxes.(*fakeSandboxes)
		d.Sandboxes = hostile{boxes, guest}
	})
	return w, memory
}

// Cells with many large results, and with output without end, hold no more than their share.
func TestHostileCells(t *testing.T) {
	for name, media := range map[string]string{
		"pictures": "image/png", "tables": "text/csv", "json": "application/json", "pages": "text/html",
	} {
		t.Run(name, func(t *testing.T) {
			plain := strings.Repeat(",,\n", 64<<10)
			if media == "application/json" {
				plain = "[" + strings.Repeat("[],", 64<<10) + "0]"
			}
			content := base64.StdEncoding.EncodeToString([]byte(plain))
			guest := &loudGuest{times: 60}
			guest.events = func(mark string) []guestapi.Event {
				return []guestapi.Event{
					{Stream: guestapi.StreamStdout, Data: []byte("\x01" + mark + "=" + media + ":" + content + "\x02")},
					{Stream: guestapi.StreamStdout, Data: bytes.Repeat([]byte("x"), 64<<10)},
				}
			}
			w, memory := hostileFixture(t, guest)
			_, path := w.create()
			var truncated, refused int
			for _, a := range attack(t, w, memory, guest, path+"/repl/sessions/sh{i}/run", `{"code":":"}`) {
				if a.status != http.StatusOK {
					if e := a.failed(t); e.Code != api.QuotaExceeded || e.Details["allowed"] == nil ||
						e.Details["used"] == nil || a.header.Get("Retry-After") == "" {
						t.Errorf("got %d %s, want quota_exceeded with used and allowed", a.status, a.body)
					}
					refused++
					continue
				}
				var res api.ReplResult
				a.json(t, &res)
				if res.ResultsTruncated || res.StdoutTruncated {
					truncated++
				}
			}
			if truncated == 0 {
				t.Errorf("%d were refused and none was cut, want some to be cut", refused)
			}
		})
	}
}

// Commands that print what is long in memory or in JSON hold no more than their share.
func TestHostileOutput(t *testing.T) {
	for name, data := range map[string]string{"text": "x", "zeros": "\x00", "invalid": "\xff"} {
		t.Run(name, func(t *testing.T) {
			guest := &loudGuest{times: 60}
			guest.events = func(string) []guestapi.Event {
				out := []byte(strings.Repeat(data, 64<<10))
				return []guestapi.Event{
					{Stream: guestapi.StreamStdout, Data: out}, {Stream: guestapi.StreamStderr, Data: out},
				}
			}
			w, memory := hostileFixture(t, guest)
			_, path := w.create()
			for _, a := range attack(t, w, memory, guest, path+"/exec", `{"cmd":"yes"}`) {
				if a.status != http.StatusOK {
					if e := a.failed(t); e.Code != api.QuotaExceeded {
						t.Errorf("got %d %.200s, want quota_exceeded", a.status, a.body)
					}
					continue
				}
				var res api.ExecResult
				a.json(t, &res)
				if !res.StdoutTruncated || !res.StderrTruncated {
					t.Errorf("%d and %d bytes are not marked as cut", len(res.Stdout), len(res.Stderr))
				}
			}
		})
	}
}

// Bodies are paid while they are read: those that are too much for a request are too_large.
func TestBodiesArePaid(t *testing.T) {
	w, memory := hostileFixture(t, &loudGuest{})
	_, path := w.create()
	body := `{"cmd":"true","stdin":"` + strings.Repeat("x", 4<<20) + `"}`
	e := w.do("POST", path+"/exec", body).failed(t)
	if e.Code != api.TooLarge || e.Details["budget"] != "memory" || e.Details["level"] != "request" {
		t.Errorf("a body of 4 MiB with a budget of 4 MiB = %+v, want too_large with the budget", e)
	}
	if used := memory.Used(); used != 0 {
		t.Errorf("%d bytes are held, want none", used)
	}
}

// A message on a WebSocket that is not paid for ends the connection, and holds nothing.
func TestSocketMessagesArePaid(t *testing.T) {
	memory := budget.New(budget.Config{
		Name: "memory", Total: 8 << 20, Levels: []budget.Level{{Name: "workspace"}, {Name: "sandbox"}},
	})
	w := newFixture(t, func(d *httpapi.Deps) { d.Memory = memory })
	_, path := w.create()
	c := w.dial(path+"/exec/ws", &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + keyMember}},
	})
	big, err := json.Marshal(map[string]any{"id": 1, "cmd": strings.Repeat("x", 3<<20)})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write(t.Context(), websocket.MessageText, big); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusTryAgainLater {
		t.Errorf("Read() = %v, want the close of a server without memory", err)
	}
}

// A large response is sent in pieces and is the same as a small one would be.
func TestLargeResponses(t *testing.T) {
	guest := &loudGuest{times: 10}
	guest.events = func(string) []guestapi.Event {
		return []guestapi.Event{{Stream: guestapi.StreamStdout, Data: bytes.Repeat([]byte("a\x00é"), 16<<10)}}
	}
	w := newFixture(t, func(d *httpapi.Deps) {
		boxes, _ := d.Sandboxes.(*fakeSandboxes)
		d.Sandboxes = hostile{boxes, guest}
	})
	_, path := w.create()
	a := w.do("POST", path+"/exec", `{"cmd":"yes"}`)
	var res api.ExecResult
	a.json(t, &res)
	if want := strings.Repeat("a\x00é", 160<<10); res.Stdout != want || a.header.Get("Content-Length") != "" {
		t.Errorf("got %d bytes with length %q, want %d in pieces",
			len(res.Stdout), a.header.Get("Content-Length"), len(want))
	}
	guest.times = 1
	a = w.do("POST", path+"/exec", `{"cmd":"yes"}`)
	a.json(t, &res)
	guest.events = func(string) []guestapi.Event {
		return []guestapi.Event{{Stream: guestapi.StreamStdout, Data: []byte("short")}}
	}
	a = w.do("POST", path+"/exec", `{"cmd":"yes"}`)
	a.json(t, &res)
	if got, want := a.header.Get("Content-Length"), fmt.Sprint(len(a.body)); got != want || res.Stdout != "short" {
		t.Errorf("a short response has length %s, want %s", got, want)
	}
}

// oneContext is a guest that runs one context.
type oneContext struct{ guestapi.Guest }

func (oneContext) Processes(context.Context) ([]guestapi.ProcessInfo, error) {
	return []guestapi.ProcessInfo{{PID: 1, Tag: "repl-bash-sh1"}}, nil
}

func TestContextsAreLimited(t *testing.T) {
	w := newFixture(t, func(d *httpapi.Deps) {
		boxes, _ := d.Sandboxes.(*fakeSandboxes)
		d.Sandboxes, d.Cells = hostile{boxes, oneContext{}}, &repl.Runner{MaxContexts: 1}
	})
	_, path := w.create()
	e := w.do("POST", path+"/repl/sessions", `{"language":"bash"}`).failed(t)
	if e.Code != api.QuotaExceeded || e.Details["budget"] != "contexts" || e.Details["used"] != 1.0 ||
		e.Details["allowed"] != 1.0 {
		t.Errorf("start another context: %+v, want quota_exceeded with 1 of 1 used", e)
	}
}
