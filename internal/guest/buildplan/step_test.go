package buildplan_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/buildevent"
)

// shellApp is a source whose build runs a line.
func shellApp(t *testing.T, line string) (*fixture, buildevent.Request) {
	t.Helper()
	f := newFixture(t).source("package.json", `{"scripts":{"start":"node ."}}`, "server.js", "1")
	return f, buildevent.Request{Settings: buildevent.Settings{InstallCommand: "true", BuildCommand: line}}
}

// last runs the last step of a source's plan, which is its build command, after the others.
func (f *fixture) last(ctx context.Context, req buildevent.Request) events {
	f.t.Helper()
	p := f.run("plan", req).plan(f.t)
	for i := range p.Steps {
		req.Step = i
		if p.Steps[i].Name == "build" {
			return f.runContext(ctx, "step", req)
		}
		if e := f.run("step", req); e.failure() != nil {
			f.t.Fatalf("step %s: %+v", p.Steps[i].Name, e.failure())
		}
	}
	f.t.Fatal("the plan has no build step")
	return nil
}

func TestBuildMakesTheApp(t *testing.T) {
	f, req := shellApp(t, `echo "it's $GREETING" > out.txt; echo "$SECRET" | wc -c`)
	f.source(".dockerignore", "ignored\n", "ignored/file", "x", "sub/file", "y")
	req.Variables = map[string]string{"GREETING": "hello", "SECRET": "s3cr3t"}
	got := f.build(req)
	if got.Start != "npm run start" || got.Workdir != "/app" || got.Framework != "node" ||
		got.RuntimeVersion != "22.23.3" {
		t.Errorf("result %+v", got)
	}
	if !strings.HasPrefix(got.Env["PATH"], filepath.Join(f.App, "node_modules/.bin")) &&
		!strings.Contains(got.Env["PATH"], filepath.Join(f.Installed, "node/22.23.3/bin")) {
		t.Errorf("PATH is %s, want Node.js of the template in it", got.Env["PATH"])
	}
	if _, leaked := got.Env["SECRET"]; leaked {
		t.Error("the result has a variable of the app")
	}
	for name, want := range map[string]string{"out.txt": "it's hello\n", "sub/file": "y", "server.js": "1"} {
		if data, err := os.ReadFile(filepath.Join(f.App, name)); err != nil || string(data) != want {
			t.Errorf("%s is %q (%v), want %q", name, data, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(f.App, "ignored")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an ignored directory was copied (%v)", err)
	}
	for _, dir := range []string{f.Dir, f.App, f.Root} {
		if err := filepath.WalkDir(dir, func(at string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil
			}
			data, err := os.ReadFile(at)
			if err == nil && bytes.Contains(data, []byte("s3cr3t")) {
				t.Errorf("%s has a value of a variable", at)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
}

func TestStaticResult(t *testing.T) {
	f := newFixture(t).source("package.json", `{"devDependencies":{"vite":"7"},"scripts":{"build":"vite build"}}`,
		"index.html", "")
	req := buildevent.Request{Settings: buildevent.Settings{InstallCommand: "true",
		BuildCommand: "mkdir dist && echo hi > dist/index.html"}}
	got := f.build(req)
	want := buildevent.Static{Dir: "/app/dist", SPA: true}
	if got.Static == nil || *got.Static != want || got.Start != "" {
		t.Errorf("result %+v with %+v, want %+v", got, got.Static, want)
	}
	f = newFixture(t).source("package.json", `{"devDependencies":{"vite":"7"},"scripts":{"build":"vite build"}}`)
	req.Settings.BuildCommand = "true"
	p := f.run("plan", req).plan(t)
	for i := range p.Steps {
		req.Step = i
		f.run("step", req)
	}
	if e := f.run("finish", req).failure(); e == nil || e.Field != "output_directory" {
		t.Errorf("failure %+v without an output, want one of output_directory", e)
	}
}

func TestFailuresOfCommandsNameTheRemedy(t *testing.T) {
	f, req := shellApp(t, "sh line.sh")
	f.source("line.sh", "true")
	if e := f.last(t.Context(), req); e.failure() != nil {
		t.Fatalf("%+v", e.failure())
	}
	req.Step = len(f.run("plan", req).plan(t).Steps) - 1
	for _, c := range []struct{ line, code, field, hint string }{
		{"echo no; exit 3", "build_failed", "", "see the end of the log"},
		{"echo write: No space left on device; exit 1", "no_space", "",
			"use a template with a larger disk, or build less"},
		{"echo FATAL ERROR: JavaScript heap out of memory; exit 134", "build_failed", "memory_mb",
			"set memory_mb to more"},
		{"kill -9 $$", "build_failed", "memory_mb", "set memory_mb to more"},
		{"echo npm error code EUSAGE; exit 1", "build_failed", "", "run npm install and commit package-lock.json"},
		{"echo ERR_PNPM_OUTDATED_LOCKFILE; exit 1", "build_failed", "",
			"bring the lock file up to date with the package manager, and commit it"},
		{"echo npm error code EBADENGINE; exit 1", "build_failed", "",
			"name the version that the app needs in .nvmrc, .python-version, or engines of package.json"},
		{"echo 'npm error Missing script: \"build\"'; exit 1", "build_failed", "build_command",
			"set build_command or start_command, or add the script to package.json"},
		{"echo getaddrinfo ENOTFOUND registry.example; exit 1", "unavailable", "",
			"a registry cannot be reached from the build: see the server's settings apps.mirrors and network.allow"},
		{"echo SELF_SIGNED_CERT_IN_CHAIN; exit 1", "unavailable", "",
			"the certificate of a registry is not trusted: the server's setting apps.mirrors.certificates adds one"},
		{"no-such-program", "build_failed", "",
			"a program is missing: add it to the dependencies, or to packages of railpack.json"},
	} {
		t.Run(c.line, func(t *testing.T) {
			f.source("line.sh", c.line)
			got := f.run("step", req).failure()
			if got == nil || got.Code != c.code || got.Field != c.field || got.Hint != c.hint {
				t.Errorf("failure %+v, want code %s, field %q, hint %q", got, c.code, c.field, c.hint)
			}
		})
	}
}

func TestOutputIsBounded(t *testing.T) {
	f, req := shellApp(t, "yes 0123456789012345678901234567890 | head -c 3000000; printf end")
	req.Limits.OutputBytes = 100_000
	all := f.last(t.Context(), req)
	size, notes := 0, 0
	for _, line := range all.lines() {
		size += len(line)
		if line == "the output has more than 97 KiB: the rest is left out" {
			notes++
		}
	}
	if all.failure() != nil || size > 200_000 || notes != 1 {
		t.Errorf("%d bytes of output with %d notes (%+v), want about 100000 with one note", size, notes, all.failure())
	}
}

// alive reports whether a process runs, other than as a zombie.
func alive(pid int) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(data), ") Z ")
}

func TestNothingOutlivesAStep(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	// A daemon leaves its session and its parent, and ignores what can be ignored.
	daemon := fmt.Sprintf(`setsid sh -c 'trap "" TERM HUP INT; echo $$ >> %[1]s; sleep 1000 & echo $! >> %[1]s; wait' &
		while [ "$(cat %[1]s 2>/dev/null | wc -l)" -lt 2 ]; do :; done`, pids)
	f, req := shellApp(t, strings.ReplaceAll(daemon, "'", `"'"`))
	script := filepath.Join(f.Dir, "source", "daemon.sh")
	f.source("daemon.sh", daemon)
	req.Settings.BuildCommand = "sh daemon.sh"
	if e := f.last(t.Context(), req); e.failure() != nil {
		t.Fatalf("%s: %+v\n%s", script, e.failure(), strings.Join(e.lines(), "\n"))
	}
	data, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	for word := range strings.FieldsSeq(string(data)) {
		if pid, err := strconv.Atoi(word); err != nil || alive(pid) {
			t.Errorf("process %s lives (%v)", word, err)
		}
	}
	if len(strings.Fields(string(data))) != 2 {
		t.Errorf("%q are not two processes", data)
	}
}

func TestAStepThatNeverEndsIsKilled(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	f, req := shellApp(t, "sh never.sh")
	f.source("never.sh", "trap '' TERM INT HUP; echo $$ > "+fifo+"; while :; do sleep 1000 & wait; done")
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := &buildevent.Failure{Code: buildevent.CodeTimeout, Message: "stopped"}
	pid := make(chan string, 1)
	go func() {
		data, _ := os.ReadFile(fifo) // an empty answer fails the test below
		pid <- strings.TrimSpace(string(data))
		cancel(stop)
	}()
	got := f.last(ctx, req).failure()
	if got == nil || *got != *stop {
		t.Errorf("failure %+v, want %+v", got, stop)
	}
	select {
	case text := <-pid:
		if n, err := strconv.Atoi(text); err != nil || alive(n) {
			t.Errorf("process %q lives (%v)", text, err)
		}
	case <-time.After(time.Minute):
		t.Error("the command did not start")
	}
}

func TestForkBombsAreKilled(t *testing.T) {
	f, req := shellApp(t, "sh bomb.sh")
	// Sixty-four processes that each wait, started by children whose parents have ended.
	f.source("bomb.sh", `bomb() { if [ "$1" -gt 0 ]; then bomb $(($1-1)) & bomb $(($1-1)) & else sleep 1000; fi; }
bomb 6
`)
	before := children(t)
	if e := f.last(t.Context(), req); e.failure() != nil {
		t.Fatalf("%+v", e.failure())
	}
	if after := children(t); after != before {
		t.Errorf("%d children after the step, %d before", after, before)
	}
}

func children(t *testing.T) int {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // the thread ended
		}
		n += len(strings.Fields(string(data)))
	}
	return n
}
