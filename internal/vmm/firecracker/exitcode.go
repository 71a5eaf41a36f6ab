package firecracker

import (
	"fmt"

	"github.com/pandastack/pandastack/internal/lib/proc"
)

// exitCodes describes Firecracker's exit codes.
var exitCodes = map[int]string{
	0:   "the guest shut down, rebooted or crashed",
	1:   "an error of the monitor",
	2:   "an error that the monitor did not expect",
	148: "a system call that its filter forbids",
	149: "a bus error: the huge pages of the host are used up, or the memory file was cut",
	150: "a segmentation fault",
	151: "a file grew over its limit",
	152: "a bad configuration",
	153: "arguments that it does not know",
	154: "its processor time is used up",
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
