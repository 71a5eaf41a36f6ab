package proc

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// EnterClock has the programs that the calling thread runs from now on count time since the boot of the host
// (CLOCK_MONOTONIC, CLOCK_BOOTTIME) from a moment that lies further back by so much, or, below 0, less far, but not
// after now: see time_namespaces(7). The thread is locked, and ends with its work. It needs a kernel that has such namespaces
// and enters them when a program is run.
func EnterClock(ahead time.Duration) error {
	if err := unix.Unshare(unix.CLONE_NEWTIME); err != nil {
		return fmt.Errorf("namespace of clocks: %w", err)
	}
	seconds := ahead / time.Second
	if ahead%time.Second > 0 {
		seconds++
	}
	offsets := fmt.Sprintf("monotonic %d 0\nboottime %d 0\n", seconds, seconds)
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/timens_offsets", unix.Gettid()), []byte(offsets), 0); err != nil {
		return fmt.Errorf("namespace of clocks: %w", err)
	}
	return nil
}

// ForkAhead answers what makes a process as syscall.ForkExec does, after EnterClock. It is fit for Command.Fork.
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
	runtime.LockOSThread() // for ever: with the thread goes the namespace
	if unix.Gettid() == unix.Getpid() {
		// The first thread never ends. Held here, it cannot be the next one's.
		inner := make(chan struct{})
		go forkAhead(ahead, path, argv, attr, pid, err, inner)
		<-inner
		runtime.UnlockOSThread()
	} else if *err = EnterClock(ahead); *err == nil {
		*pid, *err = syscall.ForkExec(path, argv, attr)
	}
	close(done)
}
