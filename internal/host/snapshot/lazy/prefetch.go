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

// Prefetch is what earlier machines on a snapshot used first: a trace, and perhaps its working set.
type Prefetch struct {
	Trace []byte // encoded; empty if there is none
	// Bytes is the size of the stored working set: the first ranges of the trace in the memory, in order. 0
	// if none is stored.
	Bytes int64
	// Pages passes all of the working set that is not zero to put, with the offset of data in the working
	// set. It calls put concurrently; put reports whether it keeps data. Pages is nil if no working set is
	// stored.
	Pages func(ctx context.Context, put func(off int64, data []byte) (kept bool)) error
}

// maxWorkingSet bounds the part of a snapshot's memory that is stored with its trace, and how much of it this
// process holds until a machine uses it. A machine that uses more at once reads the rest from the source.
const maxWorkingSet = 64 << 20

// TraceTimeout bounds how long a start waits for a trace, which is only a hint.
const TraceTimeout = time.Second

// PrefetchLoader loads a Prefetch. It may start before anything else is known about the snapshot.
type PrefetchLoader struct {
	stop   context.CancelFunc
	memory chan memoryFile // the memory that the prefetch is for; sent once
	loaded chan struct{}   // closed when the next four fields are final
	trace  pager.Trace
	rest   pager.Trace      // the part of the trace that the working set does not contain
	bytes  int64            // size of the working set
	set    pager.WorkingSet // which memory it is
	done   chan struct{}    // closed when no more content arrives and the trace is known; then err is final
	err    error            // why the working set is incomplete

	mu      sync.Mutex
	sink    func(off int64, data []byte) // receives the working set; nil until deliver sets it
	pending []piece                      // arrived before sink was set
	closed  bool                         // the working set is not needed any more
}

// memoryFile is the memory that a prefetch is for.
type memoryFile struct {
	file string
	size int64
}

// piece is a part of the working set, at an offset in it.
type piece struct {
	off  int64
	data []byte
}

// LoadPrefetch starts to load the trace and working set of a snapshot that is to be imported. Pass the loader
// to Import, or close it. Content that arrives stays in memory until a machine uses it.
func (m *Manager) LoadPrefetch(load func(context.Context) (Prefetch, error)) *PrefetchLoader {
	ctx, cancel := context.WithCancel(m.ctx)
	l := &PrefetchLoader{
		stop:   cancel,
		memory: make(chan memoryFile, 1),
		loaded: make(chan struct{}),
		done:   make(chan struct{}),
	}
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
		arrived := make(chan error, 1)
		if of.Pages != nil {
			go func() { arrived <- of.Pages(ctx, l.receive) }()
		} else {
			arrived <- nil
		}
		l.split(ctx, of.Bytes, of.Pages != nil)
		if l.err = <-arrived; l.err != nil && ctx.Err() == nil {
			m.cfg.Log.Warn("working set of a snapshot incomplete", "err", l.err)
		}
	})
	return l
}

// split divides the trace into the working set and the rest once the size of the memory is known.
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

// receive forwards a piece to the sink, or keeps it until there is one.
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

// deliver passes the working set to put until all of it has arrived or ctx ends. It returns the part of the
// trace that the working set does not contain. Only the first caller gets the working set; a nil put discards
// it.
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
	pending := l.pending
	l.pending = nil
	l.mu.Unlock()
	for _, a := range pending {
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

// Close stops loading and frees the content that was not used.
func (l *PrefetchLoader) Close() {
	l.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed, l.pending = true, nil
}

// setMemory says which memory the prefetch is for. It is called once, before any other method waits.
func (l *PrefetchLoader) setMemory(file string, size int64) { l.memory <- memoryFile{file, size} }

// waitLoaded waits for the trace and returns it.
func (l *PrefetchLoader) waitLoaded(ctx context.Context) (pager.Trace, error) {
	select {
	case <-l.loaded:
		return l.trace, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// traceLoader returns a function that loads the trace from path, a file in the snapshot's directory, or else
// from the shared store.
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

// workingSet returns the working set of a trace as an unnamed file, or nil if it is empty.
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
		return nil, fmt.Errorf("save working set: %w", err)
	}
	pages = os.NewFile(uintptr(fd), "pages")
	if err := i.memory.WriteWorkingSet(i.m.ctx, c, pages); err != nil {
		return nil, errors.Join(fmt.Errorf("save working set: %w", err), pages.Close())
	}
	return pages, nil
}
