//go:build root

package jail_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/os/seccomp"
)

// escapeAttempts are run inside a jail. They return nil if the attempt succeeded.
var escapeAttempts = map[string]func(args []string) error{
	"nothing": func([]string) error { return nil },
	"wait": func([]string) error {
		fmt.Println("ready")
		return unix.Pause() // the Go runtime would report a blocked select as a deadlock
	},
	"hog": func(args []string) error {
		return withPID(args, func(bytes int) error {
			room := make([]byte, bytes)
			for i := 0; i < len(room); i += 4096 {
				room[i] = 1
			}
			fmt.Println(room[len(room)-1])
			return nil
		})
	},
	"read":       func(args []string) error { _, err := os.ReadFile(args[0]); return err },
	"open-write": func(args []string) error { return openClose(args[0], unix.O_WRONLY) },
	"create":     func(args []string) error { return os.WriteFile(filepath.Join(args[0], "made"), nil, 0o600) },
	"climb": func(args []string) error {
		_, err := os.ReadFile(strings.Repeat("../", 30) + args[0])
		return err
	},
	"mount": func(args []string) error {
		return onScratch(unix.CLONE_NEWNS, func() error { return unix.Mount("none", args[0], "tmpfs", 0, "") })
	},
	"bind": func(args []string) error {
		return onScratch(unix.CLONE_NEWNS, func() error { return unix.Mount("/", args[0], "", unix.MS_BIND, "") })
	},
	"fsopen": func([]string) error { return closeFD(unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)) },
	"remount": func(args []string) error {
		return onScratch(unix.CLONE_NEWNS, func() error {
			return errors.Join(
				unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
				unix.Mount("none", args[0], "tmpfs", 0, ""),
				unix.Unmount(args[0], 0),
			)
		})
	},
	"namespaces": func([]string) error {
		return onScratch(unix.CLONE_NEWNS|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS, func() error { return nil })
	},
	"user-clone": func([]string) error {
		return runWith(os.Args[0], &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER})
	},
	// CLONE_NEWTIME makes the runtime use clone3(2), whose arguments a seccomp filter cannot read.
	"user-clone3": func([]string) error {
		return runWith(os.Args[0], &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWTIME})
	},
	"setns": func([]string) error {
		fd, err := unix.PidfdOpen(os.Getpid(), 0)
		if err != nil {
			return err
		}
		return onScratch(0, func() error { return unix.Setns(fd, unix.CLONE_NEWUTS) })
	},
	"chroot": func(args []string) error {
		return onScratch(unix.CLONE_FS, func() error { return unix.Chroot(args[0]) })
	},
	"pivot": func(args []string) error {
		return onScratch(unix.CLONE_NEWNS, func() error {
			return errors.Join(
				unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
				unix.Mount("none", args[0], "tmpfs", 0, ""),
				unix.Chdir(args[0]),
				unix.PivotRoot(".", "."),
			)
		})
	},
	"mknod": func(args []string) error {
		at := filepath.Join(args[0], "node"+strconv.Itoa(os.Getpid()))
		return errors.Join(unix.Mknod(at, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 1))), os.Remove(at))
	},
	"open":      func(args []string) error { return openClose(args[0], unix.O_RDONLY) },
	"set-user":  func([]string) error { return syscall.Setresuid(0, 0, 0) },
	"set-group": func([]string) error { return syscall.Setgroups([]int{0}) },
	"run":       func(args []string) error { return runAs(args[0]) },
	"is-root":   func([]string) error { return wantRoot() },
	"signal":    func(args []string) error { return withPID(args, func(pid int) error { return unix.Kill(pid, 0) }) },
	"pidfd": func(args []string) error {
		return withPID(args, func(pid int) error { return closeFD(unix.PidfdOpen(pid, 0)) })
	},
	"ptrace": func(args []string) error { return withPID(args, tracePID) },
	"read-memory": func(args []string) error {
		return withPID(args, func(pid int) error {
			var b byte
			_, err := unix.ProcessVMReadv(
				pid,
				[]unix.Iovec{{Base: &b, Len: 1}},
				[]unix.RemoteIovec{{Base: 0x400000, Len: 1}},
				0,
			)
			if errors.Is(err, unix.EFAULT) { // the kernel looked for it
				return nil
			}
			return err
		})
	},
	"priority": func(args []string) error {
		return withPID(args, func(pid int) error { return unix.Setpriority(unix.PRIO_PROCESS, pid, 1) })
	},
	"limit": func(args []string) error {
		return withPID(args, func(pid int) error { return unix.Prlimit(pid, unix.RLIMIT_CORE, nil, &unix.Rlimit{}) })
	},
	"proc": func(args []string) error { _, err := os.Stat("/proc/" + args[0]); return err },
	"others": func([]string) error {
		list, err := filepath.Glob("/proc/[0-9]*")
		if len(list) < 2 {
			return fmt.Errorf("found only %v, %v", list, err)
		}
		return err
	},
	"raw-socket": func([]string) error {
		return closeFD(unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP))
	},
	"packet-socket": func([]string) error { return closeFD(unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)) },
	"netlink": func([]string) error {
		return closeFD(unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE))
	},
	"alg-socket": func([]string) error { return closeFD(unix.Socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0)) },
	"tcp":        func(args []string) error { return dial("tcp", args[0]) },
	"abstract":   func(args []string) error { return dial("unix", args[0]) },
	"interface": func([]string) error {
		list, err := net.Interfaces()
		if err == nil && len(list) == 0 {
			err = errors.New("none")
		}
		return err
	},
	"ipc": func(args []string) error {
		return withPID(args, func(key int) error { _, err := unix.SysvShmGet(key, 1, 0); return err })
	},
	"keyring": func([]string) error {
		_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, true)
		return err
	},
	"add-key": func([]string) error {
		_, err := unix.AddKey("user", "jailtest", []byte("x"), unix.KEY_SPEC_THREAD_KEYRING)
		return err
	},
	"io-uring": func([]string) error { return reached(unix.SYS_IO_URING_SETUP) },
	"bpf":      func([]string) error { return reached(unix.SYS_BPF) },
	"perf": func([]string) error {
		attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK}
		return closeFD(unix.PerfEventOpen(&attr, 0, -1, -1, 0))
	},
	"kernel-log": func([]string) error { _, err := unix.Klogctl(unix.SYSLOG_ACTION_SIZE_BUFFER, nil); return err },
	"file-handle": func(args []string) error {
		_, _, err := unix.NameToHandleAt(unix.AT_FDCWD, args[0], 0)
		return err
	},
	"host-name": func([]string) error {
		name, err := os.Hostname()
		if name == "jail" {
			err = errors.New("the host name is that of the jail")
		}
		return err
	},
	"rights": func([]string) error { return wantRights() },
	"environment": func([]string) error {
		if env := os.Environ(); len(env) < 2 {
			return fmt.Errorf("found only %q", env)
		}
		return nil
	},
	"descriptor": func(args []string) error {
		return withPID(args, func(fd int) error { _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); return err })
	},
}

func openClose(path string, flags int) error {
	return closeFD(unix.Open(path, flags|unix.O_NONBLOCK, 0))
}

func closeFD(fd int, err error) error {
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

// reached makes a system call with zero arguments. If the call reaches the kernel, it fails with
// another error than EPERM.
func reached(call uintptr) error {
	_, _, errno := unix.Syscall(call, 0, 0, 0)
	if errno == unix.EPERM || errno == unix.ENOSYS {
		return errno
	}
	return nil
}

func withPID(args []string, do func(int) error) error {
	n, err := number(args, 0)
	if err != nil {
		return err
	}
	return do(n)
}

func dial(network, address string) error {
	c, err := net.Dial(network, address)
	if err == nil {
		err = c.Close()
	}
	return err
}

// onScratch runs do on a new thread. The process exits afterwards, so it does not matter if that is
// the main thread.
func onScratch(flags int, do func() error) error {
	runtime.LockOSThread()
	if flags != 0 {
		if err := unix.Unshare(flags); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
	}
	return do()
}

// runAs runs a program that succeeds if it has root's rights.
func runAs(path string) error { return runWith(path, &syscall.SysProcAttr{}) }

func runWith(path string, sys *syscall.SysProcAttr) error {
	what := "nothing"
	if sys.Cloneflags == 0 {
		what = "is-root"
	}
	pid, err := syscall.ForkExec(
		path,
		[]string{path, "jailed", what},
		&syscall.ProcAttr{Env: []string{"GOMAXPROCS=1"}, Files: []uintptr{0, 1, 2}, Sys: sys},
	)
	if err != nil {
		return err
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		return err
	}
	if status.ExitStatus() != 0 {
		return fmt.Errorf("the program exited with status %d", status.ExitStatus())
	}
	return nil
}

func wantRoot() error {
	if id := os.Geteuid(); id != 0 {
		return fmt.Errorf("the effective user ID is %d", id)
	}
	return nil
}

func tracePID(pid int) error {
	runtime.LockOSThread()
	if err := unix.PtraceSeize(pid); err != nil {
		return err
	}
	return nil // detached when the tracer exits
}

// wantRights returns nil if the process has any privilege left.
func wantRights() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return err
	}
	if have != [2]unix.CapUserData{} {
		return nil
	}
	for c := uintptr(0); c <= 63; c++ {
		in, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err == nil && in != 0 {
			return nil
		}
	}
	private, err1 := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	filtered, err2 := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	groups, err3 := os.Getgroups()
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil
	}
	if private != 1 || filtered != unix.SECCOMP_MODE_FILTER || len(groups) != 0 {
		return nil
	}
	return errors.New("no privilege is left")
}

// attempt is one way out of a jail.
type attempt struct {
	name string
	try  string
	args []string
	// inside are the arguments inside a jail, if paths differ; nil: args.
	inside []string
	// onlyInside says why the attempt cannot be repeated outside a jail; "": it can.
	onlyInside string
}

// hostTargets are the files and processes of the host that the attempts try to reach.
type hostTargets struct {
	secret, work, device, setuid string
	victim                       int
	fd                           int
	tcp, abstract                string
	key                          int
}

func escapes(o hostTargets) []attempt {
	pid := strconv.Itoa(o.victim)
	return []attempt{
		{name: "file-of-host", try: "read", args: []string{o.secret}},
		{name: "file-of-host-by-climbing", try: "climb", args: []string{o.secret}},
		{name: "password-file", try: "read", args: []string{"/etc/passwd"}},
		{name: "settings-of-host", try: "open-write", args: []string{"/proc/sys/kernel/core_pattern"}},
		{name: "sysrq", try: "open-write", args: []string{"/proc/sysrq-trigger"},
			onlyInside: "not every kernel has it"},
		{name: "sysfs", try: "open", args: []string{"/sys/kernel"}},
		{name: "control-groups", try: "open", args: []string{"/sys/fs/cgroup"}},
		{name: "disk-of-host", try: "open", args: []string{"/dev"}, inside: []string{"/dev/vda"}},
		{name: "write-root", try: "create", args: []string{o.work}, inside: []string{"/"}},
		{name: "write-program", try: "open-write", args: []string{o.setuid}, inside: []string{self()}},
		{name: "mount", try: "mount", args: []string{o.work}, inside: []string{"/room"}},
		{name: "bind-mount", try: "bind", args: []string{o.work}, inside: []string{"/room"}},
		{name: "new-mount-interface", try: "fsopen"},
		{name: "unmount", try: "remount", args: []string{o.work}, inside: []string{"/room"}},
		{name: "namespaces", try: "namespaces"},
		{name: "user-namespace", try: "user-clone"},
		{name: "user-namespace-by-clone3", try: "user-clone3"},
		{name: "join-namespace", try: "setns"},
		{name: "chroot", try: "chroot", args: []string{o.work}, inside: []string{"/room"}},
		{name: "pivot-root", try: "pivot", args: []string{o.work}, inside: []string{"/room"}},
		{name: "make-device", try: "mknod", args: []string{o.work}, inside: []string{"/room"}},
		{name: "open-device", try: "open", args: []string{o.device}, inside: []string{"/room/device"}},
		{name: "become-root", try: "set-user"},
		{name: "become-root-group", try: "set-group"},
		{name: "set-user-id-program", try: "run", args: []string{o.setuid}, inside: []string{"/room/setuid"}},
		{name: "signal", try: "signal", args: []string{pid}},
		{name: "process-descriptor", try: "pidfd", args: []string{pid}},
		{name: "trace", try: "ptrace", args: []string{pid}},
		{name: "memory-of-process", try: "read-memory", args: []string{pid}},
		{name: "priority-of-process", try: "priority", args: []string{pid}},
		{name: "limits-of-process", try: "limit", args: []string{pid}},
		{name: "see-process", try: "proc", args: []string{pid}},
		{name: "see-others", try: "others"},
		{name: "raw-socket", try: "raw-socket"},
		{name: "packet-socket", try: "packet-socket"},
		{name: "netlink-socket", try: "netlink"},
		{name: "crypto-socket", try: "alg-socket", onlyInside: "not every kernel has it"},
		{name: "connect-to-host", try: "tcp", args: []string{o.tcp}},
		{name: "abstract-socket", try: "abstract", args: []string{o.abstract}},
		{name: "see-network", try: "interface"},
		{name: "shared-memory", try: "ipc", args: []string{strconv.Itoa(o.key)}},
		{name: "session-keyring", try: "keyring"},
		{name: "add-key", try: "add-key"},
		{name: "io-uring", try: "io-uring", onlyInside: "a setting may forbid it to all"},
		{name: "bpf", try: "bpf"},
		{name: "perf", try: "perf", onlyInside: "not every host counts events"},
		{name: "kernel-log", try: "kernel-log"},
		{name: "file-handle", try: "file-handle", args: []string{o.secret}, inside: []string{"/room"}},
		{name: "name-of-host", try: "host-name"},
		{name: "rights", try: "rights"},
		{name: "environment-of-node", try: "environment", onlyInside: "the control is given no environment either"},
		{name: "descriptor-of-node", try: "descriptor", args: []string{strconv.Itoa(o.fd)}},
	}
}

func self() string {
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	return path
}

// newHostTargets creates the targets.
func newHostTargets(t *testing.T) hostTargets {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	o := hostTargets{
		secret: filepath.Join(
			dir,
			"secret",
		), work: filepath.Join(dir, "work"), device: filepath.Join(dir, "work", "device"),
		setuid: filepath.Join(
			dir,
			"work",
			"setuid",
		), abstract: "@jailtest" + strconv.Itoa(os.Getpid()), key: os.Getpid(),
	}
	program, err := os.ReadFile(self())
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(os.WriteFile(o.secret, []byte("secret"), 0o644), os.Mkdir(o.work, 0o777), os.Chmod(o.work, 0o777),
		unix.Mknod(o.device, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))), os.Chmod(o.device, 0o666),
		os.WriteFile(o.setuid, program, 0o755), os.Chmod(o.setuid, 0o755|os.ModeSetuid))
	if err != nil {
		t.Fatal(err)
	}
	o.victim = background(t, command(t, "wait")).PID()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a, err := net.Listen("unix", o.abstract)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(); _ = a.Close() })
	o.tcp = l.Addr().String()
	shm, err := unix.SysvShmGet(o.key, 4096, unix.IPC_CREAT|0o666)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = unix.SysvShmCtl(shm, unix.IPC_RMID, nil) })
	o.fd = inheritable(t)
	return o
}

// inheritable returns a descriptor without close-on-exec, as a careless parent process might leave
// one open.
func inheritable(t *testing.T) int {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], 0); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(uintptr(p[0]), unix.F_DUPFD, 200)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(p[0]); _ = unix.Close(p[1]); _ = unix.Close(fd) })
	return fd
}

// TestEscapes runs every attempt in a jail, where it must fail, and outside, where it must succeed;
// otherwise the attempt would prove nothing.
func TestEscapes(t *testing.T) { testEscapes(t, "pntescape", nil) }

// TestEscapesWithPolicy runs the attempts in a jail with a list of allowed calls.
func TestEscapesWithPolicy(t *testing.T) { testEscapes(t, "pntescpol", goPolicy(t)) }

func testEscapes(t *testing.T, prefix string, policy *seccomp.Policy) {
	f := newFixture(t, prefix)
	o := newHostTargets(t)
	limits := jail.Limits{MemoryMax: 512 << 20, PIDs: 64, OpenFiles: 256}
	for _, a := range escapes(o) {
		t.Run(a.name, func(t *testing.T) {
			// starting a jail set close-on-exec
			if _, err := unix.FcntlInt(uintptr(o.fd), unix.F_SETFD, 0); err != nil {
				t.Fatal(err)
			}
			if a.onlyInside == "" {
				if exit, output := run(t, command(t, a.try, a.args...)); !exit.Known || exit.Code != 0 ||
					exit.Signal != 0 {
					t.Errorf("outside the jail got %v, output %q; want success", exit, output)
				}
			}
			if _, err := unix.FcntlInt(uintptr(o.fd), unix.F_SETFD, 0); err != nil {
				t.Fatal(err)
			}
			args := a.args
			if a.inside != nil {
				args = a.inside
			}
			b := *f
			b.t = t
			spec := jail.Spec{Binds: []jail.Bind{{Path: o.work, Target: "/room", Write: true}}, Syscalls: policy}
			exit, output := run(t, jailed(command(t, a.try, args...), b.group("escape", limits), spec))
			t.Logf("%v: %s", exit, output)
			if !exit.Known || exit.Signal != 0 || exit.Code != 1 {
				t.Errorf("in the jail got %v, output %q; want status 1", exit, output)
			}
		})
	}
}
