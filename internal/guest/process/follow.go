package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// follower is a guestapi.Process: one caller's view of a process.
type follower struct {
	p      *Process
	news   chan struct{} // holds a token when there is news
	done   chan struct{} // closed with the follower
	buf    []byte        // used by the goroutine in Next
	exited bool          // Next returned the exit; used by the goroutine in Next

	// Guarded by p.mu.
	at     guestapi.Offsets // offsets of the last output the caller has taken
	next   guestapi.Offsets // offsets of the next output
	closed bool
}

// follow attaches a follower. Output that Next returns counts as taken at the next call of Next.
func (p *Process) follow(from guestapi.Offsets) *follower {
	f := &follower{p: p, news: make(chan struct{}, 1), done: make(chan struct{}), at: from, next: from}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.outputs {
		at := min(*offset(&from, o.stream), o.ring.end)
		*offset(&f.at, o.stream), *offset(&f.next, o.stream) = at, at
	}
	p.followers[f] = struct{}{}
	return f
}

func (f *follower) PID() uint32 { return uint32(f.p.pid) }

func (f *follower) Next(ctx context.Context) (guestapi.Event, error) {
	if f.exited {
		return guestapi.Event{}, io.EOF
	}
	for {
		e, ok := f.look()
		if ok {
			f.exited = e.Exit != nil
			return e, nil
		}
		select {
		case <-f.news:
		case <-f.done:
			return guestapi.Event{}, os.ErrClosed
		case <-ctx.Done():
			return guestapi.Event{}, context.Cause(ctx)
		}
	}
}

// look returns the next event, if there is one.
func (f *follower) look() (guestapi.Event, bool) {
	p := f.p
	p.mu.Lock()
	defer p.mu.Unlock()
	f.at = f.next
	for _, o := range p.outputs {
		if f.buf == nil && o.ring.end > *offset(&f.at, o.stream) {
			f.buf = make([]byte, readSize)
		}
		n, from := o.ring.get(f.buf, *offset(&f.at, o.stream))
		if n > 0 {
			*offset(&f.next, o.stream) = from + int64(n)
			f.consumed()
			return guestapi.Event{Stream: o.stream, Offset: from, Data: f.buf[:n]}, true
		}
	}
	if p.exit != nil {
		return guestapi.Event{Exit: p.exit}, true
	}
	f.consumed()
	return guestapi.Event{}, false
}

// consumed wakes the output readers, since the ring may have room. The caller holds p.mu.
func (f *follower) consumed() {
	for _, o := range f.p.outputs {
		select {
		case o.room <- struct{}{}:
		default:
		}
	}
}

func (f *follower) Write(b []byte) (int, error) {
	p := f.p
	p.input.Lock()
	defer p.input.Unlock()
	file := p.stdin
	if file == nil {
		return 0, fmt.Errorf("%w: process has no input", guestapi.ErrInvalid)
	}
	p.mu.Lock()
	if f.closed {
		p.mu.Unlock()
		return 0, os.ErrClosed
	}
	p.writing = f
	p.mu.Unlock()
	n, err := file.Write(b)
	p.mu.Lock()
	p.writing = nil
	if f.closed {
		_ = file.SetWriteDeadline(time.Time{}) // the deadline set by Close concerns no other writer
	}
	p.mu.Unlock()
	if err != nil {
		return n, fmt.Errorf("write to process: %w", err)
	}
	return n, nil
}

func (f *follower) CloseInput() error {
	p := f.p
	if p.pty != nil {
		_, err := f.Write([]byte{4}) // end of transmission; the terminal turns it into the end of the input
		return err
	}
	p.input.Lock()
	defer p.input.Unlock()
	if p.stdin == nil {
		return nil
	}
	if err := p.stdin.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close input of process: %w", err)
	}
	return nil
}

func (f *follower) Resize(_ context.Context, size guestapi.Size) error {
	if f.p.pty == nil {
		return fmt.Errorf("%w: process has no terminal", guestapi.ErrInvalid)
	}
	if !f.p.running() {
		return fmt.Errorf("process has ended: %w", guestapi.ErrNotFound)
	}
	return setSize(f.p.pty, size)
}

func setSize(pty *os.File, size guestapi.Size) error {
	raw, err := pty.SyscallConn()
	if err != nil {
		return fmt.Errorf("resize terminal: %w", err)
	}
	var ctl error
	err = raw.Control(func(fd uintptr) {
		ctl = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	})
	if err = errors.Join(err, ctl); err != nil {
		return fmt.Errorf("resize terminal: %w", err)
	}
	return nil
}

func (f *follower) Close() error {
	p := f.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	close(f.done)
	delete(p.followers, f)
	f.consumed()
	if p.writing == f {
		_ = p.stdin.SetWriteDeadline(time.Unix(1, 0)) // wakes the writer; it fails only if the file is closed
	}
	return nil
}
