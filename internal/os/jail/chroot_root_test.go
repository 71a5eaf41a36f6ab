//go:build root

package jail_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/os/jail"
)

// shell returns a command that runs a script. The shell is dynamically linked.
func shell(script string, args ...string) proc.Command {
	return proc.Command{Path: "/bin/sh", Args: append([]string{"-c", script, "sh"}, args...), Env: []string{"A=b"}}
}

func TestJailContents(t *testing.T) {
	f := newFixture(t, "pnthold")
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	host := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.WriteFile(host("given"), []byte("from the host"), 0o644), os.Mkdir(host("out"), 0o700),
		os.Chown(host("out"), jailedUID, jailedUID),
		os.WriteFile(host("disk"), []byte("old"), 0o600), os.Chown(host("disk"), jailedUID, jailedUID),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	spec := jail.Spec{
		Devices: []string{"/dev/null", "/dev/net/tun"},
		Binds: []jail.Bind{
			{Path: host("given"), Target: "/in/deep/given"}, {Path: host("out"), Target: "/out", Write: true},
			{Path: host("disk"), Target: "/disk", Write: true}, {Path: host("disk"), Target: "/fixed"},
		},
	}
	script := `set -e
		echo roots /*
		echo given $(read line < /in/deep/given || echo $line)
		echo pid $$
		echo new > /out/file
		echo new > /disk
		echo gone > /dev/null
		test -c /dev/net/tun
		for closed in /in/deep/given /fixed /in/new /new /dev/new /bin/sh; do
			if (echo x > $closed) 2>/dev/null; then echo $closed was written; fi
		done`
	exit, output := run(t, jailed(shell(script), f.group("hold", jail.Limits{PIDs: 32}), spec))
	if exit.Code != 0 || exit.Signal != 0 {
		t.Fatalf("program in the jail: %v, output %s", exit, output)
	}
	lines := strings.Split(output, "\n")
	if len(lines) != 3 || lines[1] != "given from the host" || lines[2] != "pid 1" {
		t.Errorf("got output:\n%s\nwant 3 lines, the last two \"given from the host\" and \"pid 1\"", output)
	}
	roots := strings.Fields(lines[0])[1:]
	for _, want := range []string{"/dev", "/disk", "/fixed", "/in", "/out"} {
		if !slices.Contains(roots, want) {
			t.Errorf("got root directory %v, want %s in it", roots, want)
		}
	}
	for _, never := range []string{"/etc/passwd", "/home", "/proc", "/root", "/sys", "/tmp", "/var", "/run"} {
		if slices.Contains(roots, never) {
			t.Errorf("got root directory %v, want no %s in it", roots, never)
		}
	}
	for path, want := range map[string]string{host("out/file"): "new\n", host("disk"): "new\n"} {
		if data, err := os.ReadFile(path); err != nil || string(data) != want {
			t.Errorf("%s contains %q, %v; want %q", path, data, err, want)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(host("out/file"), &st); err != nil || st.Uid != jailedUID || st.Gid != jailedUID {
		t.Errorf("the jail's file is owned by %d:%d, %v; want %d", st.Uid, st.Gid, err, jailedUID)
	}
}

// forkBombScript starts a hundred processes. That exceeds the limit of a jail and is harmless
// elsewhere.
const forkBombScript = `i=0
	while [ $i -lt 100 ]; do i=$((i+1)); (read line < $1) & all="$all $!"; echo $i; done
	kill $all`

func TestForkBomb(t *testing.T) {
	const most = 24
	fifo := filepath.Join(t.TempDir(), "fifo") // has no writer
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(fifo, jailedUID, jailedUID); err != nil {
		t.Fatal(err)
	}
	if exit, output := run(t, shell(forkBombScript, fifo)); exit.Code != 0 {
		t.Fatalf("outside the jail got %v, output %s; want success", exit, output)
	}
	f := newFixture(t, "pntbomb")
	g := f.group("bomb", jail.Limits{PIDs: most})
	spec := jail.Spec{Devices: []string{"/dev/null"}, Binds: []jail.Bind{{Path: fifo, Target: "/fifo"}}}
	exit, output := run(t, jailed(shell(forkBombScript, "/fifo"), g, spec))
	if exit.Code == 0 || !strings.Contains(output, "Cannot fork") {
		t.Errorf("program in the jail: got %v, output %s; want it stopped by the limit", exit, output)
	}
	if strings.Contains(output, fmt.Sprintf("\n%d\n", most)) {
		t.Errorf("got more processes than the limit of %d: %s", most, output)
	}
	// When process 1 of the jail exits, the kernel kills all others.
	await(t, "all processes of the jail have exited", func() (bool, error) {
		s, err := g.Stats()
		return s.PIDs == 0, err
	})
}

func TestMemoryHog(t *testing.T) {
	const bytes = 256 << 20
	if exit, output := run(t, command(t, "hog", fmt.Sprint(bytes))); exit.Code != 0 {
		t.Fatalf("outside the jail got %v, output %s; want success", exit, output)
	}
	f := newFixture(t, "pnthog")
	g := f.group("hog", jail.Limits{MemoryMax: 64 << 20, PIDs: 64})
	exit, output := run(t, jailed(command(t, "hog", fmt.Sprint(bytes)), g, jail.Spec{}))
	if exit.Signal != syscall.SIGKILL {
		t.Errorf("program in the jail: got %v, output %s; want it stopped by the limit", exit, output)
	}
	if s, err := g.Stats(); err != nil || s.OOMKills == 0 {
		t.Errorf("Stats() = %+v, %v; want OOM kills", s, err)
	}
}

// TestJailsAreIsolated checks that two jails cannot reach each other, even with the same user ID,
// which never happens in production.
func TestJailsAreIsolated(t *testing.T) {
	f := newFixture(t, "pntnext")
	spec := jail.Spec{}
	first := background(t, jailed(command(t, "wait"), f.group("first", jail.Limits{PIDs: 64}), spec))
	g := f.group("second", jail.Limits{PIDs: 64})
	for _, try := range []string{"signal", "ptrace", "proc", "read-memory"} {
		if exit, output := run(t, jailed(command(t, try, fmt.Sprint(first.PID())), g, spec)); exit.Code != 1 {
			t.Errorf("%s: got %v, output %s; want status 1", try, exit, output)
		}
	}
	for _, kind := range []string{"mnt", "pid", "ipc", "uts", "net"} {
		path := func(pid int) string { return fmt.Sprintf("/proc/%d/ns/%s", pid, kind) }
		inside, err1 := os.Readlink(path(first.PID()))
		outside, err2 := os.Readlink(path(os.Getpid()))
		if err1 != nil || err2 != nil || inside == outside {
			t.Errorf(
				"namespace %s is %s inside and %s outside (%v, %v), want different ones",
				kind,
				inside,
				outside,
				err1,
				err2,
			)
		}
	}
}

// TestNetworkNamespace checks that a process can be started in an existing network namespace.
func TestNetworkNamespace(t *testing.T) {
	f := newFixture(t, "pntnet")
	ns, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	p := background(t, jailed(command(t, "wait"), f.group("net", jail.Limits{PIDs: 64}), jail.Spec{Netns: ns}))
	inside, err1 := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", p.PID()))
	outside, err2 := os.Readlink("/proc/self/ns/net")
	if err1 != nil || err2 != nil || inside != outside {
		t.Errorf("got network namespace %s, want %s (%v, %v)", inside, outside, err1, err2)
	}
}

// TestStartRefuses makes a start fail at every possible step and checks that nothing is left
// behind.
func TestStartRefuses(t *testing.T) {
	f := newFixture(t, "pntrefuse")
	g := f.group("refuse", jail.Limits{PIDs: 64})
	dir := t.TempDir()
	link, file := filepath.Join(dir, "link"), filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("no program"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", link); err != nil {
		t.Fatal(err)
	}
	open, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	plain, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	bind := func(path, at string) func(*proc.Command, *jail.Spec) {
		return func(_ *proc.Command, c *jail.Spec) { c.Binds = []jail.Bind{{Path: path, Target: at}} }
	}
	rows := []struct {
		name, want string
		change     func(*proc.Command, *jail.Spec)
	}{
		{"root", "user and group ID", func(c *proc.Command, _ *jail.Spec) { c.UID = 0 }},
		{"root-group", "user and group ID", func(c *proc.Command, _ *jail.Spec) { c.GID = 0 }},
		{
			"directory-inherited",
			"is a directory",
			func(c *proc.Command, _ *jail.Spec) { c.Files = []*os.File{open} },
		},
		{"relative-data", "not absolute", func(_ *proc.Command, c *jail.Spec) { c.Data = []string{"x"} }},
		{"unclean-bind", "clean path", bind(file, "/a/../b")},
		{"bind-over-root", "clean path", bind(file, "/")},
		{"bind-missing", "no such file", bind(filepath.Join(dir, "none"), "/x")},
		{"bind-link", "not a file, socket or directory", bind(link, "/x")},
		{"bind-device", "not a file, socket or directory", bind("/dev/null", "/x")},
		{"bind-among-programs", "read-only", bind(file, "/usr/x")},
		{
			"strange-device",
			"not allowed in jails",
			func(_ *proc.Command, c *jail.Spec) { c.Devices = []string{"/dev/mem"} },
		},
		{
			"device-twice",
			"exists",
			func(_ *proc.Command, c *jail.Spec) { c.Devices = []string{"/dev/null", "/dev/null"} },
		},
		{"no-network", "network namespace", func(_ *proc.Command, c *jail.Spec) { c.Netns = plain }},
		{"no-directory", "no such file", func(c *proc.Command, _ *jail.Spec) { c.Dir = "/nowhere" }},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			cmd, spec := shell("echo ran"), jail.Spec{}
			c := jailed(cmd, g, spec)
			r.change(&c, &spec)
			spec.Program = c.Path
			c.Fork = func(_ string, argv []string, attr *syscall.ProcAttr) (int, error) {
				return g.Start(spec, argv, attr)
			}
			p, err := proc.Start(c)
			if err == nil {
				_ = p.Kill(context.Background())
				_ = p.Release()
			}
			if err == nil || !strings.Contains(err.Error(), r.want) {
				t.Errorf("Start() = %v, want an error with %q", err, r.want)
			}
		})
	}
	t.Run("no-program", func(t *testing.T) {
		_, err := g.Start(
			jail.Spec{Program: file},
			[]string{"x"},
			&syscall.ProcAttr{Sys: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 7, Gid: 7}}},
		)
		if err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("Start() = %v, want permission denied", err)
		}
	})
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) { // other mounts of this host may change meanwhile
		if strings.Contains(line, filepath.Dir(f.programsDir)) || strings.Contains(line, "pntrefuse") {
			t.Errorf("left a mount on the host: %s", line)
		}
	}
	await(t, "no process is left", func() (bool, error) {
		s, err := g.Stats()
		return s.PIDs == 0, err
	})
	if os.Geteuid() != 0 {
		t.Error("the test process has lost its root user ID")
	}
	if data, err := os.ReadFile("/proc/self/status"); err != nil || !strings.Contains(string(data), "NoNewPrivs:\t0") ||
		!strings.Contains(string(data), "Seccomp:\t0") {
		t.Errorf("the test process has lost privileges of its own: %v", err)
	}
}

// TestStartsInItsCgroup checks the start in a real v2 hierarchy, even if its controllers are in use
// by v1.
func TestStartsInItsCgroup(t *testing.T) {
	const unified = "/sys/fs/cgroup/unified"
	root := unified
	if _, err := os.Stat(root + "/cgroup.procs"); err != nil {
		root = "/sys/fs/cgroup"
	}
	if _, err := os.Stat(root + "/cgroup.controllers"); err != nil {
		t.Skip("probe cgroups: version 2 is not mounted")
	}
	j, err := jail.New(jail.Config{
		Hierarchy: jail.Hierarchy{
			Version: 2,
			CPU:     root,
			Memory:  root,
			PIDs:    root,
			Account: root,
		}, Prefix: "pntborn", ProgramsDir: t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "pntborn", "m1")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	g, err := j.Adopt(testContext(t), "m1", jail.Limits{OpenFiles: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}()
	p := background(t, jailed(command(t, "wait"), g, jail.Spec{}))
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID()))
	if err != nil || !strings.Contains(string(data), "0::/pntborn/m1\n") {
		t.Errorf("got cgroups %s, %v; want pntborn/m1", data, err)
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", p.PID()))
	if err != nil || !strings.Contains(strings.Join(strings.Fields(string(limits)), " "), "Max open files 100 100") {
		t.Errorf("got limits %s, %v; want 100 open files", limits, err)
	}
}

// TestDescriptors checks that a process inherits exactly the descriptors that it was given.
func TestDescriptors(t *testing.T) {
	block := newFixture(t, "pntfds")
	g := block.group("fds", jail.Limits{PIDs: 64})
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	inheritable(t)
	c := command(t, "wait")
	c.Files = []*os.File{f}
	p := background(t, jailed(c, g, jail.Spec{}))
	for fd, want := range map[int]string{0: "/dev/null", 1: "/memfd:log (deleted)", 2: "/memfd:log (deleted)",
		3: "/dev/null"} {
		if got, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", p.PID(), fd)); err != nil || got != want {
			t.Errorf("descriptor %d is %q, %v; want %q", fd, got, err, want)
		}
	}
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", p.PID(), e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		ours := strings.HasPrefix(target, "anon_inode:[event") || target == "/dev/null" ||
			strings.HasPrefix(target, "/memfd:log")
		if !ours { // the test program's runtime opens an epoll instance and an eventfd
			t.Errorf("got descriptor %s: %s, want it closed", e.Name(), target)
		}
	}
}
