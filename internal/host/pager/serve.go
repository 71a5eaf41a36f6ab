package pager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/os/uffd"
)

// ServeOptions shape how faults are answered. The zero value is right.
type ServeOptions struct {
	// FaultAround is how much is put in place at once around a missing page, in bytes, a power of two; 0: 64 KiB,
	// and more where a monitor goes through its memory in order. A larger one makes fewer faults and takes
	// more memory.
	FaultAround int64
	// Prefetch gives put, at once and from several goroutines, what it has of the file's content itself, and answers what
	// else is to be brought in ahead; nil: nothing is. Put is nil where memory is filled in larger pages than content
	// is kept in.
	Prefetch func(ctx context.Context, put func(off int64, data []byte)) Trace
}

const (
	defaultFaultAround = 64 << 10
	maxFaultAround     = 4 << 20
	// maxStreak is the most that is put ahead of a monitor that goes through its memory in order.
	maxSequential = 512 << 10
	// zeroAround is the same where there are zeros, which cost no memory.
	zeroFaultAround = 256 << 10
	// handshakeLimit is how long a monitor may take to hand its memory over.
	handshakeTimeout = 10 * time.Second
	// fetches bounds what is asked of a source at once for one monitor.
	maxFetches = 64
)

// server answers the faults of one monitor.
type server struct {
	file       *File
	opt        ServeOptions
	fd         *uffd.FD
	regions    []uffd.Region
	waker      *uffd.Waker
	sequential sequential // of the loop

	// installMu is held for reading by whoever fills, from the look at gone until the fill is done, and for
	// writing by the loop while it reads events and notes removals.
	installMu sync.RWMutex
	removed   map[uint64]bits // by region's base: pages that were given back

	mu       sync.Mutex
	fetching map[uint64]bool // addresses of windows that are being fetched
	retry    []uint64        // faults to look at again when events were read
	err      error           // why no more is served
	slots    chan struct{}
	work     sync.WaitGroup
}

// Serve takes a monitor's memory over conn, which it closes, and answers its faults with the content of
// f, until the monitor ends or ctx does: then it returns nil. An error says why faults are not answered any
// more; the monitor stands still from then on and must be ended.
func (f *File) Serve(ctx context.Context, conn *net.UnixConn, opt ServeOptions) (err error) {
	defer func() { err = errors.Join(err, conn.Close()) }()
	limit, cancel := context.WithTimeoutCause(
		ctx,
		handshakeTimeout,
		errors.New("the monitor did not hand its memory over in time"),
	)
	fd, regions, err := uffd.Receive(limit, conn)
	cancel()
	if err != nil && ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("serve memory: %w", err)
	}
	defer func() { err = errors.Join(err, fd.Close()) }()
	s := &server{
		file: f, opt: opt, fd: fd, regions: regions, removed: map[uint64]bits{},
		fetching: map[uint64]bool{}, slots: make(chan struct{}, maxFetches),
	}
	if err := s.check(); err != nil {
		return fmt.Errorf("serve memory: %w", err)
	}
	peer, err := uffd.PeerOf(conn)
	if err != nil {
		return fmt.Errorf("serve memory: %w", err)
	}
	defer func() { err = errors.Join(err, peer.Close()) }()
	if s.waker, err = uffd.NewWaker(); err != nil {
		return fmt.Errorf("serve memory: %w", err)
	}
	defer func() { err = errors.Join(err, s.waker.Close()) }()
	if err := s.run(ctx, peer); err != nil {
		return fmt.Errorf("serve memory: %w", err)
	}
	return nil
}

// check holds the regions against the file.
func (s *server) check() error {
	s.sequential.maxBytes = uint64(s.opt.FaultAround)
	if s.opt.FaultAround == 0 {
		s.opt.FaultAround, s.sequential.maxBytes = defaultFaultAround, maxSequential
	}
	if a := s.opt.FaultAround; a < uffd.Page || a > maxFaultAround || a&(a-1) != 0 {
		return fmt.Errorf("%d bytes around a page are not a power of two from %d to %d", a, uffd.Page, maxFaultAround)
	}
	for _, r := range s.regions {
		if r.Offset+r.Size > uint64(s.file.size) {
			return fmt.Errorf("a region reaches to %d and the image has %d bytes", r.Offset+r.Size, s.file.size)
		}
	}
	return nil
}

// run is Serve with everything made. It returns when all it began has ended.
func (s *server) run(parent context.Context, peer *uffd.Peer) error {
	ctx, cancel := context.WithCancel(parent)
	rung := make(chan struct{})
	stop := context.AfterFunc(parent, func() {
		defer close(rung)
		s.waker.Wake()
	})
	defer s.work.Wait()
	defer cancel()
	defer func() {
		if !stop() { // it rings, and the bell is closed next
			<-rung
		}
	}()
	if s.opt.Prefetch != nil {
		s.work.Go(func() { s.prefetch(ctx) })
	}
	ended := make(chan error, 1)
	go func() { // a thread of its own: it blocks in the kernel for most of its life
		runtime.LockOSThread()
		ended <- s.loop(ctx, peer)
	}()
	return <-ended
}

// spins is how often the loop looks for the next event before it sleeps: whoever was just answered often faults
// again at once, and to be woken takes longer than to answer. In between others may have the processor.
const spins = 16

// loop reads events and answers them, until the monitor is gone or ctx ends.
func (s *server) loop(ctx context.Context, peer *uffd.Peer) error {
	reader := s.fd.Events()
	var events []uffd.Event
	left := 0 // looks before it sleeps
	for {
		again, err := s.pending()
		if err != nil {
			return err
		}
		if left--; left < 0 || len(again) > 0 {
			w, err := s.fd.Wait(s.waker, peer, pollTimeout(again))
			if err != nil {
				return err
			}
			if w.PeerClosed {
				return nil
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if events, err = s.read(reader, events[:0]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if len(events) > 0 {
			left = spins
		} else if left > 0 {
			uffd.Yield()
		}
		for _, at := range again {
			s.fault(ctx, at)
		}
		for _, e := range events {
			if e.Kind == uffd.Fault {
				s.fault(ctx, e.Start)
			}
		}
	}
}

// retryAfter is how long the loop waits for an event where a fill has to be tried again: whoever removes
// memory needs a moment after its event was read.
const retryAfter = time.Millisecond

func pollTimeout(again []uint64) time.Duration {
	if len(again) > 0 {
		return retryAfter
	}
	return -1
}

// pending answers what ended the service, else the faults to look at again.
func (s *server) pending() ([]uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	again := s.retry
	s.retry = nil
	return again, s.err
}

// read reads all events there are and notes removals before any fault is looked at: events may come out of
// order.
func (s *server) read(reader *uffd.Reader, events []uffd.Event) ([]uffd.Event, error) {
	s.installMu.Lock()
	defer s.installMu.Unlock()
	events, err := reader.Read(events)
	for _, e := range events {
		if e.Kind != uffd.Remove && e.Kind != uffd.Unmap {
			continue
		}
		for _, r := range s.regions {
			from, to := max(e.Start, r.Base), min(e.End, r.Base+r.Size)
			for at := from; at < to; at += r.PageSize {
				s.removed[r.Base] = s.removed[r.Base].with(int64((at - r.Base) / r.PageSize))
			}
		}
	}
	return events, err
}

// retryLater has a fault looked at again, or with an error ends the service.
func (s *server) retryLater(at uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.err = errors.Join(s.err, err)
	} else {
		s.retry = append(s.retry, at)
	}
	s.waker.Wake()
}

func (s *server) region(at uint64) (uffd.Region, bool) {
	for _, r := range s.regions {
		if at >= r.Base && at-r.Base < r.Size {
			return r, true
		}
	}
	return uffd.Region{}, false
}
