package firecracker

import (
	"fmt"

	"github.com/pandastack/pandastack/internal/lib/proc"
)

// exitCodes describes Firecracker's exit codes.
var exitCodes = map[int]string{
	0:   "the guest shut down, rebooted or crashed",
	1:   "an error of Firecracker",
	2:   "an unexpected error of Firecracker",
	148: "a system call that the seccomp filter forbids",
	149: "a bus error: the host has no free huge pages, or the memory file was truncated",
	150: "a segmentation fault",
	151: "a file exceeded its size limit",
	152: "an invalid configuration",
	153: "unknown arguments",
	154: "the processor time limit was exceeded",
	155: "a broken pipe",
	156: "a hang-up",
	157: "an illegal instruction",
}

// describeExit says why a monitor exited on its own.
func describeExit(exit proc.Exit) string {
	if why, ok := exitCodes[exit.Code]; ok && exit.Known && exit.Signal == 0 && !exit.Killed {
		return fmt.Sprintf("Firecracker exited with status %d: %s", exit.Code, why)
	}
	return "Firecracker " + exit.String()
}
