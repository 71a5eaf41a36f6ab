package lazy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/host/pager"
)

// Lesson is what machines that used a snapshot taught of it.
type Lesson struct {
	Trace []byte // encoded; empty: there is none
	// Bytes is how much of the memory was kept with it: what the trace names first, in that order. 0: nothing.
	Bytes int64
	// Pages gives put all of that which is not zero, with where in it data lies. Put is called by several goroutines at
	// once, and tells whether it keeps data. nil: nothing was kept.
	Pages func(ctx context.Context, put func(off int64, data []byte) (kept bool)) error
}

// maxCarried bounds what is kept of a snapshot's memory with its trace, and what of that waits in this process for
// somebody who takes it. A machine that uses more at once fetches the rest where the snapshot lies.
const maxCarried = 64 << 20

// TraceLimit bounds how long a start may wait for a trace that it could do without.
const TraceLimit = time.Second

// Soon is a Lesson on its way, which may begin to come before anything else is known of its snapshot.
type Soon struct {
	stop  context.CancelFunc
	shape chan shape    // of what it is about; told once
	known chan struct{} // closed when the next four do not change any more
	trace pager.Trace
	rest  pager.Trace   // of the trace: what does not come with the lesson
	bytes int64         // that come with it
	order pager.Carried // of what comes
	ended chan struct{} // closed when no more comes, and the trace is known; then the next does not change any more
	err   error         // why not all of it came

	mu     sync.Mutex
	put    func(off int64, data []byte) // who takes what comes; nil: nobody yet
	waits  []arrival                    // what came before that
	closed bool                         // nobody will
}

// shape is the memory that a lesson is about.
type shape struct {
	file string
	size int64
}

// arrival is a part of what comes, by where in it that lies.
type arrival struct {
	off  int64
	data []byte
}

// Learn begins to load what is known of a snapshot that is to be begun, with the memory that was kept. It is given to
// Begin, or closed. What comes waits in memory for whoever takes it.
func (m *Manager) Learn(load func(context.Context) (Lesson, error)) *Soon {
	ctx, cancel := context.WithCancel(m.ctx)
	l := &Soon{stop: cancel, shape: make(chan shape, 1), known: make(chan struct{}), ended: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		cancel()
		close(l.known)
		close(l.ended)
		return l
	}
	m.work.Go(func() {
		defer cancel()
		defer close(l.ended)
		of, err := load(ctx)
		if err == nil && len(of.Trace) > 0 {
			l.trace, err = pager.DecodeTrace(of.Trace)
		}
		if err != nil && ctx.Err() == nil {
			m.cfg.Log.Warn("trace of a snapshot not used", "err", err)
		}
		if l.trace == nil || of.Bytes > maxCarried {
			of.Pages = nil
		}
		came := make(chan error, 1)
		if of.Pages != nil {
			go func() { came <- of.Pages(ctx, l.arrived) }()
		} else {
			came <- nil
		}
		l.fit(ctx, of.Bytes, of.Pages != nil)
		if l.err = <-came; l.err != nil && ctx.Err() == nil {
			m.cfg.Log.Warn("what machines use first did not come in one piece", "err", l.err)
		}
	})
	return l
}

// fit holds what comes against the memory it is of.
func (l *Soon) fit(ctx context.Context, bytes int64, comes bool) {
	defer close(l.known)
	l.rest = l.trace
	if !comes {
		return
	}
	select {
	case of := <-l.shape:
		if order, rest := l.trace.Carry(of.file, of.size, bytes); order.Bytes() == bytes {
			l.order, l.rest, l.bytes = order, rest, bytes
			return
		}
	case <-ctx.Done():
	}
	l.Close()
}

// arrived gives on what came, or keeps it until somebody takes it.
func (l *Soon) arrived(off int64, data []byte) (kept bool) {
	l.mu.Lock()
	put := l.put
	if kept = put == nil && !l.closed; kept {
		l.waits = append(l.waits, arrival{off, data})
	}
	l.mu.Unlock()
	if put != nil {
		l.order.Place(off, data, put)
	}
	return kept
}

// bring gives put what comes with the lesson, until all of it came or ctx ends, and answers what of the trace does
// not come so. Only the first who asks gets it; with a nil put nobody does.
func (l *Soon) bring(ctx context.Context, put func(off int64, data []byte)) pager.Trace {
	if _, err := l.await(ctx); err != nil {
		return nil
	}
	if put == nil {
		l.Close()
		return l.trace
	}
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
		l.order.Place(a.off, a.data, put)
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

// Close ends what still comes and frees what nobody took.
func (l *Soon) Close() {
	l.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed, l.waits = true, nil
}

// about says what memory the lesson is of, before anybody waits for it.
func (l *Soon) about(file string, size int64) { l.shape <- shape{file, size} }

// await waits for the trace.
func (l *Soon) await(ctx context.Context) (pager.Trace, error) {
	select {
	case <-l.known:
		return l.trace, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// remembered finds what is known: from path, a file beside the snapshot, else from where all hosts keep it.
func (m *Manager) remembered(origin []byte, path string) func(context.Context) (Lesson, error) {
	return func(ctx context.Context) (Lesson, error) {
		ctx, cancel := context.WithTimeout(ctx, TraceLimit)
		defer cancel()
		data, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) && m.cfg.Traces != nil {
			return m.cfg.Traces.Load(ctx, origin)
		}
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return Lesson{Trace: data}, err
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
