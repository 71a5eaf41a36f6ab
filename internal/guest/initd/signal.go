package initd

import (
	"os"
	"os/signal"
	"slices"

	"golang.org/x/sys/unix"
)

// Signals takes away what root in the machine could end its first process by. The kernel spares such a
// process signals that it left at their default action, but not while its first thread blocks them, as
// the runtime does for moments (kernel/signal.c, sig_ignored and complete_signal). So they are ignored.
// Programs begin with the default actions all the same: the runtime sets those back for every signal that
// it once had a handler for.
//
// Signals that do nothing by default, or stop, which the first process never does, get their default
// action; so does that of children, since ignoring it would lose their exits. Faults keep their handlers,
// which turn them into panics; those that others send are received, and dropped.
//
// The runtime cannot interrupt loops by signals any more; none here runs long.
func Signals() error {
	faults := []os.Signal{unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP}
	signal.Notify(make(chan os.Signal, 1), faults...) // a full channel drops what comes
	harmless := []unix.Signal{
		unix.SIGCHLD,
		unix.SIGCONT,
		unix.SIGURG,
		unix.SIGWINCH,
		unix.SIGTSTP,
		unix.SIGTTIN,
		unix.SIGTTOU,
	}
	for s := unix.Signal(1); s <= 64; s++ {
		if s == unix.SIGKILL || s == unix.SIGSTOP || slices.Contains(faults, os.Signal(s)) {
			continue
		}
		act := actionIgnore
		if slices.Contains(harmless, s) {
			act = actionDefault
		}
		if err := setAction(s, act); err != nil {
			return err
		}
	}
	return nil
}
