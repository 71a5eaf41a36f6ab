//go:build root

package jail_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/os/seccomp"
)

// goPolicy allows what the test program needs: the start of a program, the Go runtime, and harmless queries.
func goPolicy(t testing.TB) *seccomp.Policy {
	t.Helper()
	p, err := seccomp.New(seccomp.Any(
		"clone", "clone3", "execve", "setsid", "setgroups", "setgid", "setuid", "chdir", "dup3", "prlimit64", "pipe2",
		"wait4", "waitid",
		"mmap", "munmap", "mprotect", "madvise", "brk", "futex", "arch_prctl", "set_tid_address", "set_robust_list",
		"rseq",
		"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "tgkill", "getpid", "gettid", "sched_yield",
		"sched_getaffinity", "nanosleep", "clock_gettime", "getrandom", "exit", "exit_group", "pause",
		"epoll_create1", "epoll_ctl", "epoll_pwait", "eventfd2", "fcntl", "openat", "close", "read", "write", "pread64",
		"access", // the dynamic loader, if the tests are built with cgo
		"fstat", "newfstatat", "readlinkat", "getdents64", "lseek", "uname", "capget", "getgroups", "prctl", "geteuid",
	))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// callLog collects the calls that a policy does not allow.
type callLog struct {
	mu  sync.Mutex
	all []jail.RefusedCall
}

func (l *callLog) add(c jail.RefusedCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, c)
}

// find returns the first call with a name.
func (l *callLog) find(name string) (jail.RefusedCall, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.all, func(c jail.RefusedCall) bool { return c.Name == name })
	if i < 0 {
		return jail.RefusedCall{}, false
	}
	return l.all[i], true
}

// TestRefusedCallsAreReported makes calls in a jail that its policy does not allow. They are refused and reported with
// their names, or recorded and made, unless they serve attacks.
func TestRefusedCallsAreReported(t *testing.T) {
	for _, c := range []struct {
		name, try, call string
		args            []string
		record          bool
		exit            int
		output          string
	}{
		{name: "refused", try: "ipc", args: []string{"1"}, call: "shmget", exit: 1, output: "function not implemented"},
		{name: "refused_attack", try: "bpf", call: "bpf", exit: 1, output: "function not implemented"},
		{name: "recorded", try: "ipc", args: []string{"1"}, call: "shmget", record: true, exit: 1,
			output: "no such file"},
		{name: "recorded_attack", try: "bpf", record: true, exit: 1, output: "operation not permitted"},
		{name: "allowed", try: "nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log callLog
			f := newFixtureOf(t, jail.Config{Prefix: "pntcalls", OnRefusedCall: log.add, RecordCalls: c.record})
			g := f.group("calls", jail.Limits{PIDs: 64})
			exit, output := run(t, jailed(command(t, c.try, c.args...), g, jail.Spec{Syscalls: goPolicy(t)}))
			if !exit.Known || exit.Signal != 0 || exit.Code != c.exit || !strings.Contains(output, c.output) {
				t.Errorf("the program ended with %v, output %q; want status %d and %q", exit, output, c.exit, c.output)
			}
			if err := f.jail.Close(); err != nil { // waits for all reports
				t.Fatal(err)
			}
			if c.call == "" {
				if len(log.all) != 0 {
					t.Errorf("got calls %+v, want none", log.all)
				}
				return
			}
			got, ok := log.find(c.call)
			if !ok || got.Cgroup != "calls" || got.PID <= 0 || got.Continued != c.record {
				t.Errorf("got calls %+v, want %s in cgroup calls, continued: %v", log.all, c.call, c.record)
			}
		})
	}
}
