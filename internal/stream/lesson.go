package stream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/pager"
)

// Lesson is what machines that used a snapshot taught of it.
type Lesson struct {
	Trace []byte // encoded; empty: there is none
	// Bytes is how much of the memory was kept with it: what the trace names first, in that order. 0: nothing.
	Bytes int64
	// Pages gives put all of that which is not zero, with where in it data lies. Put is called by several goroutines at
	// once, and may keep data. nil: nothing was kept.
	Pages func(ctx context.Context, put func(off int64, data []byte)) error
}

// maxCarried bounds what is kept of a snapshot's memory with its trace, and what of that waits in this process for
// somebody who takes it. A machine that uses more at once fetches the rest where the snapshot lies.
const maxCarried = 64 << 20

// lesson is a Lesson on its way.
type lesson struct {
	stop  context.CancelFunc
	turn  chan struct{} // closed when content may come
	known chan struct{} // closed when the next three do not change any more
	trace pager.Trace
	rest  pager.Trace   // of the trace: what does not come with the lesson
	bytes int64         // that come with it
	ended chan struct{} // closed when no more comes; then the next does not change any more
	err   error         // why not all of it came

	mu     sync.Mutex
	put    func(off int64, data []byte) // who takes what comes; nil: nobody yet
	waits  []arrival                    // what came before that
	closed bool                         // nobody will
}

type arrival struct {
	off  int64
	data []byte
}

// learn begins to find out what machines will use of a snapshot with the given origin, and brings what is kept with
// that: from path, a file beside the snapshot, else from where all hosts keep it. The memory has a name and a size.
// Content comes from when turn is closed on.
func (m *Manager) learn(origin []byte, path, memory string, size int64) *lesson {
	ctx, cancel := context.WithCancel(m.ctx)
	l := &lesson{stop: cancel, turn: make(chan struct{}), known: make(chan struct{}), ended: make(chan struct{})}
	m.work.Go(func() {
		defer cancel()
		defer close(l.ended)
		of, err := m.lesson(ctx, origin, path)
		if err == nil && len(of.Trace) > 0 {
			l.trace, err = pager.DecodeTrace(of.Trace)
		}
		if err != nil {
			m.cfg.Log.Warn("trace of a snapshot not used", "origin", string(origin), "err", err)
		}
		l.rest = l.trace
		var carried pager.Carried
		if l.trace != nil && of.Pages != nil && of.Bytes <= maxCarried {
			if c, rest := l.trace.Carry(memory, size, of.Bytes); c.Bytes() == of.Bytes {
				carried, l.rest, l.bytes = c, rest, of.Bytes
			}
		}
		close(l.known)
		if l.bytes == 0 {
			return
		}
		select {
		case <-l.turn:
		case <-ctx.Done():
			return
		}
		l.err = of.Pages(ctx, func(off int64, data []byte) { carried.Place(off, data, l.arrived) })
		if l.err != nil && ctx.Err() == nil {
			m.cfg.Log.Warn("what machines use first did not come in one piece", "origin", string(origin), "err", l.err)
		}
	})
	return l
}

// lesson finds what is known.
func (m *Manager) lesson(ctx context.Context, origin []byte, path string) (Lesson, error) {
	ctx, cancel := context.WithTimeout(ctx, traceLimit)
	defer cancel()
	data, err := os.ReadFile(path)
	if err == nil || m.cfg.Traces == nil {
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return Lesson{Trace: data}, err
	}
	if !errors.Is(err, os.ErrNotExist) {
		return Lesson{}, err
	}
	return m.cfg.Traces.Load(ctx, origin)
}

// arrived gives on what came, or keeps it until somebody takes it.
func (l *lesson) arrived(off int64, data []byte) {
	l.mu.Lock()
	put := l.put
	if put == nil && !l.closed {
		l.waits = append(l.waits, arrival{off, data})
	}
	l.mu.Unlock()
	if put != nil {
		put(off, data)
	}
}

// bring gives put what comes with the lesson, until all of it came or ctx ends, and answers what of the trace does
// not come so. Only the first who asks gets it.
func (l *lesson) bring(ctx context.Context, put func(off int64, data []byte)) pager.Trace {
	l.mu.Lock()
	if l.put != nil || l.closed {
		l.mu.Unlock()
		return l.trace
	}
	l.put = put
	waits := l.waits
	l.waits = nil
	l.mu.Unlock()
	for _, a := range waits {
		put(a.off, a.data)
	}
	select {
	case <-l.ended:
	case <-ctx.Done():
		return nil
	}
	if l.err != nil {
		return l.trace
	}
	return l.rest
}

// close ends what still comes and frees what nobody took.
func (l *lesson) close() {
	l.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed, l.waits = true, nil
}

// await waits for the trace.
func (l *lesson) await(ctx context.Context) (pager.Trace, error) {
	select {
	case <-l.known:
		return l.trace, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// carry gives what a trace names first of the memory as a file without a name; nil: that is nothing.
func (i *image) carry(trace pager.Trace) (pages *os.File, err error) {
	size := i.memory.Size()
	name, err := memoryName(i.snap.Manifest)
	if err != nil {
		return nil, err
	}
	c, _ := trace.Carry(name, size, maxCarried)
	if c.Bytes() == 0 {
		return nil, nil
	}
	fd, err := unix.MemfdCreate("pages", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("keep what was used first: %w", err)
	}
	pages = os.NewFile(uintptr(fd), "pages")
	if err := i.memory.Carry(i.m.ctx, c, pages); err != nil {
		return nil, errors.Join(fmt.Errorf("keep what was used first: %w", err), pages.Close())
	}
	return pages, nil
}
