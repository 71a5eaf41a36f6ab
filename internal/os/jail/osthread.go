package jail

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// onNewThread runs do on a thread that ends with it, so that do may change what a thread has of its own:
// namespaces, root directory, user, filter. New threads of the program come from others.
func onNewThread(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for ever: the runtime ends the thread with its goroutine
		if unix.Gettid() == unix.Getpid() {
			// The first thread never ends, and is what others see as the process. Held here, it cannot be the
			// next one's.
			done <- onNewThread(do)
			runtime.UnlockOSThread()
			return
		}
		done <- do()
	}()
	return <-done
}
