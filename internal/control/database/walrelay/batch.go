package walrelay

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/replication"
	"github.com/pandastack/pandastack/internal/control/database/wal"
)

const (
	// batchBytes bounds what is written before a sync.
	batchBytes = 4 << 20
	// syncDelay is how long a relay that is not synchronous waits for more before a sync. A sync after every commit
	// makes a busy server on the same disk half as fast.
	syncDelay = 200 * time.Millisecond
)

// source is a stream of the log.
type source interface {
	Next() (replication.Message, error)
	Buffered() bool
	Acknowledge(received, flushed wal.LSN, now time.Time) error
}

// receive writes a stream to the spool, until it ends.
func (r *Relay) receive(stream source, at position) (err error) {
	if err := r.beginSegment(at.timeline, at.at); err != nil {
		return err
	}
	b := &batch{r: r, stream: stream}
	defer func() { err = errors.Join(err, b.end()) }()
	for {
		m, err := stream.Next()
		if err != nil {
			return err
		}
		if err := b.take(m); err != nil {
			return err
		}
	}
}

// sign is what is kept of a message of the server.
type sign struct {
	sent time.Time
	asks bool // it has no data, and asks for an acknowledgement
}

// covers returns the time at which the log ended where a message says, or before; zero if it does not say so. Times of
// messages are read after the end that they name, so the time is that of the message before: the server reads the end
// of its log for each message with data. Without data a message only names what was sent; the server has looked for
// more since the one before if that asked for an acknowledgement, too, which it waits for.
func (b *batch) covers(m replication.Message) time.Time {
	if len(m.Data) > 0 || m.Reply && b.last.asks {
		return b.last.sent
	}
	return time.Time{}
}

// batch is what a stream has sent and what is not yet durable.
type batch struct {
	r      *Relay
	stream source
	fires  sync.WaitGroup // of the timer

	mu      sync.Mutex  // guards the segment that is being received, and what follows
	pending int         // bytes that are not durable
	last    sign        // the message before
	timer   *time.Timer // set while it runs
	err     error       // of an acknowledgement by the timer
}

// take writes a message to the spool. It acknowledges, or leaves that to a later message or to the timer.
func (b *batch) take(m replication.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return b.err
	}
	if len(m.Data) > 0 {
		if got := b.r.spool.received(); m.Start != got {
			return fmt.Errorf("the server sent the log at %v, want %v", m.Start, got)
		}
		if err := b.r.take(m.Data); err != nil {
			return err
		}
		b.pending += len(m.Data)
	}
	b.r.observe(m.ServerEnd, b.covers(m))
	b.last = sign{m.Sent, m.Reply && len(m.Data) == 0}
	switch {
	case b.pending >= batchBytes, m.Reply:
		return b.acknowledge()
	case b.pending == 0, b.r.cfg.Synchronous && b.stream.Buffered():
		return nil
	case b.r.cfg.Synchronous:
		return b.acknowledge()
	case b.timer == nil:
		b.fires.Add(1)
		b.timer = time.AfterFunc(syncDelay, b.fire)
	}
	return nil
}

// fire acknowledges what is pending.
func (b *batch) fire() {
	defer b.fires.Done()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer = nil
	if b.pending > 0 && b.err == nil {
		b.err = b.acknowledge()
	}
}

// acknowledge makes durable what was received and says so to the server.
func (b *batch) acknowledge() error {
	if err := b.sync(); err != nil {
		return err
	}
	received := b.r.spool.received()
	return b.stream.Acknowledge(received, received, b.r.cfg.Now())
}

// sync makes durable what was received.
func (b *batch) sync() error {
	if err := b.r.spool.sync(); err != nil {
		return err
	}
	b.pending = 0
	received := b.r.spool.received()
	covered := b.r.covered(received).At
	// While the stream repeats what the spool has, the status stays.
	b.r.update(func(s *Status) {
		s.Flushed, s.Received = max(s.Flushed, received), max(s.Received, received)
		if covered.After(s.Covered) {
			s.Covered = covered
		}
	})
	return nil
}

// end makes durable what is pending, and waits for the timer.
func (b *batch) end() error {
	b.mu.Lock()
	if b.timer != nil && b.timer.Stop() {
		b.fires.Done()
	}
	b.mu.Unlock()
	b.fires.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pending == 0 || b.r.spool.current == nil {
		return nil
	}
	return b.sync()
}
