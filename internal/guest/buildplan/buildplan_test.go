package buildplan_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/railwayapp/railpack/core/mise"

	"github.com/pandastack/pandastack/internal/contract/buildevent"
	"github.com/pandastack/pandastack/internal/guest/buildplan"
	"github.com/pandastack/pandastack/internal/guest/buildplan/plantest"
)

// fixture is a place in temporary directories, with tools that a template would have.
type fixture struct {
	t *testing.T
	buildplan.Place
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	plantest.Lock(t)
	return &fixture{t: t, Place: plantest.Place(t, t.TempDir())}
}

// source writes files of a source: path and content in turns.
func (f *fixture) source(files ...string) *fixture {
	f.t.Helper()
	for i := 0; i < len(files); i += 2 {
		at := filepath.Join(f.Dir, "source", files[i])
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			f.t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(files[i+1]), 0o644); err != nil {
			f.t.Fatal(err)
		}
	}
	return f
}

// events are what a run of the program wrote.
type events []buildevent.Event

// run runs a verb with a request and returns its events.
func (f *fixture) run(verb string, req buildevent.Request) events {
	f.t.Helper()
	return f.runContext(f.t.Context(), verb, req)
}

func (f *fixture) runContext(ctx context.Context, verb string, req buildevent.Request) events {
	f.t.Helper()
	in, err := json.Marshal(req)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.feed(ctx, verb, in)
}

func (f *fixture) feed(ctx context.Context, verb string, in []byte) (all events) {
	f.t.Helper()
	var out bytes.Buffer
	code := f.Main(ctx, []string{verb}, bytes.NewReader(in), &out, &out)
	d := buildevent.NewDecoder()
	bad, err := d.Write(out.Bytes(), func(e buildevent.Event) error {
		all = append(all, e)
		return nil
	})
	if bad > 0 || err != nil || (code == 0) != (all.failure() == nil) {
		f.t.Fatalf("%s exited with %d and %d malformed lines (%v):\n%s", verb, code, bad, err, out.String())
	}
	return all
}

func (all events) failure() *buildevent.Failure {
	for _, e := range all {
		if e.Error != nil {
			return e.Error
		}
	}
	return nil
}

func (all events) plan(t *testing.T) *buildevent.Plan {
	t.Helper()
	for _, e := range all {
		if e.Plan != nil {
			return e.Plan
		}
	}
	t.Fatalf("there is no plan: %+v", all.failure())
	return nil
}

func (all events) result(t *testing.T) *buildevent.Result {
	t.Helper()
	for _, e := range all {
		if e.Result != nil {
			return e.Result
		}
	}
	t.Fatalf("there is no result: %+v", all.failure())
	return nil
}

func (all events) lines() (lines []string) {
	for _, e := range all {
		if e.Kind == buildevent.KindLog {
			lines = append(lines, e.Line)
		}
	}
	return lines
}

func (f *fixture) planFile() string {
	f.t.Helper()
	data, err := os.ReadFile(filepath.Join(f.Dir, "plan.json"))
	if err != nil {
		f.t.Fatal(err)
	}
	return string(data)
}

const lock = `{"name":"a","lockfileVersion":3,"packages":{}}`

func TestPlansOfFrameworks(t *testing.T) {
	for _, c := range []struct {
		name, framework string
		files           []string
		settings        buildevent.Settings
		want            []string // in the plan
	}{
		{"express", "node", []string{"package.json", `{"dependencies":{"express":"5"},"scripts":{"start":"node ."}}`,
			"package-lock.json", lock}, buildevent.Settings{}, []string{"npm install", `"start":"npm run start"`}},
		{"node without dependencies", "node", []string{"package.json", `{"main":"server.js"}`, "server.js", ""},
			buildevent.Settings{}, []string{`"start":"node server.js"`}},
		{"pnpm", "node", []string{"package.json", `{"dependencies":{"a":"1"},"scripts":{"start":"node ."}}`,
			"pnpm-lock.yaml", "lockfileVersion: '9.0'\n"}, buildevent.Settings{}, []string{"pnpm install",
			`"pnpm":"9.15.4"`}},
		{"yarn", "node", []string{"package.json", `{"dependencies":{"a":"1"},"scripts":{"start":"node ."}}`,
			"yarn.lock", "# yarn lockfile v1\n"}, buildevent.Settings{}, []string{"yarn install", `"yarn":"1.22.22"`}},
		{"bun", "bun", []string{"package.json", `{"dependencies":{"a":"1"},"scripts":{"start":"bun ."}}`,
			"bun.lock", "{}"}, buildevent.Settings{}, []string{"bun install", `"bun":"1.4.5"`}},
		{"next", "nextjs", []string{"package.json", `{"dependencies":{"next":"16"},
			"scripts":{"build":"next build","start":"next start"}}`, "package-lock.json", lock}, buildevent.Settings{},
			[]string{"npm run build", `"start":"npm run start"`}},
		{"vite", "vite", []string{"package.json", `{"devDependencies":{"vite":"7"},"scripts":{"build":"vite build"}}`,
			"vite.config.js", "", "index.html", ""}, buildevent.Settings{}, []string{`"dir":"dist"`, `"spa":true`}},
		{"astro", "astro", []string{"package.json", `{"dependencies":{"astro":"5"},"scripts":{"build":"astro build"}}`,
			"astro.config.mjs", ""}, buildevent.Settings{}, []string{`"dir":"dist"`}},
		{"cra", "cra", []string{"package.json", `{"dependencies":{"react-scripts":"5"},
			"scripts":{"build":"react-scripts build","start":"react-scripts start"}}`},
			buildevent.Settings{Framework: "cra"},
			[]string{`"dir":"build"`, `"spa":true`}},
		{"static", "static", []string{"index.html", "hello"}, buildevent.Settings{}, []string{`"dir":"."`}},
		{"static below public", "static", []string{"public/index.html", "hello"}, buildevent.Settings{},
			[]string{`"dir":"public"`}},
		{"flask", "flask", []string{"main.py", "from flask import Flask\napp = Flask(__name__)\n", "requirements.txt",
			"flask\ngunicorn\n"}, buildevent.Settings{}, []string{"pip install -r requirements.txt", "gunicorn",
			"main:app"}},
		{"fastapi", "fastapi", []string{"main.py", "from fastapi import FastAPI\napp = FastAPI()\n", "requirements.txt",
			"fastapi\nuvicorn\n"}, buildevent.Settings{}, []string{"uvicorn main:app"}},
		{"uv", "fastapi", []string{"main.py", "from fastapi import FastAPI\napp = FastAPI()\n", "pyproject.toml",
			"[project]\nname = \"a\"\nversion = \"1\"\ndependencies = [\"fastapi\"]\n", "uv.lock", "version = 1\n"},
			buildevent.Settings{}, []string{"uv sync", `"uv":"0.9.1"`}},
		{"python with a start command", "python", []string{"worker.py", "", "requirements.txt", ""},
			buildevent.Settings{StartCommand: "python worker.py"}, []string{`"start":"python worker.py"`}},
		{"go", "go", []string{"go.mod", "module a\n\ngo 1.25\n", "main.go", "package main\nfunc main() {}\n"},
			buildevent.Settings{}, []string{"go build", `"start":"./out"`, `"go":"1.26.8"`}},
		{"rust", "rust", []string{"Cargo.toml", "[package]\nname = \"a\"\nversion = \"0.1.0\"\n", "src/main.rs",
			"fn main() {}"},
			buildevent.Settings{}, []string{"cargo build"}},
		{"deno", "deno", []string{"deno.json", "{}", "main.ts", ""}, buildevent.Settings{}, []string{"deno"}},
		{"settings", "node", []string{"package.json", `{"scripts":{"start":"node a"}}`},
			buildevent.Settings{InstallCommand: "echo 'i'", BuildCommand: "echo b", StartCommand: "node b.js"},
			[]string{"echo 'i'", "echo b", `"start":"node b.js"`}},
		{"manifest", "node", []string{"package.json", `{"scripts":{"start":"node a"}}`, "pandastack.json",
			"{\n// ours\n\"startCommand\": \"node c.js\", \"buildCommand\": \"make\", \"port\": 4000}"},
			buildevent.Settings{BuildCommand: "echo wins"}, []string{`"start":"node c.js"`, "echo wins",
				`"port":4000`}},
		{"railpack.json", "node", []string{"package.json", `{"scripts":{"start":"node a"}}`, "railpack.json",
			`{"deploy":{"startCommand":"node r.js","variables":{"A":"b"}}}`}, buildevent.Settings{},
			[]string{`"start":"node r.js"`, `"A":"b"`}},
		{"output directory", "node", []string{"package.json", `{"scripts":{"build":"make"}}`},
			buildevent.Settings{Framework: "static", OutputDirectory: "out/site"}, []string{`"dir":"out/site"`}},
		{"root directory", "go", []string{"api/go.mod", "module a\n\ngo 1.25\n", "api/main.go", "package main\n"},
			buildevent.Settings{RootDirectory: "api"}, []string{`"source":"api"`}},
		{"workspace", "node", []string{"package.json", `{"workspaces":["apps/*"]}`, "package-lock.json", lock,
			"apps/web/package.json", `{"name":"web","scripts":{"build":"node build","start":"node ."}}`},
			buildevent.Settings{RootDirectory: "apps/web"},
			[]string{`"source":"."`, `"workdir":"apps/web"`, "cd 'apps/web' \\u0026\\u0026 ", "npm install"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t).source(c.files...)
			p := f.run("plan", buildevent.Request{Settings: c.settings}).plan(t)
			if p.Framework != c.framework {
				t.Errorf("framework %q, want %q", p.Framework, c.framework)
			}
			file := f.planFile()
			for _, want := range c.want {
				if !strings.Contains(file, want) {
					t.Errorf("the plan has no %s:\n%s", want, file)
				}
			}
			if strings.Contains(file, "caddy run") || strings.Contains(file, "mise install") || strings.Contains(file,
				"ghcr.io") {
				t.Errorf("the plan has a web server, mise or an image of railpack:\n%s", file)
			}
		})
	}
}

func TestPlanFailuresNameTheRemedy(t *testing.T) {
	for _, c := range []struct {
		name     string
		files    []string
		settings buildevent.Settings
		want     buildevent.Failure
	}{
		{"unknown kind", []string{"notes.txt", ""}, buildevent.Settings{}, buildevent.Failure{Code: "invalid",
			Field: "framework", Message: "it was not found what kind of app this is",
			Hint: "set framework, root_directory or start_command, or add a Dockerfile"}},
		{"no start command", []string{"main.txt", "", "requirements.txt", ""}, buildevent.Settings{},
			buildevent.Failure{
				Code: "invalid", Field: "start_command", Message: "it was not found how the app is started",
				Hint: "set start_command, for example to uvicorn main:app --host 0.0.0.0 --port $PORT"}},
		{"no directory", []string{"a", ""}, buildevent.Settings{RootDirectory: "web"}, buildevent.Failure{
			Code: "invalid", Field: "root_directory", Message: `the repository has no directory "web"`,
			Hint: "name a directory of the repository"}},
		{"no Dockerfile", []string{"a", ""}, buildevent.Settings{Framework: "docker"}, buildevent.Failure{
			Code: "invalid", Field: "framework", Message: "the repository has no Dockerfile",
			Hint: "add one, or leave framework empty"}},
		{"broken manifest", []string{"pandastack.json", "{"}, buildevent.Settings{}, buildevent.Failure{
			Code:    "invalid",
			Message: "pandastack.json cannot be read: hujson: line 1, column 2: parsing value: unexpected EOF",
			Hint:    "correct it, or remove it"}},
		{"manifest leads out", []string{"pandastack.json", `{"outputDir":"../../etc"}`}, buildevent.Settings{},
			buildevent.Failure{Code: "invalid", Message: `pandastack.json: outputDir "../../etc" leads out of it`,
				Hint: "name a directory of the repository"}},
		{"image", []string{"index.php", ""}, buildevent.Settings{}, buildevent.Failure{Code: "invalid",
			Message: "a tool that the app asks for cannot be had: failed to run mise command"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t).source(c.files...)
			got := f.run("plan", buildevent.Request{Settings: c.settings}).failure()
			if got == nil || got.Code != c.want.Code || got.Field != c.want.Field ||
				!strings.HasPrefix(got.Message, c.want.Message) || c.want.Hint != "" && got.Hint != c.want.Hint {
				t.Errorf("failure %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestDockerfileWins(t *testing.T) {
	f := newFixture(t).source("Dockerfile", "FROM scratch\n", "package.json", "{}")
	if p := f.run("plan", buildevent.Request{}).plan(t); p.Dockerfile != "FROM scratch\n" || len(p.Steps) > 0 {
		t.Errorf("plan %+v, want the Dockerfile alone", p)
	}
	p := f.run("plan", buildevent.Request{Settings: buildevent.Settings{Framework: "node",
		StartCommand: "node a"}}).plan(t)
	if p.Dockerfile != "" || len(p.Steps) == 0 {
		t.Errorf("plan %+v, want steps: the user set a framework", p)
	}
}

// keys returns the keys of the steps that are worth keeping.
func keys(p *buildevent.Plan) (all []string) {
	for _, s := range p.Steps {
		if s.Keep {
			all = append(all, s.Key)
		}
	}
	return all
}

func TestKeysDependOnWhatAStepSees(t *testing.T) {
	f := newFixture(t).source("package.json", `{"dependencies":{"a":"1"},"scripts":{"start":"node ."}}`,
		"package-lock.json", lock, "server.js", "one")
	plan := func(variables map[string]string) []string {
		return keys(f.run("plan", buildevent.Request{Variables: variables}).plan(t))
	}
	first := plan(nil)
	if len(first) < 2 {
		t.Fatalf("%d steps are worth keeping, want tools and dependencies", len(first))
	}
	f.source("server.js", "two")
	if got := plan(nil); !slices.Equal(got, first) {
		t.Errorf("another server.js changed the keys of the dependencies")
	}
	f.source("package-lock.json", strings.Replace(lock, "3", "2", 1))
	changed := plan(nil)
	if changed[len(changed)-1] == first[len(first)-1] {
		t.Error("another lock file did not change the key of the dependencies")
	}
	if changed[0] != first[0] {
		t.Error("another lock file changed the key of the tools")
	}
}

func archive(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := []byte("content")
		if h.Typeflag == tar.TypeReg && h.Size == 0 {
			h.Size = int64(len(content))
		}
		h.Mode = 0o644
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg && h.Size == int64(len(content)) {
			if _, err := w.Write(content); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = w.Flush() // a header without its content is what some tests want
	return b.Bytes()
}

func TestUnpackRefusesWhatLeavesTheSource(t *testing.T) {
	outside := t.TempDir()
	for _, c := range []struct {
		name    string
		headers []tar.Header
		want    buildevent.Failure
	}{
		{"parent", []tar.Header{{Name: "../x", Typeflag: tar.TypeReg}}, buildevent.Failure{Code: "invalid",
			Field: "upload", Message: `path "../x" leads out of the archive`,
			Hint: "pack the archive inside the directory of the app"}},
		{"absolute", []tar.Header{{Name: "/etc/x", Typeflag: tar.TypeReg}}, buildevent.Failure{Code: "invalid",
			Field: "upload", Message: `path "/etc/x" leads out of the archive`,
			Hint: "pack the archive inside the directory of the app"}},
		{"through a link", []tar.Header{{Name: "a", Typeflag: tar.TypeSymlink, Linkname: outside},
			{Name: "a/x", Typeflag: tar.TypeReg}}, buildevent.Failure{Code: "invalid", Field: "upload",
			Message: `path "a/x" leads out of the archive through a symbolic link`,
			Hint:    "remove the symbolic link, or what is below it"}},
		{"hard link to a link", []tar.Header{{Name: "a", Typeflag: tar.TypeSymlink, Linkname: outside},
			{Name: "b", Typeflag: tar.TypeLink, Linkname: "a/x"}}, buildevent.Failure{Code: "invalid", Field: "upload",
			Message: `path "b" leads out of the archive through a symbolic link`,
			Hint:    "remove the symbolic link, or what is below it"}},
		{"huge", []tar.Header{{Name: "x", Typeflag: tar.TypeReg, Size: 3 << 30}}, buildevent.Failure{
			Code: "too_large", Message: "the source is too large",
			Hint: "leave out what is generated or not needed, for example with .pandastackignore"}},
		{"empty", nil, buildevent.Failure{Code: "invalid", Field: "upload", Message: "the archive is empty",
			Hint: "upload the files of the app"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			got := f.feed(t.Context(), "unpack", archive(t, c.headers...)).failure()
			if got == nil || *got != c.want {
				t.Errorf("failure %+v, want %+v", got, c.want)
			}
			if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
				t.Errorf("%d files were written outside (%v)", len(entries), err)
			}
		})
	}
	if got := newFixture(t).feed(t.Context(), "unpack", []byte(strings.Repeat("junk", 300))).failure(); got == nil ||
		got.Field != "upload" {
		t.Errorf("failure %+v for junk, want one of upload", got)
	}
}

func TestLinksOutOfTheSourceStayLinks(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFixture(t)
	f.feed(t.Context(), "unpack", archive(t, tar.Header{Name: "package.json", Typeflag: tar.TypeReg},
		tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: secret}))
	f.source("package.json", `{"scripts":{"start":"node ."}}`)
	f.build(buildevent.Request{Settings: buildevent.Settings{InstallCommand: "true"}})
	if to, err := os.Readlink(filepath.Join(f.App, "link")); err != nil || to != secret {
		t.Errorf("the app has %q (%v), want the link itself", to, err)
	}
}

// build plans and executes all steps, and returns the result.
func (f *fixture) build(req buildevent.Request) *buildevent.Result {
	f.t.Helper()
	p := f.run("plan", req).plan(f.t)
	for i := range p.Steps {
		req.Step = i
		if e := f.run("step", req); e.failure() != nil {
			f.t.Fatalf("step %s: %+v\n%s", p.Steps[i].Name, e.failure(), strings.Join(e.lines(), "\n"))
		}
	}
	return f.run("finish", req).result(f.t)
}

func TestVersionsOfTheTemplateAnswerForMise(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--version"}, mise.Version + "\n"},
		{[]string{"latest", "node@22"}, "22.23.3\n"},
		{[]string{"latest", "node@22.23.3"}, "22.23.3\n"},
		{[]string{"latest", "node@latest"}, "22.23.3\n"},
		{[]string{"latest", "go@1.21"}, "1.26.8\n"}, // newer ones build for older ones
		{[]string{"latest", "go@1.99"}, "1.99.0\n"}, // which go fetches itself
		{[]string{"latest", "caddy@2"}, "2.0.0\n"},  // which is never installed
		{[]string{"--cd", "/app", "list", "--current", "--json"}, "{}\n"},
	} {
		var out, errs bytes.Buffer
		if code := f.Main(t.Context(), append([]string{"mise"}, c.args...), nil, &out, &errs); code != 0 ||
			out.String() != c.want {
			t.Errorf("mise %q exited with %d, %q and %q, want %q", c.args, code, out.String(), errs.String(), c.want)
		}
	}
	var out bytes.Buffer
	if code := f.Main(t.Context(), []string{"mise", "latest", "erlang@27"}, nil, &out, &out); code != 1 {
		t.Errorf("mise exited with %d and %q for a tool that nothing has, want 1", code, out.String())
	}
	// What mise warns of is no part of its answer.
	script := "#!/bin/sh\necho 'mise WARN old' >&2\necho '{\"go\":[]}'\n"
	if err := os.WriteFile(f.Mise, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	code := f.Main(t.Context(), []string{"mise", "list", "--current", "--json"}, nil, &out, &out)
	if code != 0 || out.String() != "{\"go\":[]}\n" {
		t.Errorf("mise exited with %d and %q, want its answer alone", code, out.String())
	}
}
