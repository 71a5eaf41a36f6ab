package function_test

import (
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/fnruntime"
)

// Each handler fails for the event "fault" in its own way, and must work again for the next event.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name, python, node string
		kind               string
		message            string // part of it
		code               int    // exit code; 0: none
		deadline           string
		stdout             string
	}{
		{
			name: "raises", kind: "ValueError", message: "bad value",
			python: "raise ValueError('bad value')",
		},
		{
			name: "throws", kind: "RangeError", message: "bad value",
			node: "throw new RangeError('bad value')",
		},
		{
			name: "exits", kind: "Runtime.Exited", message: "exit", code: 3, stdout: "before\n",
			python: "print('before'); sys.exit(3)", node: "console.log('before'); process.exit(3)",
		},
		{
			name: "exits at once", kind: "Runtime.Exited", message: "exit code 4", code: 4, stdout: "before\n",
			python: "print('before'); os._exit(4)", node: "console.log('before'); process.reallyExit(4)",
		},
		{
			name: "kills itself", kind: "Runtime.Exited", message: "killed", code: 128 + 9,
			python: "os.kill(os.getpid(), 9)", node: "process.kill(process.pid, 'SIGKILL')",
		},
		{
			name: "never returns", kind: "Runtime.Timeout", deadline: "400", stdout: "before\n",
			python: "print('before')\n    while True: pass", node: "console.log('before'); for (;;);",
		},
		{
			name: "waits for ever", kind: "Runtime.Timeout", deadline: "400", stdout: "before\n",
			python: "print('before'); __import__('threading').Event().wait()",
			node:   "console.log('before'); await new Promise(() => setInterval(() => {}, 1000))",
		},
		{
			name: "ignores signals", kind: "Runtime.Timeout", deadline: "400",
			python: "import signal, time\n    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\n" +
				"    time.sleep(3600)",
		},
		{
			name: "closes its sockets", kind: "Runtime.ConnectionClosed",
			python: "os.closerange(3, 100)",
		},
		{
			name: "closes all files", kind: "Runtime.Exited", message: "aborted", // by libuv
			node: "for (let i = 3; i < 100; i++) try { fs.closeSync(i) } catch {}",
		},
		{
			name: "writes to its sockets", kind: "Runtime.Protocol",
			python: "[os.write(fd, b'x' * 64) for fd in range(5, 60) if is_socket(fd)]",
		},
		{
			name: "returns no JSON", kind: "Runtime.InvalidResult",
			python: "return {1, 2}", node: "return 10n",
		},
		{
			name: "returns what refers to itself", kind: "Runtime.InvalidResult",
			python: "x = []; x.append(x); return x", node: "const x = {}; x.x = x; return x",
		},
		{
			name: "returns no number", kind: "Runtime.InvalidResult",
			python: "return float('nan')", node: "return () => 1",
		},
		{
			name: "fails in a timer", kind: "TypeError", message: "late",
			node: "setTimeout(() => { throw new TypeError('late') }); await new Promise(() => {})",
		},
		{
			name: "rejects a promise of no call", kind: "TypeError", message: "late",
			node: "Promise.reject(new TypeError('late')); await new Promise(() => {})",
		},
		{
			name: "raises what has no text", kind: "Nasty",
			python: "raise Nasty()",
		},
	} {
		for runtime, body := range map[string]string{"python": c.python, "nodejs": c.node} {
			if body == "" {
				continue
			}
			t.Run(c.name+" in "+runtime, func(t *testing.T) {
				t.Parallel()
				var m *machine
				if runtime == "python" {
					m = python(t, `import os, socket, stat, sys
class Nasty(Exception):
    def __str__(self): raise RuntimeError("no text")
def is_socket(fd):
    try: return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError: return False
def fault():
    `+body+`
def handler(event, context):
    return fault() if event == "fault" else event
`)
				} else {
					m = node(t, `import fs from 'node:fs';
async function fault() {
  `+body+`
}
export const handler = async (event) => event === 'fault' ? fault() : event;
`)
				}
				var headers []string
				if c.deadline != "" {
					headers = []string{fnruntime.HeaderDeadline, c.deadline}
				}
				r := m.event(`"fault"`, headers...)
				f := r.failure(t)
				if f.Type != c.kind || !strings.Contains(f.Message, c.message) {
					t.Errorf("failure %+v, want type %s with %q", f, c.kind, c.message)
				}
				status := 500
				if c.deadline != "" {
					status = 504
				}
				if r.status != status || r.header.Get(fnruntime.HeaderFailure) != c.kind ||
					r.summary.TimedOut != (c.deadline != "") {
					t.Errorf("status %d with %+v, want %d and type %s", r.status, r.summary, status, c.kind)
				}
				if c.stdout != "" && r.summary.Stdout != c.stdout {
					t.Errorf("stdout %q, want %q", r.summary.Stdout, c.stdout)
				}
				if code := r.summary.ExitCode; c.code != 0 && (code == nil || *code != c.code) {
					t.Errorf("exit code %v, want %d", code, c.code)
				}
				m.want(`{"next":1}`, `{"next":1}`)
			})
		}
	}
}

func TestStackOfErrors(t *testing.T) {
	t.Parallel()
	py := python(t, `
def inner(): return {}["key"]
def handler(event, context):
    try: inner()
    except KeyError as e: raise RuntimeError("outer") from e
`).event("{}").failure(t)
	for _, part := range []string{"in handler", "RuntimeError: outer", "Caused by", "in inner"} {
		if !strings.Contains(py.Stack, part) {
			t.Errorf("stack %q, want %q in it", py.Stack, part)
		}
	}
	if strings.Contains(py.Stack, "shim.py") {
		t.Errorf("stack %q has the shim", py.Stack)
	}
	js := node(t, `
export function handler() { throw new Error('outer', { cause: new TypeError('inner') }); }
`).event("{}").failure(t)
	for _, part := range []string{"Error: outer", "index.mjs:2", "Caused by: TypeError: inner"} {
		if !strings.Contains(js.Stack, part) {
			t.Errorf("stack %q, want %q in it", js.Stack, part)
		}
	}
}

func TestOutputIsBounded(t *testing.T) {
	t.Parallel()
	m := python(t, `
import os, subprocess
def handler(event, context):
    if event == "print":
        for _ in range(1000): print("x" * 100_000)
    elif event == "raw":
        for _ in range(1000): os.write(1, b"x" * 100_000)
    elif event == "child":
        subprocess.run(["head", "-c", "100000000", "/dev/zero"])
    elif event == "junk":
        os.write(4, b"\xff" * 4096)
        print("lost")
    return 1
`)
	for _, event := range []string{"print", "raw", "child"} {
		r := m.want(`"`+event+`"`, "1")
		if s := r.summary; !s.Truncated || len(s.Stdout) > fnruntime.MaxOutput {
			t.Errorf("%s: %d bytes of output, truncated %t", event, len(s.Stdout), s.Truncated)
		}
	}
	m.want(`"junk"`, "1")
}

func TestLoadFailures(t *testing.T) {
	for name, c := range map[string]struct {
		runtime, entrypoint string
		files               map[string]string
		kind, message       string
	}{
		"no file":    {"python", "gone.py", map[string]string{"a": ""}, "Runtime.EntrypointNotFound", "gone.py"},
		"no default": {"nodejs", "", map[string]string{"a": ""}, "Runtime.EntrypointNotFound", "index.js"},
		"no module": {"python", "", map[string]string{"handler.py": "import gone\ndef handler(): pass\n"},
			"ModuleNotFoundError", "gone"},
		"syntax": {"python", "", map[string]string{"handler.py": "def handler(:\n"}, "SyntaxError", "handler.py"},
		"exit": {"python", "", map[string]string{"handler.py": "import sys\nsys.exit(3)\ndef handler(): pass\n"},
			"Runtime.Exited", "sys.exit(3)"},
		"no object": {"python", "handler.py:gone", map[string]string{"handler.py": "x = 1\n"}, "Runtime.NoHandler",
			"gone"},
		"no callable": {"python", "handler.py:x", map[string]string{"handler.py": "x = 1\n"}, "Runtime.NoHandler", "x"},
		"node syntax": {"nodejs", "", map[string]string{"index.mjs": "export const = 1\n"}, "SyntaxError", ""},
		"node module": {"nodejs", "", map[string]string{"index.mjs": "import 'gone'\nexport default {}\n"}, "Error",
			"gone"},
		"node throws": {"nodejs", "", map[string]string{"index.js": "throw new TypeError('x'); exports.handler = 1\n"},
			"TypeError", "x"},
		"node nothing": {"nodejs", "", map[string]string{"index.js": "exports.x = 1\n"}, "Runtime.NoHandler",
			"handler"},
		"node exit": {"nodejs", "", map[string]string{"index.js": "process.exit(3); exports.x = 1\n"},
			"Runtime.Exited", "3"},
		"program": {"provided", "", map[string]string{"bootstrap": "#!/bin/sh\nexit 3\n"}, "Runtime.Exited", "3"},
		"runtime": {"ruby", "", map[string]string{"a": ""}, "Runtime.Unsupported", "ruby"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := open(t, place(t, c.files), fnruntime.Serve{Runtime: c.runtime, Entrypoint: c.entrypoint})
			style, f := m.load()
			if f == nil {
				t.Fatalf("it was loaded with style %s", style)
			}
			if f.Type != c.kind || !strings.Contains(f.Message+f.Stack, c.message) {
				t.Errorf("failure %+v, want type %s with %q", *f, c.kind, c.message)
			}
			if got := m.event("{}").failure(t); got.Type != c.kind {
				t.Errorf("an event fails with %+v, want the same", got)
			}
		})
	}
}
