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

// ServeOptions control how faults are resolved. The zero value has working defaults.
type ServeOptions struct {
	// FaultAround is how many bytes are installed at once around a missing page, a power of two. The default
	// 0 means 64 KiB, and more for a monitor that touches its memory in order. A larger value causes fewer
	// faults and takes more memory.
	FaultAround int64
	// Prefetch passes the content that it has itself, the working set, to put, concurrently, and returns the
	// trace of the content to read ahead. It may be nil. put is nil if the monitor's pages are larger than
	// the units in which content is kept.
	Prefetch func(ctx context.Context, put func(off int64, data []byte)) Trace
}

const (
	defaultFaultAround = 64 << 10
	maxFaultAround     = 4 << 20
	// maxSequential is the largest window for a monitor that touches its memory in order.
	maxSequential = 512 << 10
	// zeroFaultAround is the window for zeros, which cost no memory.
	zeroFaultAround = 256 << 10
	// handshakeTimeout is how long a monitor may take to hand its memory over.
	handshakeTimeout = 10 * time.Second
	// maxFetches bounds the concurrent requests to a source for one monitor.
	maxFetches = 64
)

// server resolves the faults of one monitor.
type server struct {
	file       *File
	opt        ServeOptions
	fd         *uffd.FD
	regions    []uffd.Region
	waker      *uffd.Waker
	sequential sequential // used by the loop only

	// installMu is held for reading by goroutines that install pages, from the look at removed until the
	// pages are installed. The loop holds it for writing while it reads events and records removals.
	installMu sync.RWMutex
	removed   map[uint64]bits // removed pages, by the region's base

	mu       sync.Mutex
	fetching map[uint64]bool // addresses of windows that are being fetched
	retry    []uint64        // faults to resolve again after reading events
	err      error           // why the service ended
	slots    chan struct{}
	work     sync.WaitGroup
}

// Serve receives a monitor's memory over conn and resolves its faults with the content of f.
//
// It closes conn. It returns nil when the monitor ends or ctx does. After an error faults are not resolved any
// more: the monitor blocks and must be ended.
func (f *File) Serve(ctx context.Context, conn *net.UnixConn, opt ServeOptions) (err error) {
	defer func() { err = errors.Join(err, conn.Close()) }()
	limit, cancel := context.WithTimeoutCause(
		ctx,
		handshakeTimeout,
		errors.New("the monitor did not send its userfaultfd in time"),
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

// check compares the regions with the file.
func (s *server) check() error {
	s.sequential.maxBytes = uint64(s.opt.FaultAround)
	if s.opt.FaultAround == 0 {
		s.opt.FaultAround, s.sequential.maxBytes = defaultFaultAround, maxSequential
	}
	if a := s.opt.FaultAround; a < uffd.Page || a > maxFaultAround || a&(a-1) != 0 {
		return fmt.Errorf("FaultAround of %d bytes is not a power of two from %d to %d", a, uffd.Page, maxFaultAround)
	}
	for _, r := range s.regions {
		if r.Offset+r.Size > uint64(s.file.size) {
			return fmt.Errorf("memory region ends at %d, beyond the image of %d bytes", r.Offset+r.Size, s.file.size)
		}
	}
	return nil
}

// run serves with everything set up. It returns when everything that it started has ended.
func (s *server) run(parent context.Context, peer *uffd.Peer) error {
	ctx, cancel := context.WithCancel(parent)
	woken := make(chan struct{})
	stop := context.AfterFunc(parent, func() {
		defer close(woken)
		s.waker.Wake()
	})
	defer s.work.Wait()
	defer cancel()
	defer func() {
		if !stop() { // the waker is being used and is closed next
			<-woken
		}
	}()
	if s.opt.Prefetch != nil {
		s.work.Go(func() { s.prefetch(ctx) })
	}
	ended := make(chan error, 1)
	go func() { // a thread of its own: it blocks in the kernel most of the time
		runtime.LockOSThread()
		ended <- s.loop(ctx, peer)
	}()
	return <-ended
}

// spins is how often the loop polls for the next event before it sleeps. A thread whose fault was resolved
// often faults again at once, and waking up takes longer than resolving a fault. The loop yields the
// processor between polls.
const spins = 16

// loop reads events and resolves faults, until the monitor or ctx ends.
func (s *server) loop(ctx context.Context, peer *uffd.Peer) error {
	reader := s.fd.Events()
	var events []uffd.Event
	left := 0 // polls before it sleeps
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

// retryAfter is how long the loop waits for an event if an installation must be retried: a thread that
// removes memory continues only some time after its event was read.
const retryAfter = time.Millisecond

func pollTimeout(again []uint64) time.Duration {
	if len(again) > 0 {
		return retryAfter
	}
	return -1
}

// pending returns the error that ended the service, or else the faults to resolve again.
func (s *server) pending() ([]uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	again := s.retry
	s.retry = nil
	return again, s.err
}

// read reads all pending events and records removals before any fault is resolved: events may arrive out of
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

// retryLater schedules a fault to be resolved again, or ends the service with an error.
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
