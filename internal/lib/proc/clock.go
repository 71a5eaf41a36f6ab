package proc

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// EnterClock shifts the boot clocks of programs that the calling thread runs from now on.
//
// They see CLOCK_MONOTONIC and CLOCK_BOOTTIME ahead by that duration, or behind if it is negative, but never before
// 0: see time_namespaces(7). The thread is locked, and ends with its work. The kernel must support time namespaces
// and enter them when a program is run.
func EnterClock(ahead time.Duration) error {
	if err := unix.Unshare(unix.CLONE_NEWTIME); err != nil {
		return fmt.Errorf("time namespace: %w", err)
	}
	seconds := ahead / time.Second
	if ahead%time.Second > 0 {
		seconds++
	}
	offsets := fmt.Sprintf("monotonic %d 0\nboottime %d 0\n", seconds, seconds)
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/timens_offsets", unix.Gettid()), []byte(offsets), 0); err != nil {
		return fmt.Errorf("time namespace: %w", err)
	}
	return nil
}

// ForkAhead returns a function that forks like syscall.ForkExec, after EnterClock. It is suitable for Command.Fork.
func ForkAhead(ahead time.Duration) func(path string, argv []string, attr *syscall.ProcAttr) (int, error) {
	return func(path string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
		done := make(chan struct{})
		go forkAhead(ahead, path, argv, attr, &pid, &err, done)
		<-done
		return pid, err
	}
}

// forkAhead runs on a goroutine of its own.
func forkAhead(
	ahead time.Duration,
	path string,
	argv []string,
	attr *syscall.ProcAttr,
	pid *int,
	err *error,
	done chan struct{},
) {
	runtime.LockOSThread() // never unlocked: the namespace ends with the thread
	if unix.Gettid() == unix.Getpid() {
		// The process's first thread never ends. While this goroutine holds it, the inner goroutine runs on another.
		inner := make(chan struct{})
		go forkAhead(ahead, path, argv, attr, pid, err, inner)
		<-inner
		runtime.UnlockOSThread()
	} else if *err = EnterClock(ahead); *err == nil {
		*pid, *err = syscall.ForkExec(path, argv, attr)
	}
	close(done)
}
