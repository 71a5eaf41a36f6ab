package early

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Signals takes away what root in the machine could end its first process by. The kernel drops every
// signal that such a process has no handler for, so all handlers of the runtime are removed but those
// for faults, which turn faults of this program into panics. Faults that others send are received, and
// ignored.
//
// It also removes the handler by which the runtime interrupts loops; none here runs long.
func Signals() error {
	faults := []os.Signal{unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP}
	kept := make(map[unix.Signal]bool)
	for _, s := range faults {
		kept[s.(unix.Signal)] = true
	}
	signal.Notify(make(chan os.Signal, 1), faults...) // a full channel drops what comes
	for s := unix.Signal(1); s <= 64; s++ {
		if s == unix.SIGKILL || s == unix.SIGSTOP || kept[s] {
			continue
		}
		if err := defaultAction(s); err != nil {
			return err
		}
	}
	return nil
}
