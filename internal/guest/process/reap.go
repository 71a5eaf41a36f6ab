package process

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// status describes how a child ended.
type status struct {
	wait unix.WaitStatus
	cpu  time.Duration
}

// Reaper starts children and collects them. Its lock orders forks, reaping and signals, so that a signal never
// reaches a process that reuses the PID of a collected one.
type Reaper struct {
	orphans bool

	mu       sync.Mutex
	children map[int]func(status) // guarded by mu
	started  chan struct{}        // holds a token when a child was started
	wg       sync.WaitGroup
}

// NewReaper returns a reaper.
//
// With orphans it collects every child of this program, including those it did not start, as the first process must.
// Run must then be running, and no other code may wait for children.
func NewReaper(orphans bool) *Reaper {
	return &Reaper{orphans: orphans, children: make(map[int]func(status)), started: make(chan struct{}, 1)}
}

// start makes a child with fork, and calls ended once when the child has ended.
func (r *Reaper) start(fork func() (int, error), ended func(status)) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := fork()
	if err != nil {
		return 0, err
	}
	r.children[pid] = ended
	if r.orphans {
		select {
		case r.started <- struct{}{}:
		default:
		}
		return pid, nil
	}
	r.wg.Go(func() { _ = r.collect(unix.P_PID, pid) }) // fails if another waiter collected the child
	return pid, nil
}

// Run collects children until an error occurs. It is for a reaper of orphans.
//
// It yields before each wait. A wait for children occupies a processor until the runtime takes it away, which the
// runtime does only when it polls; the goroutine that reports the exit would wait as long.
func (r *Reaper) Run() error {
	for {
		runtime.Gosched()
		err := r.collect(unix.P_ALL, 0)
		if errors.Is(err, unix.ECHILD) {
			<-r.started
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for children: %w", err)
		}
	}
}

// collect waits until a child has ended, and collects it with all others that have ended.
func (r *Reaper) collect(kind, id int) error {
	pid, err := peekChild(kind, id)
	for err == unix.EINTR {
		pid, err = peekChild(kind, id)
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	var ws unix.WaitStatus
	var ru unix.Rusage
	got, err := unix.Wait4(pid, &ws, unix.WNOHANG, &ru)
	ended := r.children[pid]
	if got == pid {
		delete(r.children, pid)
	}
	r.mu.Unlock()
	if err != nil {
		return err
	}
	if ended != nil && got == pid {
		ended(status{ws, time.Duration(ru.Utime.Nano() + ru.Stime.Nano())})
	}
	return nil
}

// signal sends a signal to a child that was not collected yet, or to its group. It returns ESRCH if the child was
// collected.
func (r *Reaper) signal(pid int, sig unix.Signal, group bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.children[pid]; !ok {
		return unix.ESRCH
	}
	if group {
		return unix.Kill(-pid, sig)
	}
	return unix.Kill(pid, sig)
}

// maxOutput bounds the result of Output, in bytes.
const maxOutput = 16 << 10

// Output runs a program of the machine itself, outside the workload.
// It returns the end of what the program printed and its exit code, or 128 and the number of the signal that ended it.
func (r *Reaper) Output(argv []string) (output string, code int, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return "", 0, err
	}
	defer read.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return "", 0, errors.Join(err, write.Close())
	}
	exited := make(chan status, 1)
	attr := &syscall.ProcAttr{
		Dir: "/", Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C"},
		Files: []uintptr{null.Fd(), write.Fd(), write.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	}
	_, err = r.start(
		func() (int, error) { return syscall.ForkExec(argv[0], argv, attr) },
		func(s status) { exited <- s },
	)
	if err = errors.Join(err, write.Close(), null.Close()); err != nil {
		return "", 0, fmt.Errorf("run %s: %w", argv[0], err)
	}
	var all []byte
	part := make([]byte, 4<<10)
	for {
		n, err := read.Read(part)
		all = append(all, part[:n]...)
		all = all[max(0, len(all)-maxOutput):]
		if err != nil { // io.EOF: the program has ended, or closed its output
			break
		}
	}
	s := <-exited
	if s.wait.Signaled() {
		return string(all), 128 + int(s.wait.Signal()), nil
	}
	return string(all), s.wait.ExitStatus(), nil
}
