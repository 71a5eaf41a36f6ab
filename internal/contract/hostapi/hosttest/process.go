package hosttest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// process is one run of the small shell.
type process struct {
	guestapi.ProcessInfo
	g      *guest
	spec   guestapi.ProcessSpec
	serves bool // it is a server; guarded by guest.pmu
	ctx    context.Context
	cancel context.CancelCauseFunc
	stdin  *io.PipeWriter
	input  *io.PipeReader

	serving chan struct{} // closed when it is a server

	mu      sync.Mutex
	changed chan struct{} // closed and replaced on every change
	out     map[guestapi.Stream][]byte
	exit    *guestapi.Exit
}

// killSignal is the cause with which a process ends by a signal.
type killSignal int

func (k killSignal) Error() string { return fmt.Sprintf("signal %d", int(k)) }

// Start implements guestapi.Guest.
func (g *guest) Start(ctx context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	if err := g.alive(ctx); err != nil {
		return nil, err
	}
	return g.launch(ctx, spec)
}

// launch starts a process.
func (g *guest) launch(ctx context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	script := spec.Shell
	if (script == "") == (len(spec.Argv) == 0) {
		return nil, fmt.Errorf("one of a program and a shell command is needed: %w", guestapi.ErrInvalid)
	}
	g.pmu.Lock()
	for _, p := range g.procs {
		if spec.Tag != "" && p.Tag == spec.Tag && !p.ended() {
			g.pmu.Unlock()
			return nil, fmt.Errorf("tag %s: %w", spec.Tag, guestapi.ErrExists)
		}
	}
	g.next++
	p := &process{
		ProcessInfo: guestapi.ProcessInfo{PID: g.next, Tag: spec.Tag, Argv: spec.Argv, Shell: spec.Shell, Env: spec.Env,
			Dir: spec.Dir, User: spec.User, PTY: spec.PTY != nil, Started: time.Now()},
		g: g, spec: spec, changed: make(chan struct{}), out: map[guestapi.Stream][]byte{},
		serving: make(chan struct{}),
	}
	g.procs[p.PID] = p
	g.pmu.Unlock()
	p.input, p.stdin = io.Pipe()
	if !spec.Stdin && spec.PTY == nil {
		_ = p.stdin.Close() // a pipe's Close returns nil
	}
	p.ctx, p.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	go p.run(spec)
	return &follower{p: p}, nil
}

// run runs a process until the shell ends, the process is killed or the guest is lost.
func (p *process) run(spec guestapi.ProcessSpec) {
	defer p.cancel(nil)
	ctx := p.ctx
	if spec.Timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, spec.Timeout, context.DeadlineExceeded)
		defer stop()
	}
	ended := make(chan int, 1)
	go func() {
		sh := &shell{p: p, env: p.environment(), ctx: ctx}
		if spec.Shell != "" {
			ended <- sh.script(spec.Shell)
		} else {
			ended <- sh.command(spec.Argv)
		}
	}()
	exit := guestapi.Exit{}
	select {
	case <-p.g.lost:
		p.cancel(guestapi.ErrLost)
		exit.Code, exit.Signal = 137, 9
	case <-ctx.Done():
		exit.Code, exit.Signal = 137, 9
		if k, ok := context.Cause(ctx).(killSignal); ok {
			exit.Code, exit.Signal = 128+int(k), int(k)
		}
		exit.TimedOut = context.Cause(ctx) == context.DeadlineExceeded
	case exit.Code = <-ended:
	}
	_ = p.input.Close() // frees a shell that waits for input; a pipe's Close returns nil
	exit.Wall = time.Since(p.Started)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.exit = &exit
	p.broadcast()
}

func (p *process) environment() map[string]string {
	p.g.mu.Lock()
	defer p.g.mu.Unlock()
	env := map[string]string{"HOME": p.g.home, "USER": p.g.user, "HOSTNAME": p.g.host, "PATH": "/usr/bin:/bin"}
	maps.Copy(env, p.g.env)
	maps.Copy(env, p.Env)
	return env
}

// broadcast wakes all followers; p.mu is held.
func (p *process) broadcast() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *process) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit != nil
}

func (p *process) print(to guestapi.Stream, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.PTY {
		to, text = guestapi.StreamPTY, strings.ReplaceAll(text, "\n", "\r\n")
	}
	if p.exit == nil {
		p.out[to] = append(p.out[to], text...)
		p.broadcast()
	}
}

// Attach implements guestapi.Guest.
func (g *guest) Attach(ctx context.Context, ref guestapi.ProcessRef, from guestapi.Offsets) (guestapi.Process, error) {
	p, err := g.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	return &follower{p: p, at: map[guestapi.Stream]int{
		guestapi.StreamStdout: int(
			from.Stdout,
		), guestapi.StreamStderr: int(from.Stderr), guestapi.StreamPTY: int(from.PTY)}}, nil
}

func (g *guest) find(ctx context.Context, ref guestapi.ProcessRef) (*process, error) {
	if err := g.alive(ctx); err != nil {
		return nil, err
	}
	g.pmu.Lock()
	defer g.pmu.Unlock()
	if ref.Tag == "" {
		if p, ok := g.procs[ref.PID]; ok {
			return p, nil
		}
	}
	for _, pid := range slices.Backward(slices.Sorted(maps.Keys(g.procs))) {
		if p := g.procs[pid]; ref.Tag != "" && p.Tag == ref.Tag {
			return p, nil
		}
	}
	return nil, fmt.Errorf("process %d %s: %w", ref.PID, ref.Tag, guestapi.ErrNotFound)
}

// Processes implements guestapi.Guest.
func (g *guest) Processes(ctx context.Context) ([]guestapi.ProcessInfo, error) {
	if err := g.alive(ctx); err != nil {
		return nil, err
	}
	g.pmu.Lock()
	defer g.pmu.Unlock()
	all := []guestapi.ProcessInfo{}
	for _, pid := range slices.Sorted(maps.Keys(g.procs)) {
		p := g.procs[pid]
		p.mu.Lock()
		info := p.ProcessInfo
		info.Exit = p.exit
		p.mu.Unlock()
		all = append(all, info)
	}
	return all, nil
}

// Signal implements guestapi.Guest: every signal ends the process.
func (g *guest) Signal(ctx context.Context, ref guestapi.ProcessRef, signal int, group bool) error {
	p, err := g.find(ctx, ref)
	if err != nil {
		return err
	}
	if p.ended() {
		return fmt.Errorf("process %d has ended: %w", p.ProcessInfo.PID, guestapi.ErrNotFound)
	}
	p.cancel(killSignal(signal))
	if signal == int(syscall.SIGKILL) {
		return p.awaitEnd(ctx)
	}
	return nil
}

func (p *process) awaitEnd(ctx context.Context) error {
	for {
		p.mu.Lock()
		exit, changed := p.exit, p.changed
		p.mu.Unlock()
		if exit != nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// follower is one follower of a process.
type follower struct {
	p  *process
	at map[guestapi.Stream]int
	// exitSent: the follower has the exit event.
	exitSent bool
}

// PID implements guestapi.Process.
func (s *follower) PID() uint32 { return s.p.ProcessInfo.PID }

// Next implements guestapi.Process.
func (s *follower) Next(ctx context.Context) (guestapi.Event, error) {
	if s.at == nil {
		s.at = map[guestapi.Stream]int{}
	}
	for {
		s.p.mu.Lock()
		for _, from := range []guestapi.Stream{guestapi.StreamStdout, guestapi.StreamStderr, guestapi.StreamPTY} {
			if at := s.at[from]; at < len(s.p.out[from]) {
				data := slices.Clone(s.p.out[from][at:])
				s.at[from] += len(data)
				s.p.mu.Unlock()
				return guestapi.Event{Stream: from, Offset: int64(at), Data: data}, nil
			}
		}
		exit, changed := s.p.exit, s.p.changed
		s.p.mu.Unlock()
		if exit != nil {
			if s.exitSent {
				return guestapi.Event{}, io.EOF
			}
			s.exitSent = true
			return guestapi.Event{Exit: exit}, nil
		}
		select {
		case <-changed:
		case <-s.p.g.lost:
			return guestapi.Event{}, guestapi.ErrLost
		case <-ctx.Done():
			return guestapi.Event{}, context.Cause(ctx)
		}
	}
}

// Write implements guestapi.Process.
func (s *follower) Write(b []byte) (int, error) { return s.p.stdin.Write(b) }

// CloseInput implements guestapi.Process.
func (s *follower) CloseInput() error { return s.p.stdin.Close() }

// Resize implements guestapi.Process.
func (s *follower) Resize(ctx context.Context, size guestapi.Size) error { return s.p.g.alive(ctx) }

// Close implements guestapi.Process.
func (s *follower) Close() error { return nil }
