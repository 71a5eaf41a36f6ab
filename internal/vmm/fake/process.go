package fake

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// process is a program of a guest as data: all that a copy needs to continue it. The guest's mu guards it.
type process struct {
	PID     uint32
	Spec    guestapi.ProcessSpec
	Started time.Time
	Vars    map[string]string
	Dir     string
	Script  []statement
	At      int           // next statement
	Last    int           // status of the last one
	Left    time.Duration // of the current sleep
	Limit   time.Duration // of the whole process, 0: none
	Output  []output
	Offsets guestapi.Offsets
	Input   []byte
	NoInput bool // standard input has ended
	Signal  int  // that ends it
	Exit    *guestapi.Exit

	until, deadline time.Time // Left and Limit as moments, while it runs
	armed           time.Time // moment that a timer is set for
}

type output struct {
	Stream guestapi.Stream
	Offset int64
	Data   []byte
}

// copy returns a copy of the process. The caller holds mu.
func (p *process) copy() *process {
	c := *p
	c.Vars = maps.Clone(p.Vars)
	c.Output = slices.Clone(p.Output)
	c.Input = slices.Clone(p.Input)
	if !p.until.IsZero() {
		c.Left = max(time.Until(p.until), time.Nanosecond)
	}
	if !p.deadline.IsZero() {
		c.Limit = max(time.Until(p.deadline), time.Nanosecond)
	}
	c.until, c.deadline, c.armed = time.Time{}, time.Time{}, time.Time{}
	return &c
}

// startProcess starts the goroutine of p. The caller holds mu.
func (w *guestState) startProcess(p *process) {
	if p.Limit > 0 {
		p.deadline = time.Now().Add(p.Limit)
	}
	if p.Left > 0 {
		p.until = time.Now().Add(p.Left)
	}
	w.wg.Add(1)
	go w.runProcess(p)
}

func (w *guestState) runProcess(p *process) {
	defer w.wg.Done()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !p.deadline.IsZero() {
		defer w.wake(p.deadline)()
	}
	sh := shell{w, p}
	for p.Exit == nil && !w.dead {
		if w.paused || w.frozen {
			w.cond.Wait()
			continue
		}
		switch {
		case p.Signal != 0:
			p.Exit = &guestapi.Exit{Code: 128 + p.Signal, Signal: p.Signal}
		case !p.deadline.IsZero() && !time.Now().Before(p.deadline):
			p.Exit = &guestapi.Exit{Code: 137, Signal: 9, TimedOut: true}
		case p.At >= len(p.Script):
			p.Exit = &guestapi.Exit{Code: p.Last}
		case !sh.step():
			w.cond.Wait()
			continue
		}
		w.cond.Broadcast()
	}
	if p.Exit != nil {
		p.Exit.Wall = time.Since(p.Started)
	}
	w.cond.Broadcast()
}

// wake broadcasts at a moment; calling the result stops it.
func (w *guestState) wake(at time.Time) func() {
	timer := time.AfterFunc(time.Until(at), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.cond.Broadcast()
	})
	return func() { timer.Stop() }
}

// print appends output. The caller holds mu.
func (p *process) print(to guestapi.Stream, text string) {
	if text == "" {
		return
	}
	if p.Spec.PTY != nil {
		to = guestapi.StreamPTY
	}
	at := p.offset(to)
	p.Output = append(p.Output, output{to, *at, []byte(text)})
	*at += int64(len(text))
}

func (p *process) offset(of guestapi.Stream) *int64 {
	switch of {
	case guestapi.StreamStderr:
		return &p.Offsets.Stderr
	case guestapi.StreamPTY:
		return &p.Offsets.PTY
	}
	return &p.Offsets.Stdout
}

// Start implements guestapi.Guest.
func (w *guestState) Start(ctx context.Context, spec guestapi.ProcessSpec) (out guestapi.Process, _ error) {
	err := w.do(ctx, func() error {
		if (len(spec.Argv) == 0) == (spec.Shell == "") {
			return fmt.Errorf("%w: exactly one of argv and shell", guestapi.ErrInvalid)
		}
		if len(spec.Argv) > 0 && !slices.Contains(programs, path.Base(spec.Argv[0])) {
			return fmt.Errorf("program %q: %w", spec.Argv[0], guestapi.ErrNotFound)
		}
		if spec.Dir != "" {
			if f, err := w.lookup(w.abs(spec.Dir, spec.User)); err != nil || !f.Dir {
				return fmt.Errorf("working directory %q: %w", spec.Dir, guestapi.ErrNotFound)
			}
		}
		if spec.Tag != "" {
			if old, err := w.find(guestapi.ProcessRef{Tag: spec.Tag}); err == nil && old.Exit == nil {
				return fmt.Errorf("tag %s: %w", spec.Tag, guestapi.ErrExists)
			}
		}
		p := &process{
			PID: w.NextPID, Spec: spec, Started: time.Now(), Vars: maps.Clone(w.Env), Limit: spec.Timeout,
			Dir: w.abs(cmp.Or(spec.Dir, "."), spec.User), NoInput: !spec.Stdin && spec.PTY == nil,
		}
		p.Vars["HOME"], p.Vars["USER"] = w.home(spec.User), w.owner(spec.User)
		maps.Copy(p.Vars, spec.Env)
		if spec.Shell != "" {
			p.Script = parse(spec.Shell)
		} else {
			p.Script = []statement{{Words: literal(spec.Argv)}}
		}
		w.NextPID++
		w.Procs[p.PID] = p
		w.startProcess(p)
		out = &stream{w: w, p: p}
		return nil
	})
	return out, err
}

// find returns the process of a reference. The caller holds mu.
func (w *guestState) find(ref guestapi.ProcessRef) (*process, error) {
	if ref.Tag == "" {
		if p, ok := w.Procs[ref.PID]; ok {
			return p, nil
		}
		return nil, fmt.Errorf("process %d: %w", ref.PID, guestapi.ErrNotFound)
	}
	var last *process
	for _, pid := range slices.Sorted(mapKeys(w.Procs)) {
		if p := w.Procs[pid]; p.Spec.Tag == ref.Tag {
			last = p
		}
	}
	if last == nil {
		return nil, fmt.Errorf("process %q: %w", ref.Tag, guestapi.ErrNotFound)
	}
	return last, nil
}

// Attach implements guestapi.Guest.
func (w *guestState) Attach(
	ctx context.Context,
	ref guestapi.ProcessRef,
	from guestapi.Offsets,
) (out guestapi.Process, _ error) {
	err := w.do(ctx, func() error {
		p, err := w.find(ref)
		out = &stream{w: w, p: p, from: from}
		return err
	})
	return out, err
}

// Processes implements guestapi.Guest.
func (w *guestState) Processes(ctx context.Context) (out []guestapi.ProcessInfo, _ error) {
	err := w.do(ctx, func() error {
		for _, pid := range slices.Sorted(mapKeys(w.Procs)) {
			p := w.Procs[pid]
			out = append(out, guestapi.ProcessInfo{
				PID: pid, Tag: p.Spec.Tag, Argv: p.Spec.Argv, Shell: p.Spec.Shell, Env: p.Spec.Env, Dir: p.Dir,
				User: w.owner(p.Spec.User), PTY: p.Spec.PTY != nil, Started: p.Started, Exit: p.Exit,
			})
		}
		return nil
	})
	return out, err
}

// Signal implements guestapi.Guest.
func (w *guestState) Signal(ctx context.Context, ref guestapi.ProcessRef, signal int, _ bool) error {
	return w.do(ctx, func() error {
		p, err := w.find(ref)
		if err != nil {
			return err
		}
		if p.Exit != nil || p.Signal != 0 { // every signal ends it
			return fmt.Errorf("process %d: %w", p.PID, guestapi.ErrNotFound)
		}
		if signal != 0 {
			p.Signal = signal
			w.cond.Broadcast()
		}
		return nil
	})
}

// stream follows one process.
type stream struct {
	w    *guestState
	p    *process
	from guestapi.Offsets // offsets of the next output
	next int              // index of the next piece of output
	over bool
}

// PID implements guestapi.Process.
func (s *stream) PID() uint32 { return s.p.PID }

// Next implements guestapi.Process.
func (s *stream) Next(ctx context.Context) (out guestapi.Event, _ error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.over {
		return out, io.EOF
	}
	err := s.w.wait(ctx, func() bool {
		for s.next < len(s.p.Output) {
			o := s.p.Output[s.next]
			s.next++
			skip := s.wanted(o.Stream) - o.Offset
			if skip >= int64(len(o.Data)) {
				continue
			}
			skip = max(0, skip)
			out = guestapi.Event{Stream: o.Stream, Offset: o.Offset + skip, Data: o.Data[skip:]}
			return true
		}
		if s.p.Exit != nil {
			exit := *s.p.Exit
			out, s.over = guestapi.Event{Exit: &exit}, true
		}
		return s.over
	})
	return out, err
}

func (s *stream) wanted(of guestapi.Stream) int64 {
	switch of {
	case guestapi.StreamStderr:
		return s.from.Stderr
	case guestapi.StreamPTY:
		return s.from.PTY
	}
	return s.from.Stdout
}

// Write implements guestapi.Process.
func (s *stream) Write(b []byte) (int, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.p.Exit != nil || s.p.NoInput || s.w.dead {
		return 0, io.ErrClosedPipe
	}
	s.p.Input = append(s.p.Input, b...)
	s.w.cond.Broadcast()
	return len(b), nil
}

// CloseInput implements guestapi.Process.
func (s *stream) CloseInput() error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.p.NoInput = true
	s.w.cond.Broadcast()
	return nil
}

// Resize implements guestapi.Process.
func (s *stream) Resize(ctx context.Context, size guestapi.Size) error {
	return s.w.do(ctx, func() error {
		s.p.Spec.PTY = &size
		return nil
	})
}

// Close implements guestapi.Process.
func (s *stream) Close() error { return nil }

func mapKeys[K comparable, V any](m map[K]V) iter.Seq[K] { return maps.Keys(m) }
