package vmm

import (
	"os"
	"syscall"
	"time"
)

// Jail makes processes that see and reach nothing of the host but what a Cell gives them.
type Jail interface {
	// Start makes a process of cell's program with argv (argv[0] is the program's name), and answers its id
	// on the host. Of attr it uses Env, Files (all that the process inherits), Dir (a path inside) and of Sys
	// Credential, Setsid and PidFD. The process is killed again when Start fails. It is fit for
	// proc.Command.Fork.
	Start(cell JailSpec, argv []string, attr *syscall.ProcAttr) (pid int, err error)
}

// JailSpec is what a process in a jail is given. Its root directory is read-only and holds nothing else. Its
// namespaces (mount, pid, ipc, uts, net) are its own; it is process 1 of its own. There is no /proc.
type JailSpec struct {
	// Program is an ELF executable of the host, found inside at the same path, as are the libraries that it
	// is linked with. All cells of one Program and Data share one copy of them.
	Program string
	// Data are more files and directories of the host that the program reads, inside at the same paths.
	// Libraries of the shared objects among them come along. What does not exist is left out.
	Data []string
	// Binds are the machine's own files and directories.
	Binds []Bind
	// Devices are usable inside at the same paths by everybody: /dev/kvm, /dev/net/tun, /dev/urandom,
	// /dev/userfaultfd, /dev/null. What the host does not have is an error.
	Devices []string
	// BootClockOffset is how much longer than it has the host seems to have run by the clock of the process; 0: nothing.
	BootClockOffset time.Duration
	// Netns is a network namespace to be in; nil: one of its own that holds nothing.
	Netns *os.File
}

// Bind is a file or directory of the host under a path inside. Access is decided by its owner and mode as
// everywhere; device nodes in it cannot be opened.
type Bind struct {
	Path   string // on the host
	Target string // inside; absolute and clean
	Write  bool   // false: read-only, whatever the mode says
}
