package fctest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
)

// jailerName is the prefix of the fake jailer's name; the release follows.
const jailerName = "jailer-v"

// jailerArgs are the jailer's arguments.
type jailerArgs struct {
	id, exec, base, netns, cgroups string
	parent                         string // cgroup
	uid, gid                       int
	faults                         uint32   // minor number of /dev/userfaultfd; 0: none
	rest                           []string // for the monitor
}

// singleOptions are the options that take a value and may be given once.
var singleOptions = []string{
	"id",
	"exec-file",
	"uid",
	"gid",
	"chroot-base-dir",
	"netns",
	"cgroup-version",
	"parent-cgroup",
}

// parseJailer parses the command line like the real jailer. It refuses the options that the driver
// does not use, although the real jailer knows them: settings of cgroups, daemonizing and PID namespaces.
func parseJailer(args []string) (jailerArgs, error) {
	s := jailerArgs{base: "/srv/jailer", cgroups: "1"}
	have := map[string]string{}
	for len(args) > 0 && args[0] != "--" {
		name, ok := strings.CutPrefix(args[0], "--")
		known := false
		for _, n := range singleOptions {
			known = known || n == name
		}
		switch {
		case !ok || !known:
			return s, fmt.Errorf("found argument %q which wasn't expected, or isn't valid in this context", args[0])
		case have[name] != "":
			return s, fmt.Errorf("the argument %q was provided more than once", args[0])
		case len(args) < 2 || strings.HasPrefix(args[1], "--"):
			return s, fmt.Errorf("the argument %q requires a value, but none was supplied", args[0])
		}
		have[name], args = args[1], args[2:]
	}
	for _, must := range []string{"id", "exec-file", "uid", "gid"} {
		if have[must] == "" {
			return s, fmt.Errorf("argument %q required, but not found", must)
		}
	}
	var errs [2]error
	s.uid, errs[0] = strconv.Atoi(have["uid"])
	s.gid, errs[1] = strconv.Atoi(have["gid"])
	s.id, s.exec, s.netns, s.parent = have["id"], have["exec-file"], have["netns"], have["parent-cgroup"]
	if have["chroot-base-dir"] != "" {
		s.base = have["chroot-base-dir"]
	}
	if have["cgroup-version"] != "" {
		s.cgroups = have["cgroup-version"]
	}
	if len(args) > 0 {
		s.rest = args[1:]
	}
	return s, errors.Join(errs[0], errs[1], s.check())
}

func (s jailerArgs) check() error {
	if len(s.id) < 1 || len(s.id) > 64 ||
		strings.Trim(s.id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") != "" {
		return fmt.Errorf("invalid instance ID %q", s.id)
	}
	if s.cgroups != "1" && s.cgroups != "2" {
		return fmt.Errorf("invalid cgroup version %q", s.cgroups)
	}
	for _, a := range s.rest {
		if a == "--id" { // the jailer adds it itself, and the monitor accepts it only once
			return errors.New("the argument --id was provided more than once")
		}
	}
	st, err := os.Stat(s.exec)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is not a file", s.exec)
	}
	return nil
}

// program returns the path of the program, with links resolved as the real jailer does first of all.
func (s jailerArgs) program() (string, error) {
	path, err := filepath.EvalSymlinks(s.exec)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// joinCgroup moves this process as the real jailer does if it is given no settings of cgroups: with version 2 into
// the parent cgroup, if it exists. The default of that is the name of the program.
func (s jailerArgs) joinCgroup(program string) error {
	if s.cgroups != "2" {
		return nil
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 3 || f[2] != "cgroup2" {
			continue
		}
		err := os.WriteFile(filepath.Join(f[1], cmp.Or(s.parent, program), "cgroup.procs"), []byte("0"), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	return errors.New("cgroup v2 is not mounted")
}

// runJailer executes the monitor in its jail, in the order of the real jailer.
func runJailer(v fcapi.Version, args []string) int {
	if len(args) == 2 && args[1] == "--version" {
		fmt.Printf("Jailer v%s\n", v)
		return exitOK
	}
	s, err := parseJailer(args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "Jailer error: arguments:", err)
		return exitGeneric
	}
	runtime.LockOSThread() // namespaces and the root directory are those of the thread, which then executes the monitor
	if err := s.run(); err != nil {
		fmt.Fprintln(os.Stderr, "Jailer error:", err)
	}
	return exitGeneric
}

// run executes the monitor or returns an error.
func (s jailerArgs) run() error {
	if err := unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return err
	}
	misc, err := os.ReadFile("/proc/misc")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(misc)) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == "userfaultfd" {
			minor, err := strconv.ParseUint(f[0], 10, 20)
			if err != nil {
				return err
			}
			s.faults = uint32(minor)
		}
	}
	program, err := s.program()
	if err != nil {
		return err
	}
	name := filepath.Base(program)
	root := filepath.Join(s.base, name, s.id, "root")
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, name), data, 0o755); err != nil {
		return err
	}
	if err := s.joinCgroup(name); err != nil {
		return err
	}
	if err := s.enter(root); err != nil {
		return err
	}
	if err := s.makeDevice(name); err != nil {
		return err
	}
	for _, do := range []func() error{
		func() error { return unix.Setgroups(nil) },
		func() error { return unix.Setresgid(s.gid, s.gid, s.gid) },
		func() error { return unix.Setresuid(s.uid, s.uid, s.uid) },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	argv := append(
		[]string{
			"/" + name,
			"--id",
			s.id,
			"--start-time-us",
			"1",
			"--start-time-cpu-us",
			"1",
			"--parent-cpu-time-us",
			"1",
		},
		s.rest...)
	return unix.Exec(argv[0], argv, nil)
}

// enter enters the namespaces and changes the root directory.
func (s jailerArgs) enter(root string) error {
	if s.netns != "" {
		ns, err := os.Open(s.netns)
		if err != nil {
			return err
		}
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("join %s: %w", s.netns, err)
		}
		_ = ns.Close() // was only used to join the namespace
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 2048, Max: 2048}); err != nil {
		return err
	}
	for _, do := range []struct {
		name string
		do   func() error
	}{
		{"unshare", func() error { return unix.Unshare(unix.CLONE_NEWNS) }},
		{"slave", func() error { return unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, "") }},
		{"bind", func() error { return unix.Mount(root, root, "", unix.MS_BIND|unix.MS_REC, "") }},
		{"change into the root directory", func() error { return unix.Chdir(root) }},
		{"create a directory for the old root", func() error { return unix.Mkdir("old_root", 0o700) }},
		{"pivot", func() error { return unix.PivotRoot(".", "old_root") }},
		{"change into the root", func() error { return unix.Chdir("/") }},
		{"unmount the old root", func() error { return unix.Unmount("old_root", unix.MNT_DETACH) }},
		{"remove the directory of the old root", func() error { return unix.Rmdir("old_root") }},
	} {
		if err := do.do(); err != nil {
			return fmt.Errorf("%s: %w", do.name, err)
		}
	}
	return nil
}

// makeDevice creates the directories, device nodes and the PID file. It is an error if one exists.
func (s jailerArgs) makeDevice(name string) error {
	for _, dir := range []string{"/", "/dev", "/dev/net", "/run"} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := errors.Join(os.Chmod(dir, 0o700), os.Chown(dir, s.uid, s.gid)); err != nil {
			return err
		}
	}
	for _, d := range []struct {
		path         string
		major, minor uint32
	}{{"/dev/net/tun", 10, 200}, {"/dev/kvm", 10, 232}, {"/dev/urandom", 1, 9}, {"/dev/userfaultfd", 10, s.faults}} {
		if d.minor == 0 {
			continue
		}
		if err := unix.Mknod(d.path, unix.S_IFCHR|0o600, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("%s: %w", d.path, err)
		}
		if err := os.Chown(d.path, s.uid, s.gid); err != nil {
			return err
		}
	}
	f, err := os.OpenFile("/"+name+".pid", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(f, os.Getpid())
	return errors.Join(err, f.Close())
}
