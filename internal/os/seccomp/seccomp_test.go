package seccomp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// run runs a program for one call and returns its action, as the kernel does (bpf(2)).
func run(t *testing.T, program []unix.SockFilter, auditArch uint32, number int, args ...uint64) uint32 {
	t.Helper()
	data := make([]byte, 64)
	binary.LittleEndian.PutUint32(data[0:], uint32(number))
	binary.LittleEndian.PutUint32(data[4:], auditArch)
	for i, a := range args {
		binary.LittleEndian.PutUint64(data[16+8*i:], a)
	}
	var acc uint32
	for at := 0; at < len(program); at++ {
		i := program[at]
		jump := func(hit bool) {
			if hit {
				at += int(i.Jt)
			} else {
				at += int(i.Jf)
			}
		}
		switch i.Code {
		case load:
			acc = binary.LittleEndian.Uint32(data[i.K:])
		case and:
			acc &= i.K
		case jeq:
			jump(acc == i.K)
		case jge:
			jump(acc >= i.K)
		case ret:
			return i.K
		default:
			t.Fatalf("instruction %d: unknown code %#x", at, i.Code)
		}
	}
	t.Fatal("the program ends without an action")
	return 0
}

// TestProgram compares the programs of both architectures with what their rules say.
func TestProgram(t *testing.T) {
	const (
		allow  = unix.SECCOMP_RET_ALLOW
		other  = unix.SECCOMP_RET_USER_NOTIF
		nosys  = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
		socket = "socket"
	)
	rules := append(Any("read", "write", "open", "openat"),
		Rule{socket, []Arg{Is(0, unix.AF_UNIX)}},
		Rule{"prctl", []Arg{Is(0, 1), Is(1, 2)}}, Rule{"prctl", []Arg{Is(0, 3)}},
		Rule{"clone", []Arg{{0, 0xff00, 0x1000}}}, Rule{"mlock", []Arg{{1, 1<<64 - 1, 1 << 40}}},
		Rule{"ioctl", []Arg{HasNone(1, 0xf0)}}, Rule{"ioctl", []Arg{Is(1, 0xf1)}},
		Rule{"futex", []Arg{Is(0, 1)}}, Rule{Call: "futex"},
	)
	for _, a := range []struct {
		name string
		info *arch.Info
		id   uint32
	}{{"amd64", arch.X86_64, unix.AUDIT_ARCH_X86_64}, {"arm64", arch.AARCH64, unix.AUDIT_ARCH_AARCH64}} {
		p, err := newPolicy(rules, []string{"io_uring_setup", "read"}, a.name)
		if err != nil {
			t.Fatal(err)
		}
		program, err := p.Program(a.id, other)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			call string
			args []uint64
			want uint32
		}{
			{"read", nil, allow}, {"openat", []uint64{1, 2, 3, 4, 5, 6}, allow}, {"execve", nil, other},
			{"io_uring_setup", nil, nosys},
			{socket, []uint64{unix.AF_UNIX}, allow}, {socket, []uint64{unix.AF_INET}, other},
			{socket, []uint64{1<<32 | unix.AF_UNIX}, allow}, // the kernel takes 32 bits
			{"prctl", []uint64{1, 2}, allow}, {"prctl", []uint64{1, 3}, other}, {"prctl", []uint64{3}, allow},
			{"prctl", []uint64{2, 2}, other},
			{"clone", []uint64{0x1011}, allow}, {"clone", []uint64{0x1111}, other}, {"clone", []uint64{0x11}, other},
			{"mlock", []uint64{0, 1 << 40}, allow}, {"mlock", []uint64{0, 1<<40 | 1}, other}, {"mlock", nil, other},
			{"ioctl", []uint64{0, 0xf01}, allow}, {"ioctl", []uint64{0, 0x11}, other},
			{"ioctl", []uint64{0, 0xf1}, allow},
			{"futex", nil, allow}, {"futex", []uint64{1}, allow},
		} {
			if got := run(t, program, a.id, a.info.SyscallNames[c.call], c.args...); got != c.want {
				t.Errorf("%s: %s(%#x): action %#x, want %#x", a.name, c.call, c.args, got, c.want)
			}
		}
		if got := run(t, program, a.id+1, a.info.SyscallNames["read"]); got != nosys {
			t.Errorf("%s: call of another architecture: action %#x, want %#x", a.name, got, nosys)
		}
		if got := run(t, program, a.id, x32|a.info.SyscallNames["read"]); got != nosys {
			t.Errorf("%s: call of x32: action %#x, want %#x", a.name, got, nosys)
		}
		if want := map[string]int{"amd64": 10, "arm64": 9}[a.name]; len(p.numbers) != want { // arm64 has no open
			t.Errorf("%s: %d calls, want %d", a.name, len(p.numbers), want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for want, rules := range map[string][]Rule{
		`unknown system call "fly"`: Any("read", "fly"),
		"cannot hold":               {{"read", []Arg{{6, 1, 1}}}},
		"system call write":         {{"write", []Arg{{0, 1, 2}}}},
	} {
		if _, err := New(rules); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%v) = %v, want an error with %q", rules, err, want)
		}
	}
	if _, err := New(nil, "fly"); err == nil {
		t.Error("New with an unknown call that is tried succeeded, want an error")
	}
	var many []Rule
	for n := range uint32(200) {
		many = append(many, Rule{"ioctl", []Arg{Is(1, n)}})
	}
	p, err := New(many)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Program(unix.AUDIT_ARCH_X86_64, 0); err == nil {
		t.Error("Program with too many rules of one call succeeded, want an error")
	}
}

// nativeArch is the AUDIT_ARCH value of this program.
var nativeArch = map[string]uint32{
	"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64,
}[runtime.GOARCH]

// goCalls are those of the Go runtime on a thread.
var goCalls = Any("mmap", "munmap", "mprotect", "madvise", "futex", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn",
	"sigaltstack", "tgkill", "getpid", "gettid", "sched_yield", "nanosleep", "epoll_ctl", "epoll_pwait", "fcntl",
	"close", "read", "write", "exit", "exit_group", "clone", "clock_gettime", "timer_create", "timer_settime",
	"timer_delete", "poll", "ppoll", "ioctl", "eventfd2")

// onNewThread runs do in a goroutine with a thread of its own, which ends with it. The main thread would not end.
func onNewThread(do func()) {
	go func() {
		runtime.LockOSThread() // never unlocked, except for the main thread
		if unix.Gettid() == unix.Getpid() {
			onNewThread(do) // not on the main thread, which is locked
			runtime.UnlockOSThread()
			return
		}
		do()
	}()
}

// filtered runs calls on a thread with a filter. handle decides about those that are not allowed.
func filtered(t *testing.T, rules []Rule, handle func(*Listener, Call) error, calls func()) (seen []string) {
	t.Helper()
	p, err := New(append(rules, goCalls...))
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		l   *Listener
		err error
	}
	installed, ended := make(chan result), make(chan struct{})
	onNewThread(func() {
		defer close(ended)
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		var l *Listener
		if err == nil {
			l, err = Install(p, nativeArch)
		}
		installed <- result{l, err}
		if err == nil {
			calls()
		}
	})
	r := <-installed
	if r.err != nil {
		t.Fatal(r.err)
	}
	for {
		c, err := r.l.Next()
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, c.Name)
		if err := handle(r.l, c); err != nil {
			t.Fatal(err)
		}
	}
	<-ended
	_ = r.l.Close() // may be closed already
	return seen
}

// TestListener makes calls that are not allowed in the real kernel: they are refused or continue, and each is
// reported with its name.
func TestListener(t *testing.T) {
	var errs []error
	seen := filtered(t, []Rule{{"socket", []Arg{Is(0, unix.AF_UNIX)}}}, func(l *Listener, c Call) error {
		if c.Name == "getppid" {
			return l.Continue(c)
		}
		return l.Refuse(c)
	}, func() {
		call := func(number uintptr, args ...uintptr) {
			args = append(args, 0, 0, 0)
			n, _, errno := unix.Syscall(number, args[0], args[1], args[2])
			if errno != 0 {
				errs = append(errs, errno)
				return
			}
			errs = append(errs, nil)
			if number == unix.SYS_SOCKET {
				errs = append(errs, unix.Close(int(n)))
			}
		}
		call(unix.SYS_GETPPID)
		call(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM)
		call(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_DGRAM)
		call(unix.SYS_UNSHARE, 0)
	})
	if got, want := fmt.Sprint(seen), "[getppid socket unshare]"; got != want {
		t.Errorf("got calls %s, want %s", got, want)
	}
	want := []error{nil, unix.ENOSYS, nil, nil, unix.ENOSYS}
	if fmt.Sprint(errs) != fmt.Sprint(want) {
		t.Errorf("got errors %v, want %v", errs, want)
	}
}

// TestCallsWithoutListener checks that calls are still refused after the listener has been closed.
func TestCallsWithoutListener(t *testing.T) {
	var errs []error
	seen := filtered(t, nil, func(l *Listener, _ Call) error { return l.Close() }, func() {
		for range 2 {
			_, _, errno := unix.Syscall(unix.SYS_GETPPID, 0, 0, 0)
			errs = append(errs, errno)
		}
	})
	if len(seen) != 1 || fmt.Sprint(errs) != fmt.Sprint([]error{unix.ENOSYS, unix.ENOSYS}) {
		t.Errorf("got calls %v with errors %v, want one, and both refused", seen, errs)
	}
}
