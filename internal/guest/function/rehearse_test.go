package function_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/fnruntime"
)

// restore tells the program that its machine was restored.
func (m *machine) restore() {
	m.t.Helper()
	resp, err := http.Post(m.url+fnruntime.PathRestored, "application/json", strings.NewReader(`{}`))
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it has none
	if resp.StatusCode != http.StatusNoContent {
		m.t.Fatalf("restored: status %d", resp.StatusCode)
	}
}

// TestRehearse checks that a rehearsal goes to the process of the handler and back, and does not call the handler.
func TestRehearse(t *testing.T) {
	t.Parallel()
	const called = "/called" // below the directory of the test, which the handler's user may write to
	for name, v := range map[string]struct{ runtime, file, source string }{
		"python event": {"python", "handler.py", "def handler(event, context): open('FILE', 'w'); return 1"},
		"python async": {"python", "handler.py", "async def handler(event, context): open('FILE', 'w'); return 1"},
		"python scheduled": {"python", "handler.py",
			"def scheduled(event, context): open('FILE', 'w')\ndef queue(event, context): open('FILE', 'w')"},
		"wsgi": {"python", "app.py", `
def app(environ, start_response):
    open('FILE', 'w')
    start_response("200 OK", [])
    return [b"1"]
`},
		"asgi": {"python", "app.py", `
async def app(scope, receive, send):
    if scope["type"] != "http":
        raise RuntimeError("no lifespan")
    open('FILE', 'w')
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"1"})
`},
		"python script": {"python", "main.py", "open('FILE', 'w')"},
		"nodejs event": {"nodejs", "index.mjs",
			"import fs from 'node:fs'; export const handler = () => { fs.writeFileSync('FILE', ''); return 1; };"},
		"nodejs fetch": {"nodejs", "index.mjs", "import fs from 'node:fs';\n" +
			"export default { fetch() { fs.writeFileSync('FILE', ''); return new Response('1'); } };"},
		"nodejs scheduled": {"nodejs", "index.mjs", "import fs from 'node:fs';\n" +
			"export default { scheduled() { fs.writeFileSync('FILE', ''); } };"},
		"nodejs script": {"nodejs", "index.js", "require('node:fs').writeFileSync('FILE', '');"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			needs(t, v.runtime)
			dir := t.TempDir()
			for _, d := range []string{filepath.Dir(dir), dir} {
				if err := os.Chmod(d, 0o777); err != nil {
					t.Fatal(err)
				}
			}
			file := dir + called
			source := strings.ReplaceAll(v.source, "FILE", file)
			m := open(t, place(t, map[string]string{v.file: source}), fnruntime.Serve{Runtime: v.runtime})
			style := m.ready()
			m.restore()
			for range 2 {
				r := m.do(http.MethodPost, fnruntime.PathRehearse, `{"n":1}`)
				if r.status != http.StatusOK || r.summary.Failure != nil {
					t.Fatalf("status %d with %s; %+v", r.status, r.body, r.summary)
				}
				if script := style == "script"; (r.summary.Stdout == "rehearsal\n") == script {
					t.Errorf("output %q", r.summary.Stdout)
				}
			}
			if _, err := os.Stat(file); !os.IsNotExist(err) {
				t.Errorf("the handler was called: %v", err)
			}
			if strings.Contains(name, "scheduled") {
				return
			}
			// The same handler is called by an event.
			m.event(`{}`)
			if _, err := os.Stat(file); err != nil {
				t.Errorf("the handler was not called by an event: %v", err)
			}
		})
	}
}

// TestRehearseLambda checks that a program that uses the Runtime API gets nothing.
func TestRehearseLambda(t *testing.T) {
	t.Parallel()
	m := lambdaMachine(t)
	r := m.do(http.MethodPost, fnruntime.PathRehearse, `"exit"`) // ends the program that gets it
	if r.status != http.StatusOK || r.body != `"exit"` {
		t.Errorf("status %d with %s; %+v", r.status, r.body, r.summary)
	}
	m.want("2", "2")
}

// TestRandomAfterRestore checks that Math.random takes new numbers after each restore: the machine that was captured
// may have been restored itself.
func TestRandomAfterRestore(t *testing.T) {
	t.Parallel()
	m := node(t, `
import fs from 'node:fs';
const read = fs.readSync;
let reads = 0;
fs.readSync = (...args) => { reads++; return read(...args); };
export const handler = () => { Math.random(); return reads; };
`)
	m.want("null", "0")
	m.restore()
	m.want("null", "1")
	m.want("null", "1") // of those that were read
	m.restore()
	m.want("null", "2")
}

// TestRequestsAreNoVerbs checks that a caller of the handler reaches it with every path, and none of the program's
// verbs.
func TestRequestsAreNoVerbs(t *testing.T) {
	t.Parallel()
	m := python(t, `
def handler(event, context):
    request = event.get("requestContext")
    return {"path": event.get("rawPath"), "marked": "pandastack-request" in event["headers"]} if request else "event"
`)
	for _, path := range []string{fnruntime.PathReady, fnruntime.PathRestored, fnruntime.PathEvent,
		fnruntime.PathRehearse, fnruntime.PathSummary + "inv1"} {
		r := m.do(http.MethodPost, path, `{"env":{"A":"1"}}`, fnruntime.HeaderRequest, "1")
		if want := `{"path":"` + path + `","marked":false}`; r.status != http.StatusOK || !sameJSON(r.body, want) {
			t.Errorf("%s: status %d with %s, want %s", path, r.status, r.body, want)
		}
	}
	m.want("{}", `"event"`)
}
