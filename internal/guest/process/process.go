package process

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// Process is a program that runs or ended lately.
//
// Lock order: Table.forks, Table.mu, Process.mu, Reaper.mu.
type Process struct {
	t    *Table
	spec guestapi.ProcessSpec
	dir  string
	user string

	input sync.Mutex // held during a write

	// mu is held from before the process starts until all fields below are set.
	mu      sync.Mutex
	pid     int
	started time.Time
	timer   *time.Timer // nil: no deadline
	outputs []*output
	pty     *os.File // also the input; nil: pipes
	stdin   *os.File // nil: none

	writing   *follower // the follower that writes
	followers map[*follower]struct{}
	ended     *guestapi.Exit // the process ended; more output may follow
	exit      *guestapi.Exit // the process ended and all output was kept
	reaped    bool           // the table no longer lists it as running
	gone      chan struct{}  // closed when left becomes true
	timedOut  bool
}

// slowest returns the lowest offset that some follower has not taken yet. The caller holds mu.
func (p *Process) slowest(stream guestapi.Stream) (at int64, attached bool) {
	for f := range p.followers {
		if off := *offset(&f.at, stream); !attached || off < at {
			at, attached = off, true
		}
	}
	return at, attached
}

// notifyFollowers notifies all followers of news. The caller holds mu.
func (p *Process) notifyFollowers() {
	for f := range p.followers {
		select {
		case f.news <- struct{}{}:
		default:
		}
	}
}

// publishExit publishes the exit once all output was kept. The caller holds mu.
func (p *Process) publishExit() {
	if !p.reaped || p.exit != nil {
		return
	}
	for _, o := range p.outputs {
		if !o.done {
			return
		}
	}
	p.exit = p.ended
	p.notifyFollowers()
}

// onExit is called by the reaper when the process has ended.
func (p *Process) onExit(s status) {
	p.mu.Lock()
	if p.timer != nil {
		p.timer.Stop()
	}
	exit := &guestapi.Exit{Code: s.wait.ExitStatus(), CPU: s.cpu, Wall: time.Since(p.started)}
	if s.wait.Signaled() {
		exit.Signal = int(s.wait.Signal())
		exit.Code = 128 + exit.Signal
	}
	exit.TimedOut = p.timedOut
	exit.OutOfMemory = exit.Signal == int(unix.SIGKILL) && !p.timedOut && outOfMemory(kernelLog, p.pid)
	p.ended = exit
	p.mu.Unlock()
	p.t.ended(p) // a caller that sees the exit may use the tag again
	p.mu.Lock()
	p.reaped = true
	close(p.gone)
	p.publishExit()
	late := p.exit == nil
	p.mu.Unlock()
	if p.stdin != nil && p.pty == nil {
		_ = p.stdin.Close() // ends a Write that waits for a reader
	}
	if late {
		for _, o := range p.outputs {
			// Wakes the output reader, which drains; a closed file is drained already.
			_ = o.file.SetReadDeadline(time.Unix(1, 0))
		}
	}
}

// expire kills the process group at the deadline.
func (p *Process) expire() {
	p.mu.Lock()
	p.timedOut = p.ended == nil
	p.mu.Unlock()
	_ = p.t.cfg.Reaper.signal(p.pid, unix.SIGKILL, true) // fails if the group has ended already
}

func (p *Process) running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended == nil
}

func (p *Process) info() guestapi.ProcessInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	return guestapi.ProcessInfo{
		PID:     uint32(p.pid),
		Tag:     p.spec.Tag,
		Argv:    p.spec.Argv,
		Shell:   p.spec.Shell,
		Env:     p.spec.Env,
		Dir:     p.dir,
		User:    p.user,
		PTY:     p.pty != nil,
		Started: p.started,
		Exit:    p.ended,
	}
}

// offset returns the field of o for stream.
func offset(o *guestapi.Offsets, stream guestapi.Stream) *int64 {
	switch stream {
	case guestapi.StreamStdout:
		return &o.Stdout
	case guestapi.StreamStderr:
		return &o.Stderr
	}
	return &o.PTY
}
