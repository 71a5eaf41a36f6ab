package service

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/lib/config"
)

// TestUnit verifies the unit with systemd's own checker, and its lines that matter.
func TestUnit(t *testing.T) {
	u := unit{Program: "/bin/true", Config: "/etc/a b%/c$d.yaml", DataDir: `/x"y\z`, StopTime: 90}
	text := u.text()
	for _, want := range []string{
		`ExecStart=/bin/true up --lifecycle-keep-running --config "/etc/a b%%/c$$d.yaml" --data-dir "/x\"y\\z"`,
		"ExecStop=/bin/true service stop --main-pid $MAINPID\n", "KillMode=process\n", "TimeoutStopSec=90\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the unit lacks %s:\n%s", want, text)
		}
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("probe systemd-analyze: it is not installed")
	}
	path := filepath.Join(t.TempDir(), unitName)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _ := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", path).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, unitName) { // other lines are about this machine
			t.Errorf("systemd-analyze: %s", line)
		}
	}
}

// fixture is a manager of a root directory of the test, with the calls of systemctl that it made.
type fixture struct {
	*manager
	calls []string
	out   bytes.Buffer
	fail  string // the call that fails
	state string // of the system
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{}
	f.manager = &manager{
		Factory: &cmdutil.Factory{Stdout: &f.out, Stderr: &f.out},
		opt: Options{
			Load: func() (*config.Loaded, error) { return config.Load(config.Sources{}) },
			File: func() string { return "" }, Fail: func(err error) error { return err },
		},
		root: t.TempDir(),
		run: func(_ context.Context, args ...string) (string, error) {
			call := strings.Join(args, " ")
			f.calls = append(f.calls, call)
			if f.fail != "" && strings.HasPrefix(call, f.fail) {
				return "", errors.New("systemctl " + call + ": failed")
			}
			return f.state, nil
		},
	}
	for _, dir := range []string{"run/systemd/system", "etc/systemd/system", "opt"} {
		if err := os.MkdirAll(filepath.Join(f.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// programsIn makes the programs of a release in a directory.
func programsIn(t *testing.T, dir, content string) {
	t.Helper()
	for _, name := range programs {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

func TestInstallAndUninstall(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("probe root: a service needs root")
	}
	f, from := newFixture(t), t.TempDir()
	for _, version := range []string{"1", "2"} { // an installation, and an upgrade
		programsIn(t, from, version)
		f.calls = nil
		u := unit{Program: "/opt/pandastack", StopTime: 90}
		if err := f.doInstall(t.Context(), from, "/opt", u, true); err != nil {
			t.Fatal(err)
		}
		for _, name := range programs {
			path := filepath.Join(f.root, "opt", name)
			got, err := os.ReadFile(path)
			if err != nil || string(got) != version {
				t.Errorf("%s has %q, %v; want %q", name, got, err, version)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("mode of %s = %v, %v", name, info.Mode(), err)
			}
		}
		want := []string{"daemon-reload", "enable pandastack.service", "restart pandastack.service"}
		if !slices.Equal(f.calls, want) {
			t.Errorf("calls of systemctl = %q, want %q", f.calls, want)
		}
	}
	entries, err := os.ReadDir(filepath.Join(f.root, "opt"))
	if err != nil || len(entries) != len(programs) {
		t.Errorf("the directory of the programs has %v, %v", entries, err)
	}

	f.calls = nil
	next := f.run
	f.run = func(ctx context.Context, args ...string) (string, error) {
		if args[0] == "disable" { // by then the unit must interrupt the node
			text, err := os.ReadFile(f.unitFile())
			if err != nil || !strings.Contains(string(text), "service stop --interrupt --main-pid $MAINPID\n") {
				t.Errorf("while the node stops, the unit is %s, %v", text, err)
			}
		}
		return next(ctx, args...)
	}
	if err := f.doUninstall(t.Context(), "/opt"); err != nil {
		t.Fatal(err)
	}
	want := []string{"daemon-reload", "disable --now pandastack.service", "daemon-reload"}
	if !slices.Equal(f.calls, want) {
		t.Errorf("calls of systemctl = %q, want %q", f.calls, want)
	}
	for _, dir := range []string{"opt", "etc/systemd/system"} {
		if left, err := os.ReadDir(filepath.Join(f.root, dir)); err != nil || len(left) > 0 {
			t.Errorf("%s has %v, %v; want nothing", dir, left, err)
		}
	}
	if err := f.doUninstall(t.Context(), "/opt"); err == nil || !strings.Contains(err.Error(), "there is no service") {
		t.Errorf("a second uninstall = %v", err)
	}
}

func TestInstallRefusals(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("probe root: a service needs root")
	}
	f, from := newFixture(t), t.TempDir()
	programsIn(t, from, "1")
	f.fail = "restart"
	err := f.doInstall(t.Context(), from, "/opt", unit{}, true)
	if err == nil || !strings.Contains(err.Error(), "journalctl") {
		t.Errorf("install whose start fails = %v, want one that says where to look", err)
	}
	if err := os.RemoveAll(filepath.Join(f.root, "run")); err != nil {
		t.Fatal(err)
	}
	err = f.doInstall(t.Context(), from, "/opt", unit{}, true)
	if err == nil || !strings.Contains(err.Error(), "systemd does not run") {
		t.Errorf("install without systemd = %v", err)
	}
}

// TestStop checks which signal the node gets, and that stop waits for its end.
func TestStop(t *testing.T) {
	for _, c := range []struct {
		state     string
		interrupt bool
		want      unix.Signal
	}{
		{"running", false, unix.SIGTERM}, {"degraded", false, unix.SIGTERM},
		{"stopping", false, unix.SIGINT}, {"running", true, unix.SIGINT},
	} {
		f := newFixture(t)
		f.state = c.state
		child := exec.CommandContext(t.Context(), "sleep", "600")
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- child.Wait() }()
		command := f.stop()
		command.SetArgs([]string{
			"--main-pid", strconv.Itoa(child.Process.Pid), "--interrupt=" + strconv.FormatBool(c.interrupt),
		})
		if err := command.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-ended
		if status := child.ProcessState.Sys().(interface{ Signal() unix.Signal }); status.Signal() != c.want {
			t.Errorf("system %s, interrupt %v: the node got %v, want %v", c.state, c.interrupt, status.Signal(), c.want)
		}
	}
}
