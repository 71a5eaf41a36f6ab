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

// Prefetch is what machines that used a snapshot taught of it.
type Prefetch struct {
	Trace []byte // encoded; empty: there is none
	// Bytes is how much of the memory was kept with it: what the trace names first, in that order. 0: nothing.
	Bytes int64
	// Pages gives put all of that which is not zero, with where in it data lies. Put is called by several goroutines at
	// once, and tells whether it keeps data. nil: nothing was kept.
	Pages func(ctx context.Context, put func(off int64, data []byte) (kept bool)) error
}

// maxWorkingSet bounds what is kept of a snapshot's memory with its trace, and what of that waits in this process for
// somebody who takes it. A machine that uses more at once fetches the rest where the snapshot lies.
const maxWorkingSet = 64 << 20

// TraceTimeout bounds how long a start may wait for a trace that it could do without.
const TraceTimeout = time.Second

// PrefetchLoader is a Lesson on its way, which may begin to come before anything else is known of its snapshot.
type PrefetchLoader struct {
	stop   context.CancelFunc
	memory chan memoryFile // of what it is about; told once
	loaded chan struct{}   // closed when the next four do not change any more
	trace  pager.Trace
	rest   pager.Trace      // of the trace: what does not come with the lesson
	bytes  int64            // that come with it
	set    pager.WorkingSet // of what comes
	done   chan struct{}    // closed when no more comes, and the trace is known; then the next does not change any more
	err    error            // why not all of it came

	mu      sync.Mutex
	sink    func(off int64, data []byte) // who takes what comes; nil: nobody yet
	pending []piece                      // what came before that
	closed  bool                         // nobody will
}

// memoryFile is the memory that a lesson is about.
type memoryFile struct {
	file string
	size int64
}

// piece is a part of what comes, by where in it that lies.
type piece struct {
	off  int64
	data []byte
}

// LoadPrefetch begins to load what is known of a snapshot that is to be begun, with the memory that was kept. It is given to
// Begin, or closed. What comes waits in memory for whoever takes it.
func (m *Manager) LoadPrefetch(load func(context.Context) (Prefetch, error)) *PrefetchLoader {
	ctx, cancel := context.WithCancel(m.ctx)
	l := &PrefetchLoader{stop: cancel, memory: make(chan memoryFile, 1), loaded: make(chan struct{}), done: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		cancel()
		close(l.loaded)
		close(l.done)
		return l
	}
	m.tasks.Go(func() {
		defer cancel()
		defer close(l.done)
		of, err := load(ctx)
		if err == nil && len(of.Trace) > 0 {
			l.trace, err = pager.DecodeTrace(of.Trace)
		}
		if err != nil && ctx.Err() == nil {
			m.cfg.Log.Warn("trace of a snapshot not used", "err", err)
		}
		if l.trace == nil || of.Bytes > maxWorkingSet {
			of.Pages = nil
		}
		came := make(chan error, 1)
		if of.Pages != nil {
			go func() { came <- of.Pages(ctx, l.receive) }()
		} else {
			came <- nil
		}
		l.split(ctx, of.Bytes, of.Pages != nil)
		if l.err = <-came; l.err != nil && ctx.Err() == nil {
			m.cfg.Log.Warn("what machines use first did not come in one piece", "err", l.err)
		}
	})
	return l
}

// split holds what comes against the memory it is of.
func (l *PrefetchLoader) split(ctx context.Context, bytes int64, comes bool) {
	defer close(l.loaded)
	l.rest = l.trace
	if !comes {
		return
	}
	select {
	case of := <-l.memory:
		if order, rest := l.trace.SplitWorkingSet(of.file, of.size, bytes); order.Bytes() == bytes {
			l.set, l.rest, l.bytes = order, rest, bytes
			return
		}
	case <-ctx.Done():
	}
	l.Close()
}

// receive gives on what came, or keeps it until somebody takes it.
func (l *PrefetchLoader) receive(off int64, data []byte) (kept bool) {
	l.mu.Lock()
	put := l.sink
	if kept = put == nil && !l.closed; kept {
		l.pending = append(l.pending, piece{off, data})
	}
	l.mu.Unlock()
	if put != nil {
		l.set.Scatter(off, data, put)
	}
	return kept
}

// deliver gives put what comes with the lesson, until all of it came or ctx ends, and answers what of the trace does
// not come so. Only the first who asks gets it; with a nil put nobody does.
func (l *PrefetchLoader) deliver(ctx context.Context, put func(off int64, data []byte)) pager.Trace {
	if _, err := l.waitLoaded(ctx); err != nil {
		return nil
	}
	if put == nil {
		l.Close()
		return l.trace
	}
	l.mu.Lock()
	if l.sink != nil || l.closed {
		l.mu.Unlock()
		return l.trace
	}
	l.sink = put
	waits := l.pending
	l.pending = nil
	l.mu.Unlock()
	for _, a := range waits {
		l.set.Scatter(a.off, a.data, put)
	}
	select {
	case <-l.done:
	case <-ctx.Done():
		return nil
	}
	if l.err != nil {
		return l.trace
	}
	return l.rest
}

// Close ends what still comes and frees what nobody took.
func (l *PrefetchLoader) Close() {
	l.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed, l.pending = true, nil
}

// setMemory says what memory the lesson is of, before anybody waits for it.
func (l *PrefetchLoader) setMemory(file string, size int64) { l.memory <- memoryFile{file, size} }

// waitLoaded waits for the trace.
func (l *PrefetchLoader) waitLoaded(ctx context.Context) (pager.Trace, error) {
	select {
	case <-l.loaded:
		return l.trace, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// traceLoader finds what is known: from path, a file beside the snapshot, else from where all hosts keep it.
func (m *Manager) traceLoader(origin []byte, path string) func(context.Context) (Prefetch, error) {
	return func(ctx context.Context) (Prefetch, error) {
		ctx, cancel := context.WithTimeout(ctx, TraceTimeout)
		defer cancel()
		data, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) && m.cfg.Prefetches != nil {
			return m.cfg.Prefetches.Load(ctx, origin)
		}
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return Prefetch{Trace: data}, err
	}
}

// workingSet gives what a trace names first of the memory as a file without a name; nil: that is nothing.
func (i *image) workingSet(trace pager.Trace) (pages *os.File, err error) {
	size := i.memory.Size()
	name, err := memoryName(i.snap.Manifest)
	if err != nil {
		return nil, err
	}
	c, _ := trace.SplitWorkingSet(name, size, maxWorkingSet)
	if c.Bytes() == 0 {
		return nil, nil
	}
	fd, err := unix.MemfdCreate("pages", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("keep what was used first: %w", err)
	}
	pages = os.NewFile(uintptr(fd), "pages")
	if err := i.memory.WriteWorkingSet(i.m.ctx, c, pages); err != nil {
		return nil, errors.Join(fmt.Errorf("keep what was used first: %w", err), pages.Close())
	}
	return pages, nil
}
