package initd

import (
	"os"
	"os/signal"
	"slices"

	"golang.org/x/sys/unix"
)

// IgnoreSignals keeps root in the machine from ending its first process by a signal. The kernel does not deliver
// signals that are at their default action to such a process, except while its first thread blocks them, as the
// runtime does for short moments (kernel/signal.c, sig_ignored and complete_signal). So these signals are ignored.
// Programs still start with the default actions: the runtime resets every signal for which it once had a handler.
//
// Signals whose default action is to do nothing or to stop, which never happens to the first process, keep that
// action. So does SIGCHLD, since ignoring it would lose the exits of children. Faults keep their handlers, which turn
// them into panics; those sent by other processes are received and dropped.
//
// The runtime can no longer preempt loops by signals; no loop here runs long.
func IgnoreSignals() error {
	faults := []os.Signal{unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP}
	signal.Notify(make(chan os.Signal, 1), faults...) // a full channel drops further signals
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
