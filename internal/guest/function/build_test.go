package function_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/fnruntime"
	"github.com/pandastack/pandastack/internal/contract/fnruntime/bundletest"
	"github.com/pandastack/pandastack/internal/guest/function"
)

// build runs a build of a bundle, and returns its result and its lines, or its error.
func build(
	t testing.TB, p function.Place, req fnruntime.BuildRequest, bundle []byte,
) (result fnruntime.Result, log, failed string) {
	t.Helper()
	if err := os.WriteFile(p.Bundle, bundle, 0o600); err != nil {
		t.Fatal(err)
	}
	in, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	var out, stderr bytes.Buffer
	code := p.Main(t.Context(), []string{"build"}, bytes.NewReader(in), &out, &stderr)
	d := fnruntime.NewDecoder()
	var lines []string
	ended := false
	bad, err := d.Write(out.Bytes(), func(e fnruntime.Event) error {
		switch e.Kind {
		case fnruntime.KindLog:
			lines = append(lines, e.Line)
		case fnruntime.KindResult:
			result, ended = *e.Result, true
		case fnruntime.KindError:
			failed = e.Error
		}
		return nil
	})
	if bad != 0 || err != nil || stderr.Len() > 0 || (code == 0) != ended || ended == (failed != "") {
		t.Fatalf("exit code %d, %d bad lines, %v: %s%s", code, bad, err, &out, &stderr)
	}
	return result, strings.Join(lines, "\n"), failed
}

func TestBuildUnpacks(t *testing.T) {
	source := "def handler(event): return event\n"
	for name, c := range map[string]struct {
		bundle     []byte
		entrypoint string
		file       string
	}{
		"text":         {[]byte(source), "", "handler.py"},
		"gzipped text": {bundletest.Gzip(t, []byte(source)), "a/b.py:handler", "a/b.py"},
		"tar":          {bundletest.Tar(t, "./c.py", source, "x/../d.py", "d", "c", ""), "c.py", "c.py"},
		"gzipped tar": {
			bundletest.Gzip(t, bundletest.Tar(t, "c.py", source, "link.py@", "c.py")), "link.py", "link.py",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := place(t, nil)
			req := fnruntime.BuildRequest{Runtime: "python", Entrypoint: c.entrypoint, Install: true}
			for range 2 { // over what is there
				if _, _, failed := build(t, p, req, c.bundle); failed != "" {
					t.Fatal(failed)
				}
			}
			got, err := os.ReadFile(filepath.Join(p.Code, c.file))
			if err != nil || string(got) != source {
				t.Errorf("%s has %q, %v", c.file, got, err)
			}
			info, err := os.Stat(filepath.Join(p.Code, c.file))
			if err != nil || info.Mode()&^0o777 != 0 || info.Mode()&0o044 != 0o044 || info.Mode()&0o022 != 0 {
				t.Errorf("%s has mode %v, %v, want that all can read it and others not write it", c.file, info.Mode(),
					err)
			}
		})
	}
}

func TestBuildRefusesHostileBundles(t *testing.T) {
	outside := t.TempDir()
	var bomb bytes.Buffer
	w := tar.NewWriter(&bomb)
	if err := w.WriteHeader(&tar.Header{Name: "a", Mode: 0o644, Size: 600 << 20}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ bundle, want string }{
		"absolute link": {string(bundletest.Tar(t, "a@", outside)), "leads out of it"},
		"link up":       {string(bundletest.Tar(t, "x/a@", "../../etc")), "leads out of it"},
		"path up":       {string(bundletest.Tar(t, "../a", "x")), "leads out of it"},
		"absolute path": {string(bundletest.Tar(t, "/a", "x")), "leads out of it"},
		"hard link":     {string(bundletest.Tar(t, "a=", "/etc/passwd")), "leads out of it"},
		"cut off":       {string(bundletest.Tar(t, "a", strings.Repeat("x", 9000)))[:4000], "cannot be unpacked"},
		"broken gzip":   {"\x1f\x8b\x08 this is none", "cannot be unpacked"},
		"bomb":          {bomb.String(), "512 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			p := place(t, nil)
			req := fnruntime.BuildRequest{Runtime: "python"}
			if _, _, failed := build(t, p, req, []byte(c.bundle)); !strings.Contains(failed, c.want) {
				t.Errorf("error %q, want %q in it", failed, c.want)
			}
		})
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v outside of the bundle", entries, err)
	}
}

func TestBuildNamesBrokenManifests(t *testing.T) {
	for name, c := range map[string]struct {
		runtime string
		bundle  []byte
		want    string
	}{
		"package.json": {"nodejs", bundletest.Tar(t, "package.json", "{"), "package.json cannot be read"},
		"manager": {"nodejs", bundletest.Tar(t, "package.json", `{"packageManager":"x@1","dependencies":{"a":"1"}}`),
			`packageManager "x@1"`},
		"lock": {"nodejs", bundletest.Tar(t, "package.json", `{"dependencies":{"a":"1"}}`, "package-lock.json", "{"),
			"npm failed"},
		"pyproject": {"python", bundletest.Tar(t, "pyproject.toml", "x"), "pyproject.toml cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			needs(t, c.runtime)
			req := fnruntime.BuildRequest{
				Runtime: c.runtime, Install: true,
				Env: map[string]string{"NPM_CONFIG_REGISTRY": "http://127.0.0.1:9/", "NPM_CONFIG_CACHE": t.TempDir()},
			}
			if _, lines, failed := build(t, place(t, nil), req, c.bundle); !strings.Contains(failed, c.want) {
				t.Errorf("error %q, want %q in it; %s", failed, c.want, lines)
			}
		})
	}
}

// slow skips tests that download packages.
func slow(t *testing.T) {
	t.Helper()
	if os.Getenv("PANDASTACK_TEST_SLOW") == "" {
		t.Skip("probe PANDASTACK_TEST_SLOW: it is not set, and this test downloads packages")
	}
}

// Frameworks that are installed by a build run as they are.
func TestFrameworks(t *testing.T) {
	slow(t)
	for name, c := range map[string]struct {
		runtime, style, manager string
		bundle                  []byte
	}{
		"flask": {"python", "wsgi", "pip", bundletest.Tar(t, "requirements.txt", "flask==3.1.0\n", "app.py", `
from flask import Flask, request
app = Flask(__name__)
@app.post("/echo")
def echo(): return {"got": request.json}
`)},
		"fastapi": {"python", "asgi", "pip", bundletest.Tar(t, "pyproject.toml",
			"[project]\nname = \"x\"\nversion = \"1\"\ndependencies = [\"fastapi==0.115.12\"]\n", "main.py", `
from fastapi import FastAPI, Body
app = FastAPI()
@app.post("/echo")
def echo(body = Body()): return {"got": body}
`)},
		"hono": {"nodejs", "fetch", "npm", bundletest.Tar(t, "package.json",
			`{"type":"module","dependencies":{"hono":"4.7.5"}}`, "index.js", `
import { Hono } from 'hono';
const app = new Hono();
app.post('/echo', async (c) => c.json({ got: await c.req.json() }));
export default app;
`)},
		"hono by pnpm": {"nodejs", "fetch", "pnpm", bundletest.Tar(t, "package.json",
			`{"type":"module","packageManager":"pnpm@9.15.9","dependencies":{"hono":"4.7.5"}}`, "index.js", `
import { Hono } from 'hono';
const app = new Hono();
app.post('/echo', async (c) => c.json({ got: await c.req.json() }));
export default app;
`)},
	} {
		t.Run(name, func(t *testing.T) {
			needs(t, c.runtime)
			p := place(t, nil)
			result, lines, failed := build(t, p, fnruntime.BuildRequest{Runtime: c.runtime, Install: true}, c.bundle)
			if failed != "" || result.Manager != c.manager || len(result.Key) != 64 {
				t.Fatalf("result %+v, %s; %s", result, failed, lines)
			}
			m := open(t, p, fnruntime.Serve{Runtime: c.runtime})
			if style := m.ready(); style != c.style {
				t.Errorf("style %q, want %q", style, c.style)
			}
			r := m.do(http.MethodPost, "/echo", `{"x":1}`, "Content-Type", "application/json")
			if r.status != 200 || !sameJSON(r.body, `{"got":{"x":1}}`) {
				t.Errorf("status %d with %s, %+v", r.status, r.body, r.summary.Failure)
			}
		})
	}
}

// TestPoetryLock installs the version that poetry.lock has, and refuses a lock file of other dependencies.
func TestPoetryLock(t *testing.T) {
	slow(t)
	needs(t, "python")
	if os.Getenv("PIP_INDEX_URL") == "" {
		t.Skip("probe PIP_INDEX_URL: it names no index of packages, which Poetry takes in place of its own")
	}
	project, err := os.ReadFile("testdata/poetry/pyproject.toml")
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.ReadFile("testdata/poetry/poetry.lock")
	if err != nil {
		t.Fatal(err)
	}
	const source = "import itsdangerous\ndef handler(event): return itsdangerous.__version__\n"
	req := fnruntime.BuildRequest{Runtime: "python", Install: true}
	p := place(t, nil)
	result, lines, failed := build(t, p, req, bundletest.Tar(t, "pyproject.toml", string(project), "poetry.lock",
		string(lock), "handler.py", source))
	if failed != "" || result.Manager != "poetry" || len(result.Key) != 64 {
		t.Fatalf("result %+v, %s; %s", result, failed, lines)
	}
	if left, err := filepath.Glob(filepath.Join(p.State, "*cache*")); err != nil || len(left) > 0 {
		t.Errorf("caches %q stay in the machine, %v", left, err)
	}
	m := open(t, p, fnruntime.Serve{Runtime: "python"})
	m.ready()
	m.want("1", `"2.1.2"`)

	other := strings.Replace(string(project), "itsdangerous", "blinker", 1)
	_, lines, failed = build(t, place(t, nil), req, bundletest.Tar(t, "pyproject.toml", other, "poetry.lock",
		string(lock), "handler.py", source))
	if !strings.Contains(failed, "poetry failed") || !strings.Contains(lines, "poetry.lock") {
		t.Errorf("a lock file of other dependencies: error %q, want one of poetry; %s", failed, lines)
	}
}

// A program with AWS's own library runs as it is.
func TestLambdaLibrary(t *testing.T) {
	slow(t)
	if goTool == "" {
		t.Skip("probe go: it is not in PATH")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module hello\n\ngo 1.21\n",
		"main.go": `package main

import (
	"context"
	"errors"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
)

func main() {
	lambda.Start(func(ctx context.Context, in map[string]string) (map[string]string, error) {
		if in["fail"] != "" {
			return nil, errors.New(in["fail"])
		}
		lc, _ := lambdacontext.FromContext(ctx)
		_, limited := ctx.Deadline()
		if !limited {
			panic("no deadline")
		}
		return map[string]string{"hello": in["name"], "id": lc.AwsRequestID}, nil
	})
}
`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := place(t, map[string]string{"x": ""})
	for _, args := range [][]string{
		{"get", "github.com/aws/aws-lambda-go@v1.55.1"}, {"build", "-o", filepath.Join(p.Code, "bootstrap"), "."},
	} {
		cmd := exec.Command(goTool, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v: %s", args[0], err, out)
		}
	}
	m := open(t, p, fnruntime.Serve{Runtime: "provided"})
	if style := m.ready(); style != "lambda" {
		t.Errorf("style %q, want lambda", style)
	}
	r := m.event(`{"name":"you"}`)
	if r.field(t, "hello") != "you" || !strings.HasPrefix(r.field(t, "id"), "inv") {
		t.Errorf("status %d with %s", r.status, r.body)
	}
	if f := m.event(`{"fail":"oh no"}`).failure(t); f.Type != "errorString" || f.Message != "oh no" {
		t.Errorf("failure %+v, want that of the program", f)
	}
}

// BenchmarkEvent measures what a call of a warm handler costs.
func BenchmarkEvent(b *testing.B) {
	for name, m := range map[string]func(testing.TB) *machine{
		"python": func(t testing.TB) *machine { return python(t, "def handler(event): return event\n") },
		"nodejs": func(t testing.TB) *machine { return node(t, "export const handler = (event) => event;\n") },
		"lambda": lambdaMachine,
	} {
		b.Run(name, func(b *testing.B) {
			m := m(b)
			m.ready()
			for b.Loop() {
				m.want("1", "1")
			}
		})
	}
}
