package jail

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/os/seccomp"
)

// dropPrivileges removes what no monitor needs from the calling thread and its future children:
// gaining privileges by running programs, capabilities, and system calls. With a policy, these are
// all that it does not allow, and the returned listener receives them; otherwise those that mainly
// widen the kernel's attack surface. If record is set, both filters apply, and the caller lets the
// calls that the policy does not allow continue.
func dropPrivileges(policy *seccomp.Policy, record bool) (*seccomp.Listener, error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("no new privileges: %w", err)
	}
	if err := dropCapabilities(); err != nil {
		return nil, err
	}
	if policy == nil || record {
		if err := setFilter(filter(denied, nativeArch)); err != nil {
			return nil, fmt.Errorf("filter system calls: %w", err)
		}
	}
	if policy == nil {
		return nil, nil
	}
	return seccomp.Install(policy, nativeArch)
}

// RefusedCall is a system call that the policy of a jail does not allow and that its process made.
type RefusedCall struct {
	Cgroup    string
	PID       int // of the thread
	Name      string
	Args      [6]uint64
	Continued bool // the call was made all the same, because calls are only recorded
}

// handleCalls responds to the calls that a jail's policy does not allow, in a goroutine that ends
// with the last process of the jail or with Close.
func (m *Manager) handleCalls(cgroup string, l *seccomp.Listener) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listeners[l] = struct{}{}
	m.handlers.Go(func() {
		for {
			c, err := l.Next()
			if err != nil {
				break // no process is left, or Close was called
			}
			respond := l.Refuse
			if m.cfg.RecordCalls {
				respond = l.Continue
			}
			if respond(c) != nil {
				break // closing the listener refuses all further calls
			}
			if m.cfg.OnRefusedCall != nil {
				m.cfg.OnRefusedCall(RefusedCall{cgroup, c.PID, c.Name, c.Args, m.cfg.RecordCalls})
			}
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if _, open := m.listeners[l]; open {
			delete(m.listeners, l)
			_ = l.Close() // was only read
		}
	})
}

// closeListeners ends the goroutines of handleCalls and waits for them.
func (m *Manager) closeListeners() (err error) {
	m.mu.Lock()
	for l := range m.listeners {
		delete(m.listeners, l)
		err = errors.Join(err, l.Close())
	}
	m.mu.Unlock()
	m.handlers.Wait()
	return err
}

// dropCapabilities clears the bounding set and the ambient set. The capabilities that the thread
// still has are needed to change the user ID, which clears them.
func dropCapabilities() error {
	for c := uintptr(0); c <= 63; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if err == unix.EINVAL { // the kernel has no more capabilities
			break
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("drop ambient capabilities: %w", err)
	}
	return nil
}

// Offsets in struct seccomp_data (seccomp(2)). All supported architectures are little-endian.
const (
	dataNumber = 0
	dataArch   = 4
	dataArg0   = 16
)

// x32 is the bit in system call numbers of the x32 ABI, which has the same architecture value as
// amd64.
const x32 = 0x40000000

// filter returns a classic BPF program (bpf(2)) that denies the given system calls with EPERM, and
// sockets of all families except AF_UNIX. It denies all calls of other architectures, whose numbers
// have other meanings.
func filter(denied []int, arch uint32) []unix.SockFilter {
	const (
		load = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		jge  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		ret  = unix.BPF_RET | unix.BPF_K

		allow = unix.SECCOMP_RET_ALLOW
		deny  = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	)
	p := []unix.SockFilter{
		{Code: load, K: dataArch},
		{Code: jeq, K: arch, Jt: 1},
		{Code: ret, K: deny},
		{Code: load, K: dataNumber},
		{Code: jge, K: x32, Jf: 1},
		{Code: ret, K: deny},
		{Code: jeq, K: unix.SYS_SOCKET, Jf: 4},
		{Code: load, K: dataArg0},
		{Code: jeq, K: unix.AF_UNIX, Jt: 1},
		{Code: ret, K: deny},
		{Code: ret, K: allow},
	}
	for _, number := range denied {
		p = append(p, unix.SockFilter{Code: jeq, K: uint32(number), Jf: 1}, unix.SockFilter{Code: ret, K: deny})
	}
	return append(p, unix.SockFilter{Code: ret, K: allow})
}

// deniedEverywhere are the denied system calls that exist on every architecture.
var deniedEverywhere = []int{
	unix.SYS_ACCT, unix.SYS_ADD_KEY, unix.SYS_ADJTIMEX, unix.SYS_BPF, unix.SYS_CHROOT, unix.SYS_CLOCK_ADJTIME,
	unix.SYS_CLOCK_SETTIME, unix.SYS_DELETE_MODULE, unix.SYS_FANOTIFY_INIT, unix.SYS_FINIT_MODULE, unix.SYS_FSCONFIG,
	unix.SYS_FSMOUNT, unix.SYS_FSOPEN, unix.SYS_FSPICK, unix.SYS_INIT_MODULE, unix.SYS_IO_URING_ENTER,
	unix.SYS_IO_URING_REGISTER, unix.SYS_IO_URING_SETUP, unix.SYS_KCMP, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_KEXEC_LOAD,
	unix.SYS_KEYCTL, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_MIGRATE_PAGES, unix.SYS_MKNODAT, unix.SYS_MOUNT,
	unix.SYS_MOUNT_SETATTR, unix.SYS_MOVE_MOUNT, unix.SYS_MOVE_PAGES, unix.SYS_NAME_TO_HANDLE_AT,
	unix.SYS_OPEN_BY_HANDLE_AT,
	unix.SYS_OPEN_TREE, unix.SYS_PERF_EVENT_OPEN, unix.SYS_PERSONALITY, unix.SYS_PIDFD_GETFD, unix.SYS_PIVOT_ROOT,
	unix.SYS_PROCESS_MADVISE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PTRACE, unix.SYS_QUOTACTL,
	unix.SYS_REBOOT, unix.SYS_REQUEST_KEY, unix.SYS_SETDOMAINNAME, unix.SYS_SETHOSTNAME, unix.SYS_SETNS,
	unix.SYS_SETTIMEOFDAY, unix.SYS_SWAPOFF, unix.SYS_SWAPON, unix.SYS_SYSLOG, unix.SYS_UMOUNT2, unix.SYS_UNSHARE,
	unix.SYS_VHANGUP,
}
