package qemu

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/os/seccomp"
	"github.com/pandastack/pandastack/internal/vmm"
)

// The system calls that a monitor may make in a jail. They were derived by running the tests with real guests under
// a recorder (TestMachines with -qemu.record); without the recorder, the tests fail for a call that is refused. Calls
// of one purpose are listed together, even if the tests make only some of them, because the C library and QEMU choose
// among them by version and by what the kernel has. Names that an architecture lacks are left out there.
//
// QEMU's own sandbox (launchSpec.arguments) applies in addition and forbids, from the moment when QEMU has parsed
// its arguments, what only the start of the program needs: execve, forks, and changes of user and group.

// namespaces are the flags of clone(2) that create namespaces.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// startCalls start a program in a jail: they are those of the Go runtime's fork, in the thread that forks and in the
// child until it executes the program.
var startCalls = slices.Concat(
	[]seccomp.Rule{
		{Call: "clone", Args: []seccomp.Arg{ // a child that executes a program at once
			{Index: 0, Mask: namespaces | unix.CLONE_VFORK, Value: unix.CLONE_VFORK},
		}},
		// The Go runtime uses it if it creates a process in its cgroup (v2). A filter cannot read its arguments. A
		// process in a jail is in a chroot, in which the kernel creates no user namespaces, and it has no
		// capabilities, which all other namespaces need.
		{Call: "clone3"},
	},
	seccomp.Any("execve", "setsid", "setgroups", "setgid", "setuid", "chdir", "dup3", "prlimit64", "pipe2", "wait4"),
	seccomp.Any( // the Go runtime
		"mmap", "munmap", "mprotect", "madvise", "futex", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn",
		"sigaltstack", "tgkill", "getpid", "gettid", "sched_yield", "nanosleep", "epoll_ctl", "fcntl", "close", "read",
		"write", "exit",
	),
)

// programCalls are those of every program that is linked with the GNU C library.
var programCalls = slices.Concat(
	// Threads.
	[]seccomp.Rule{{Call: "clone", Args: []seccomp.Arg{
		{Index: 0, Mask: namespaces | unix.CLONE_THREAD, Value: unix.CLONE_THREAD},
	}}},
	seccomp.Any(
		"set_robust_list", "set_tid_address", "rseq", "arch_prctl", "exit_group", "sched_getaffinity", "membarrier",
		"restart_syscall",
	),
	prctls(unix.PR_SET_NAME, unix.PR_GET_NAME, prSetVMA),
	// The loader, and files: firmware, the kernel, and guest memory.
	seccomp.Any(
		"access", "faccessat", "faccessat2", "openat", "close_range", "pread64", "lseek", "fstat", "newfstatat",
		"statx", "readlink", "readlinkat", "getcwd",
	),
	seccomp.Any("brk", "mremap"),
	seccomp.Any(
		"getppid", "getuid", "geteuid", "getgid", "getegid", "uname", "sysinfo", "getrandom", "getrusage",
	),
	// Signals; QEMU also makes the stacks of its coroutines with them.
	seccomp.Any("rt_sigsuspend", "rt_sigtimedwait", "rt_sigpending", "pause"),
	seccomp.Any("clock_gettime", "clock_getres", "clock_nanosleep", "gettimeofday"),
)

// monitorCalls are those of QEMU's own work. It creates no sockets: it inherits them.
var monitorCalls = slices.Concat(
	// The event loop of the main thread and of the block layer, and what it waits for.
	seccomp.Any("poll", "ppoll", "epoll_create1", "epoll_wait", "epoll_pwait", "eventfd2", "signalfd4"),
	prctls(unix.PR_SET_TIMERSLACK),
	// The sockets of the monitor's protocol and of the guest channel, and descriptors received over them.
	seccomp.Any(
		"accept4", "listen", "shutdown", "getsockname", "getpeername", "getsockopt", "setsockopt", "recvfrom",
		"recvmsg", "sendto", "sendmsg",
	),
	// Disks: reads, writes, flushes, discards and sizes. Network packets use readv and writev as well.
	seccomp.Any(
		"readv", "writev", "preadv", "preadv2", "pwritev", "pwritev2", "pwrite64", "fsync", "fdatasync", "fallocate",
		"ftruncate", "fstatfs", "statfs", "fadvise64",
	),
	// Guest memory, the translation cache, and the state of a machine that is saved or loaded.
	seccomp.Any("memfd_create", "msync", "mbind", "get_mempolicy", "set_mempolicy"),
	prctls(unix.PR_MCE_KILL),
	// QEMU's own sandbox.
	seccomp.Any("seccomp"),
	prctls(unix.PR_SET_NO_NEW_PRIVS, unix.PR_GET_SECCOMP, unix.PR_SET_SECCOMP),
	// The dump of a monitor checkpoint, which the node makes the monitor's threads call (package checkpoint).
	prctls(unix.PR_GET_TID_ADDRESS),
)

// prctls returns rules that allow options of prctl(2).
func prctls(options ...uint32) []seccomp.Rule {
	var all []seccomp.Rule
	for _, o := range options {
		all = append(all, seccomp.Rule{Call: "prctl", Args: []seccomp.Arg{seccomp.Is(0, o)}})
	}
	return all
}

// prSetVMA is PR_SET_VMA, with which the C library names memory.
const prSetVMA = 0x53564d41

// ioctls are the requests of ioctl(2) that a monitor may make.
var ioctls = []uint32{
	unix.TCGETS, // isatty
	// The tap device of the network card.
	unix.TUNGETIFF, unix.TUNGETFEATURES, unix.TUNSETOFFLOAD, unix.TUNSETVNETHDRSZ, unix.TUNGETVNETHDRSZ,
	unix.TUNSETVNETLE, unix.TUNSETVNETBE, unix.TUNSETSNDBUF, unix.TUNSETQUEUE,
	// QEMU detaches a program that distributes packets to queues. It can attach none without bpf(2).
	unix.TUNSETSTEERINGEBPF,
}

// kvmType is the type of KVM's ioctls (linux/kvm.h), in the second byte of the request. They are allowed as a whole:
// which ones QEMU makes depends on what the processor and the kernel have.
const kvmType = 0xae

// restoreCalls are those that the stub of a monitor checkpoint makes in addition, while it replaces its address space
// by that of a monitor.
var restoreCalls = []seccomp.Rule{
	{Call: "prctl", Args: []seccomp.Arg{seccomp.Is(0, unix.PR_SET_MM), seccomp.Is(1, unix.PR_SET_MM_MAP)}},
}

// triedCalls are those that QEMU tries when it starts and works without. io_uring would widen the kernel's attack
// surface, and the event loop uses poll or epoll instead.
var triedCalls = []string{"io_uring_setup"}

// syscallPolicies returns the policies for QEMU and for the stub of a monitor checkpoint. more are names of further
// calls that are allowed.
func syscallPolicies(accelerator vmm.Accelerator, more []string) (monitor, stub *seccomp.Policy, err error) {
	rules := slices.Concat(startCalls, programCalls, monitorCalls, seccomp.Any(more...))
	for _, request := range ioctls {
		rules = append(rules, seccomp.Rule{Call: "ioctl", Args: []seccomp.Arg{seccomp.Is(1, request)}})
	}
	if accelerator == vmm.KVM {
		rules = append(rules, seccomp.Rule{Call: "ioctl", Args: []seccomp.Arg{
			{Index: 1, Mask: 0xff00, Value: kvmType << 8},
		}})
	}
	if monitor, err = seccomp.New(rules, triedCalls...); err != nil {
		return nil, nil, err
	}
	stub, err = seccomp.New(append(rules, restoreCalls...), triedCalls...)
	return monitor, stub, err
}
