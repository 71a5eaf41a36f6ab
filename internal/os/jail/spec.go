package jail

import (
	"os"
	"time"

	"github.com/pandastack/pandastack/internal/os/seccomp"
)

// Spec describes the jail of one process. Its root directory is read-only and contains nothing else
// than the Spec names. The process has its own namespaces (mount, PID, IPC, UTS, network) and is
// process 1 of its PID namespace. There is no /proc.
type Spec struct {
	// Program is an ELF executable of the host. It has the same path inside, as have the libraries
	// that it is linked with. All jails with the same Program and Data share one copy of them.
	Program string
	// Data are more files and directories of the host that the program reads, at the same paths.
	// Libraries of shared objects among them are added. Missing files are left out.
	Data []string
	// Binds are the files and directories of the machine itself.
	Binds []Bind
	// Devices are devices that every user may open inside, at the same paths: /dev/kvm,
	// /dev/net/tun, /dev/urandom, /dev/userfaultfd, /dev/null. It is an error if the host lacks one.
	Devices []string
	// BootClockOffset is how far the process's clock since boot is ahead of the host's; 0: not at all.
	BootClockOffset time.Duration
	// Syscalls are the system calls that the process may make. It includes those that start a process.
	// If it is nil, calls are denied that mainly serve attacks.
	Syscalls *seccomp.Policy
	// Netns is the network namespace of the process. If it is nil, the process gets a new, empty one.
	Netns *os.File
}

// Bind is a file or directory of the host under a path inside the jail. Owner and mode decide about
// access as usual. Device nodes in it cannot be opened.
type Bind struct {
	Path   string // on the host
	Target string // inside; absolute and clean
	Write  bool   // false: read-only, regardless of the mode
}
