package vmm

import (
	"syscall"

	"github.com/pandastack/pandastack/internal/os/jail"
)

// Jail starts processes that can access nothing of the host except what a jail.Spec names.
type Jail interface {
	// Start starts spec's program with argv (argv[0] is the program's name) and returns its process
	// ID on the host. Of attr it uses Env, Files (everything that the process inherits), Dir (a path
	// inside) and of Sys the fields Credential, Setsid and PidFD. If Start fails, no process is left.
	// Start can be used as proc.Command.Fork.
	Start(spec jail.Spec, argv []string, attr *syscall.ProcAttr) (pid int, err error)
}

var _ Jail = (*jail.Cgroup)(nil)
