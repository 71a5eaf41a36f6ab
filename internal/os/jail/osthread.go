package jail

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// onNewThread runs do on an OS thread that exits afterwards. do may therefore change the attributes
// of its thread: namespaces, root directory, user, seccomp filter. The Go runtime does not create
// other threads from it.
func onNewThread(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread with its goroutine
		if unix.Gettid() == unix.Getpid() {
			// The main thread cannot end, and it is the one that other processes see. While it is
			// locked here, the new goroutine cannot run on it.
			done <- onNewThread(do)
			runtime.UnlockOSThread()
			return
		}
		done <- do()
	}()
	return <-done
}
