package process

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// status is how a child ended.
type status struct {
	wait unix.WaitStatus
	cpu  time.Duration
}

// Reaper starts children and collects them. Its lock orders fork, reaping and signals, so that a signal
// never reaches a process that took the number of one that has gone.
type Reaper struct {
	orphans bool

	mu       sync.Mutex
	children map[int]func(status) // guarded by mu
	started  chan struct{}        // holds a token when there is a new child
	wg       sync.WaitGroup
}

// NewReaper returns a reaper. With orphans it collects every child of this program, also those that it
// did not start, as the first process must: then Run must run, and nothing else may wait for children.
func NewReaper(orphans bool) *Reaper {
	return &Reaper{orphans: orphans, children: make(map[int]func(status)), started: make(chan struct{}, 1)}
}

// start has fork make a child, and calls ended once when it has ended.
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
	r.wg.Go(func() { _ = r.collect(unix.P_PID, pid) }) // no such child: somebody else took it
	return pid, nil
}

// Run collects children until it cannot any more. It is for a reaper of orphans.
//
// It lets everybody else go first each time: to wait for children keeps a processor from the runtime until that
// takes it away, which it finds out by looking, and whoever is to tell of the exit would wait as long.
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

// collect waits until a child has ended, and takes it with all that have ended too.
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

// signal sends to a child that was not yet collected, or to its group. ESRCH if it was.
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
