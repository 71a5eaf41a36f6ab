package function_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/fnruntime"
)

func TestWSGI(t *testing.T) {
	t.Parallel()
	m := python(t, `
def app(environ, start_response):
    body = environ["wsgi.input"].read()
    if environ["PATH_INFO"] == "/fail": raise KeyError("gone")
    start_response("202 Accepted", [("Content-Type", "application/octet-stream"), ("Set-Cookie", "a=1"),
        ("Set-Cookie", "b=2"), ("X-Seen", environ["PATH_INFO"] + "?" + environ["QUERY_STRING"])])
    print("seen")
    yield body[::-1]
    yield b"!"
`)
	if style := m.ready(); style != "wsgi" {
		t.Errorf("style %q, want wsgi", style)
	}
	body := strings.Repeat("ab", 300_000)
	r := m.do(http.MethodPost, "/a%20b?c=%2f", body)
	if r.status != 202 || r.body != strings.Repeat("ba", 300_000)+"!" || r.header.Get("X-Seen") != "/a b?c=%2f" ||
		len(r.header["Set-Cookie"]) != 2 || r.summary.Stdout != "seen\n" {
		t.Errorf("status %d with %d bytes, header %v, %+v", r.status, len(r.body), r.header, r.summary)
	}
	if f := m.do(http.MethodGet, "/fail", "").failure(t); f.Type != "KeyError" {
		t.Errorf("failure %+v, want a KeyError", f)
	}
	if f := m.event(`{"x":1}`); f.status != 200 || f.body != `"}1:\"x\"{!"` {
		t.Errorf("an event: status %d with %s", f.status, f.body)
	}
}

func TestASGI(t *testing.T) {
	t.Parallel()
	m := python(t, `
import asyncio
started = []
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive(); started.append(1); await send({"type": "lifespan.startup.complete"})
        await receive()
        return
    if scope["path"] == "/meet":
        print("before", scope["query_string"].decode())
        mine = asyncio.get_running_loop().create_future()
        waiting.append(mine)
        if len(waiting) == 8: [w.set_result(None) for w in waiting]
        await mine
        print("after", scope["query_string"].decode())
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": b'{"started":%d,' % len(started), "more_body": True})
    await send({"type": "http.response.body", "body": b'"size":%d}' % len(body)})
waiting = []
`)
	if style := m.ready(); style != "asgi" {
		t.Errorf("style %q, want asgi", style)
	}
	r := m.do(http.MethodPut, "/x", strings.Repeat("x", 1_000_000))
	if r.status != 200 || r.body != `{"started":1,"size":1000000}` {
		t.Errorf("status %d with %q, %+v", r.status, r.body, r.summary.Failure)
	}
	m.meet("/meet?", 8)
}

// meet makes calls that wait for each other, and checks that each has its own output.
func (m *machine) meet(path string, n int) {
	m.t.Helper()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			r := m.do(http.MethodGet, path+fmt.Sprint(i+1), "")
			want := fmt.Sprintf("before %d\nafter %d\n", i+1, i+1)
			if r.status != 200 || r.summary.Stdout != want {
				m.t.Errorf("call %d: status %d with %q and output %q, want %q", i+1, r.status, r.body,
					r.summary.Stdout, want)
			}
		})
	}
	all.Wait()
}

func TestConcurrentCallsKeepTheirOutputs(t *testing.T) {
	t.Parallel()
	threads := python(t, `
import threading
barrier = threading.Barrier(8)
def handler(event, context):
    n = event["rawQueryString"]
    print("before", n)
    barrier.wait()
    print("after", n)
`)
	threads.meet("/?", 8)
	node(t, `
const waiting = [];
export async function GET(request) {
  const n = new URL(request.url).search.slice(1);
  console.log('before', n);
  await new Promise((resolve) => {
    waiting.push(resolve);
    if (waiting.length === 8) waiting.forEach((go) => go());
  });
  console.log('after', n);
  return new Response(n);
}
`).meet("/?", 8)
}

func TestScript(t *testing.T) {
	t.Parallel()
	py := python(t, `
import json, sys
event = json.load(sys.stdin)
print("working")
if event == "exit": sys.exit(5)
if event == "wait": __import__("threading").Event().wait()
print(json.dumps({"got": event}))
`)
	if style := py.ready(); style != "script" {
		t.Errorf("style %q, want script", style)
	}
	r := py.want(`[1]`, `{"got":[1]}`)
	if r.summary.ExitCode == nil || *r.summary.ExitCode != 0 || !strings.HasPrefix(r.summary.Stdout, "working\n") {
		t.Errorf("summary %+v, want exit code 0 and the output", r.summary)
	}
	r = py.event(`"exit"`)
	if f := r.failure(t); f.Type != "Runtime.Exited" || *r.summary.ExitCode != 5 || r.summary.Stdout != "working\n" {
		t.Errorf("summary %+v with %+v, want exit code 5", r.summary, f)
	}
	r = py.event(`"wait"`, fnruntime.HeaderDeadline, "3000")
	if f := r.failure(t); f.Type != "Runtime.Timeout" || !r.summary.TimedOut || r.status != 504 {
		t.Errorf("status %d, summary %+v with %+v, want a timeout", r.status, r.summary, f)
	}
	js := node(t, "console.log('plain');\nconsole.log('text')\n")
	js.want(`{}`, `"plain\ntext\n"`)
	if r := js.do(http.MethodGet, "/", ""); r.body != "plain\ntext\n" || r.status != 200 {
		t.Errorf("GET: status %d with %q", r.status, r.body)
	}
}

func TestRequestsToEventHandlers(t *testing.T) {
	t.Parallel()
	m := python(t, `
def handler(event, context):
    if event["rawPath"] == "/binary":
        return {"statusCode": 203, "headers": {"content-type": "image/png"}, "cookies": ["a=1", "b=2"],
                "body": b"\x00\xff"}
    if event["rawPath"] == "/bad": return {"statusCode": 200, "headers": {"bad name": "x"}}
    if event["rawPath"] == "/text": return "text"
    return event
`)
	r := m.do(http.MethodGet, "/binary", "")
	if r.status != 203 || r.body != "\x00\xff" || strings.Join(r.header["Set-Cookie"], ",") != "a=1,b=2" ||
		r.header.Get("Content-Type") != "image/png" {
		t.Errorf("response %+v", r)
	}
	if f := m.do(http.MethodGet, "/bad", "").failure(t); f.Type != "Runtime.InvalidResponse" {
		t.Errorf("failure %+v, want an invalid response", f)
	}
	if r := m.do(http.MethodGet, "/text", ""); r.body != "text" {
		t.Errorf("response %+v, want text", r)
	}
	r = m.do(http.MethodPost, "/a%20b?x=1&x=2", "\xff\x00", "Cookie", "k=v; l=w", "Content-Type", "image/gif")
	var e struct {
		RawPath, RawQueryString, Body string
		Cookies                       []string
		IsBase64Encoded               bool
		QueryStringParameters         map[string]string
		RequestContext                struct{ HTTP struct{ Method string } }
	}
	if err := json.Unmarshal([]byte(r.body), &e); err != nil {
		t.Fatal(err)
	}
	if e.RawPath != "/a%20b" || e.RawQueryString != "x=1&x=2" || e.Body != "/wA=" || !e.IsBase64Encoded ||
		strings.Join(e.Cookies, "|") != "k=v|l=w" || e.QueryStringParameters["x"] != "1,2" ||
		e.RequestContext.HTTP.Method != http.MethodPost {
		t.Errorf("event %+v of a request", e)
	}
}

// A response arrives while the handler still writes it, and the handler reads while it writes.
func TestStreams(t *testing.T) {
	for name, m := range map[string]func(testing.TB) *machine{
		"fetch": func(t testing.TB) *machine {
			return node(t, `export default { fetch: (request) => new Response(request.body) };`)
		},
		"asgi": func(t testing.TB) *machine {
			return python(t, `
async def app(scope, receive, send):
    if scope["type"] == "lifespan": raise RuntimeError("none")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    more = True
    while more:
        message = await receive()
        more = message.get("more_body", False)
        await send({"type": "http.response.body", "body": message.get("body", b""), "more_body": True})
    await send({"type": "http.response.body"})
`)
		},
		"wsgi": func(t testing.TB) *machine {
			return python(t, `
def app(environ, start_response):
    start_response("200 OK", [])
    for line in environ["wsgi.input"]: yield line
`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := m(t)
			body, sender := io.Pipe()
			req, err := http.NewRequest(http.MethodPost, m.url+"/", body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(fnruntime.HeaderInvocation, "stream")
			began := make(chan error, 1)
			go func() {
				_, err := io.WriteString(sender, "one\n")
				began <- err
			}()
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			in := bufio.NewReader(resp.Body)
			for _, line := range []string{"one\n", "two\n", "three\n"} {
				if line != "one\n" {
					if _, err := io.WriteString(sender, line); err != nil {
						t.Fatal(err)
					}
				} else if err := <-began; err != nil {
					t.Fatal(err)
				}
				if got, err := in.ReadString('\n'); got != line || err != nil {
					t.Fatalf("read %q, %v, want %q", got, err, line)
				}
			}
			if err := sender.Close(); err != nil {
				t.Fatal(err)
			}
			if r := m.read("stream", resp); r.summary.Failure != nil || r.status != 200 {
				t.Errorf("status %d, %+v", r.status, r.summary.Failure)
			}
		})
	}
}

func TestScheduledAndQueue(t *testing.T) {
	t.Parallel()
	at := []string{fnruntime.HeaderScheduled, "2026-01-02T03:04:05Z"}
	batch := `{"queue":"q","messages":[{"id":"a","body":1,"attempt":1},{"id":"b","body":2,"attempt":3}]}`
	of := []string{fnruntime.HeaderQueue, "q"}
	js := node(t, `
export default {
  fetch: () => new Response('web'),
  scheduled: (controller, env, context) => controller.scheduledTime + ' ' + context.attempt,
  queue(batch) { for (const m of batch.messages) if (m.attempts > 2) m.retry(); else m.ack(); },
};
`)
	py := python(t, `
def scheduled(event, context): return context.scheduled_time
def queue(batch, context): return {"batchItemFailures": [{"itemIdentifier": m["id"]} for m in batch["messages"][1:]]}
`)
	plain := python(t, "def handler(event): return event")
	for _, c := range []struct {
		m           *machine
		event, want string
		headers     []string
	}{
		{js, "null", `"1767323045000 1"`, at},
		{py, "null", `"2026-01-02T03:04:05Z"`, at},
		{plain, `{"x":1}`, `{"x":1}`, at},
		{js, batch, `{"failed":["b"]}`, of},
		{py, batch, `{"failed":["b"]}`, of},
		{plain, batch, batch, of},
	} {
		if r := c.m.event(c.event, c.headers...); r.status != 200 || !sameJSON(r.body, c.want) {
			t.Errorf("status %d with %s, want %s; %+v", r.status, r.body, c.want, r.summary.Failure)
		}
	}
	if f := py.event("{}").failure(t); f.Type != "Runtime.NoHandler" {
		t.Errorf("failure %+v, want none for events", f)
	}
	if f := plain.event("{").failure(t); f.Type != "Runtime.InvalidEvent" {
		t.Errorf("failure %+v, want an invalid event", f)
	}
	js.want(`{}`, `"web"`)
}

func TestRestored(t *testing.T) {
	for name, m := range map[string]func(testing.TB, opener) *machine{
		"python": func(t testing.TB, open opener) *machine {
			return open("python", "handler.py", `
import os, random
random.seed(1)
def handler(event, context): return [os.environ.get("A"), os.environ.get("B"), random.random()]
`)
		},
		"nodejs": func(t testing.TB, open opener) *machine {
			return open("nodejs", "index.mjs", `
import { randomUUID, randomInt, getRandomValues, randomBytes } from 'node:crypto';
export const handler = () => [process.env.A ?? null, process.env.B ?? null, Math.random(), randomUUID(),
  randomInt(10), randomBytes(4).toString('hex'), crypto.randomUUID(), getRandomValues?.(new Uint8Array(2))];
`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := m(t, func(runtime, file, source string) *machine {
				return open(t, place(t, map[string]string{file: source}),
					fnruntime.Serve{Runtime: runtime, Env: map[string]string{"A": "1"}})
			})
			m.ready()
			if r := m.event("null"); !strings.HasPrefix(r.body, `["1",`) && !strings.HasPrefix(r.body, `["1", null`) {
				t.Errorf("variables %s, want A alone", r.body)
			}
			body := `{"env":{"B":"2"}}`
			resp, err := http.Post(m.url+fnruntime.PathRestored, "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close() //nolint:errcheck // it has none
			if resp.StatusCode != http.StatusNoContent {
				t.Fatalf("status %d", resp.StatusCode)
			}
			var got []any
			r := m.event("null")
			if err := json.Unmarshal([]byte(r.body), &got); err != nil || got[0] != nil || got[1] != "2" {
				t.Fatalf("variables %s, want B alone; %+v", r.body, r.summary.Failure)
			}
			if got[2] == 0.13436424411240122 { // the first of seed 1
				t.Error("the random numbers are those of the machine that was captured")
			}
		})
	}
}

func TestTypeScript(t *testing.T) {
	t.Parallel()
	needs(t, "nodejs")
	const ask = "process.exit(process.allowedNodeEnvironmentFlags.has('--experimental-transform-types') ? 0 : 1)"
	if err := exec.Command("node", "-e", ask).Run(); err != nil {
		t.Skipf("probe node: it runs no TypeScript: %v", err)
	}
	p := place(t, map[string]string{"package.json": `{"type":"module"}`, "index.ts": `
import { twice } from './lib.js';
enum Color { Red = 'red' }
export const handler = async (event: { n: number }): Promise<object> => ({ d: twice(event.n), c: Color.Red });
`, "lib.ts": "export function twice(n: number): number { return n * 2 }\n"})
	m := open(t, p, fnruntime.Serve{Runtime: "nodejs"})
	m.ready()
	m.want(`{"n":4}`, `{"d":8,"c":"red"}`)
}

type opener func(runtime, file, source string) *machine

func TestReload(t *testing.T) {
	t.Parallel()
	p := place(t, map[string]string{"handler.py": "def handler(event): return 1\n"})
	m := open(t, p, fnruntime.Serve{Runtime: "python", Reload: true})
	m.ready()
	m.want("null", "1")
	write := func(source string) {
		if err := os.WriteFile(filepath.Join(p.Code, "handler.py"), []byte(source), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("def handler(event): return 22\n")
	m.want("null", "22")
	write("def handler(event: return 22\n")
	if _, f := m.load(); f == nil || f.Type != "SyntaxError" {
		t.Errorf("failure %+v, want a syntax error", f)
	}
	write("def handler(event): return 333\n")
	m.want("null", "333")
}

// A call that has no time left does not end those that run beside it.
func TestTimeoutLeavesOtherCalls(t *testing.T) {
	t.Parallel()
	m := python(t, `
import threading
event = threading.Event()
def handler(e, context):
    if e == "go": event.set(); return "went"
    if e == "stay": event.wait(); return "stayed"
    threading.Event().wait()
`)
	stayed := make(chan response, 1)
	go func() { stayed <- m.event(`"stay"`) }()
	// The first call runs, in the main thread, before the second is known to: either order shows the same.
	if f := m.event(`"hang"`, fnruntime.HeaderDeadline, "500").failure(t); f.Type != "Runtime.Timeout" {
		t.Errorf("failure %+v, want a timeout", f)
	}
	// The event handler of a new process is not that which waits.
	m.want(`"go"`, `"went"`)
	if len(stayed) != 0 {
		t.Errorf("the other call has ended: %+v", <-stayed)
	}
}

func TestHandlerIsUnprivileged(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("probe uid: only root can change the user")
	}
	p := place(t, map[string]string{"handler.py": `
import os
def handler(event, context):
    status = dict(l.split(":", 1) for l in open("/proc/self/status").read().splitlines() if ":" in l)
    try: open("handler.py", "a"); wrote = True
    except PermissionError: wrote = False
    children = 0
    try:
        while True:
            if os.fork() == 0: __import__("signal").pause()
            children += 1
    except OSError: pass
    return [os.getuid(), os.getgid(), os.getgroups(), status["NoNewPrivs"].strip(), int(status["CapEff"], 16), wrote,
            0 < children < 2000]
`})
	p.UID = 65431 // whose processes are those of no other test
	m := open(t, p, fnruntime.Serve{Runtime: "python"})
	m.ready()
	m.want("null", `[65431,65431,[],"1",0,false,true]`)
}

// The program of the tests is a program of the Runtime API too, in a bundle.
func lambdaMachine(t testing.TB) *machine {
	t.Helper()
	p := place(t, map[string]string{"bootstrap": ""})
	program, err := os.ReadFile(p.Program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.Code, "bootstrap"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	return open(t, p, fnruntime.Serve{Runtime: "provided", Env: map[string]string{"COLOR": "red"}})
}

// runLambda is the program.
func runLambda(api string) error {
	base := "http://" + api + "/2018-06-01/runtime/invocation/"
	for {
		resp, err := http.Get(base + "next")
		if err != nil {
			return err
		}
		event, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		id := resp.Header.Get("Lambda-Runtime-Aws-Request-Id")
		what, body := "/response", event
		mode := ""
		switch string(event) {
		case `"env"`:
			body = []byte(`"` + os.Getenv("COLOR") + `"`)
		case `"error"`:
			what, body = "/error", []byte(`{"errorType":"MyError","errorMessage":"no","stackTrace":["a","b"]}`)
		case `"junk"`:
			body = []byte("not JSON")
		case `"exit"`:
			os.Exit(9)
		case `"hang"`:
			select {}
		}
		if bytes.Contains(event, []byte("/stream")) {
			mode = "streaming"
			body = []byte(`{"statusCode":207,"headers":{"x-a":"b"}}` + strings.Repeat("\x00", 8) + "streamed")
		}
		req, err := http.NewRequest(http.MethodPost, base+id+what, bytes.NewReader(body))
		if err != nil {
			return err
		}
		if mode != "" {
			req.Header.Set("Lambda-Runtime-Function-Response-Mode", mode)
			req.Header.Set("Content-Type", "application/vnd.awslambda.http-integration-response")
		}
		done, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		if err := done.Body.Close(); err != nil {
			return err
		}
	}
}

func TestLambda(t *testing.T) {
	t.Parallel()
	m := lambdaMachine(t)
	if style := m.ready(); style != "lambda" {
		t.Errorf("style %q, want lambda", style)
	}
	m.want(`{"a":1}`, `{"a":1}`)
	m.want(`"env"`, `"red"`)
	f := m.event(`"error"`).failure(t)
	if f.Type != "MyError" || f.Message != "no" || f.Stack != "a\nb" {
		t.Errorf("failure %+v, want that of the program", f)
	}
	if f := m.event(`"junk"`).failure(t); f.Type != "Runtime.InvalidResult" {
		t.Errorf("failure %+v, want an invalid result", f)
	}
	r := m.event(`"exit"`)
	if f := r.failure(t); f.Type != "Runtime.Exited" || *r.summary.ExitCode != 9 {
		t.Errorf("summary %+v with %+v, want exit code 9", r.summary, f)
	}
	m.want("2", "2")
	if f := m.event(`"hang"`, fnruntime.HeaderDeadline, "300").failure(t); f.Type != "Runtime.Timeout" {
		t.Errorf("failure %+v, want a timeout", f)
	}
	if r := m.do(http.MethodGet, "/stream", ""); r.status != 207 || r.body != "streamed" || r.header.Get("X-A") != "b" {
		t.Errorf("response %+v", r)
	}
	body := `{"env":{"COLOR":"blue"}}`
	resp, err := http.Post(m.url+fnruntime.PathRestored, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it has none
	m.want(`"env"`, `"blue"`)
}
