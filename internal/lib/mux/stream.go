package mux

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
)

// Stream carries messages in both directions, in order. One goroutine may send while another receives.
type Stream struct {
	m    *mux
	id   uint32
	done chan struct{} // closed when the stream is dead
	in   chan struct{} // holds a token when a message or the end has arrived
	out  chan struct{} // holds a token when credit has arrived

	// Guarded by m.mu.
	onDead  func(error)
	dead    error // why the stream can no longer send or receive
	queue   [][]byte
	queued  int // cost of the queue and of messages taken but not yet credited
	owed    int // cost of messages taken but not yet credited
	credit  int
	finIn   bool
	finOut  bool
	dropped bool
	meter   Meter // counts the messages in queue; nil: none does
	metered int64 // taken from meter
}

// Meter counts bytes of messages that have arrived and were not received yet. *budget.Account is one.
type Meter interface {
	Take(n int64) error
	Give(n int64)
}

// refusedError says that a meter refused a message.
type refusedError struct{ error }

func newStream(m *mux, id uint32) *Stream {
	return &Stream{m: m, id: id, credit: Window,
		done: make(chan struct{}), in: make(chan struct{}, 1), out: make(chan struct{}, 1)}
}

func cost(message []byte) int { return len(message) + overhead }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// kill marks the stream dead. The caller holds mu, and calls notify after releasing it.
func (st *Stream) kill(why error) {
	if st.dead == nil {
		st.dead = why
		close(st.done)
	}
}

func (st *Stream) notify(why error) {
	st.m.mu.Lock()
	f := st.onDead
	st.onDead = nil
	st.m.mu.Unlock()
	if f != nil {
		f(why)
	}
}

// OnDead registers f, which is called once when the peer resets the stream or the session is lost. If that has
// happened, f is called at once. f must not block. It is not called if this end closes the stream first.
func (st *Stream) OnDead(f func(error)) {
	st.m.mu.Lock()
	why := st.dead
	if why == nil {
		st.onDead = f
	}
	st.m.mu.Unlock()
	if why != nil {
		f(why)
	}
}

func (st *Stream) enqueue(payload []byte, fin bool) error {
	if st.finIn {
		return fmt.Errorf("%w: message on stream %d after its end", ErrLost, st.id)
	}
	if len(payload) > 0 || !fin {
		if st.queued += cost(payload); st.queued > Window {
			return fmt.Errorf("%w: peer sent more than its credit", ErrLost)
		}
		if st.meter != nil {
			if err := st.meter.Take(int64(cost(payload))); err != nil {
				return &refusedError{err}
			}
			st.metered += int64(cost(payload))
		}
		st.queue = append(st.queue, append([]byte(nil), payload...))
	}
	st.finIn = fin
	signal(st.in)
	return nil
}

func (st *Stream) credited(payload []byte) error {
	if len(payload) != 4 {
		return fmt.Errorf("%w: credit of %d bytes length", ErrLost, len(payload))
	}
	n := int(binary.BigEndian.Uint32(payload))
	if n > Window || st.credit+n > Window {
		return fmt.Errorf("%w: peer returned more credit than it received", ErrLost)
	}
	st.credit += n
	signal(st.out)
	return nil
}

// Recv waits for the next message, which the caller owns. After the peer's last message it returns io.EOF. A
// *ResetError or an error that is ErrLost is returned after the messages that had arrived.
func (st *Stream) Recv(ctx context.Context) ([]byte, error) {
	for {
		st.m.mu.Lock()
		if len(st.queue) > 0 {
			return st.pop(), nil
		}
		dead, fin := st.dead, st.finIn
		st.m.mu.Unlock()
		if fin {
			return nil, io.EOF
		}
		if dead != nil {
			return nil, dead
		}
		select {
		case <-st.in:
		case <-st.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// pop takes the first message and releases mu, which the caller holds.
func (st *Stream) pop() []byte {
	message := st.queue[0]
	st.queue[0] = nil
	if st.queue = st.queue[1:]; len(st.queue) == 0 {
		st.queue = nil
	}
	st.release(int64(cost(message)))
	st.owed += cost(message)
	give := false
	if len(st.m.queue) <= MaxQueue {
		give = st.giveCredit()
	} else if st.owed >= Window/2 {
		st.m.owing[st] = true // a peer that does not read gets no more credit than the queue has room for
	}
	st.m.mu.Unlock()
	if give {
		st.m.put()
	}
	return message
}

// giveCredit queues credit for what was received, if it is worth a frame. The caller holds mu.
func (st *Stream) giveCredit() bool {
	if st.owed < Window/2 || st.finIn || st.dead != nil {
		return false
	}
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(st.owed))
	st.m.queueFrame(typeCredit, 0, st.id, b[:])
	st.queued -= st.owed
	st.owed = 0
	return true
}

// release returns n bytes to the meter. The caller holds mu.
func (st *Stream) release(n int64) {
	if n = min(n, st.metered); n > 0 {
		st.metered -= n
		st.meter.Give(n)
	}
}

// Send sends one message. It waits for credit, and copies the message before it returns.
func (st *Stream) Send(ctx context.Context, message []byte) error {
	return st.send(ctx, message, 0, false)
}

// SendFin sends this end's last message. The peer does not receive an empty one as a message.
func (st *Stream) SendFin(ctx context.Context, message []byte) error {
	return st.send(ctx, message, flagFin, false)
}

// SendLast is SendFin, after which this end of the channel is quiet until Release or a new hello.
func (st *Stream) SendLast(ctx context.Context, message []byte) error {
	return st.send(ctx, message, flagFin, true)
}

func (st *Stream) send(ctx context.Context, message []byte, flags byte, last bool) error {
	if len(message) > MaxMessage {
		return errTooLong
	}
	for {
		if err := st.m.waitRoom(ctx, st); err != nil {
			return err
		}
		if st.finOut || st.dropped {
			st.m.mu.Unlock()
			return ErrClosed
		}
		if c := cost(message); flags&flagFin != 0 && len(message) == 0 || c <= st.credit {
			if len(message) > 0 || flags&flagFin == 0 {
				st.credit -= c
			}
			break
		}
		st.m.mu.Unlock()
		select {
		case <-st.out:
		case <-st.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	st.m.queueFrame(typeData, flags, st.id, message)
	st.recordSent(flags, last)
	st.m.mu.Unlock()
	st.m.put()
	return nil
}

// recordSent records the end of this direction and the beginning of quiet. The caller holds mu.
func (st *Stream) recordSent(flags byte, last bool) {
	st.finOut = flags&flagFin != 0
	if last && st.m.holdAt < 0 {
		st.m.holdAt = len(st.m.queue)
	}
}

// Reset ends the stream early and sends the reason to the peer. It does not block. It does nothing if the stream has
// ended in both directions, or was reset before.
func (st *Stream) Reset(code uint16, text string) {
	st.m.mu.Lock()
	if st.dropped {
		st.m.mu.Unlock()
		return
	}
	tell := st.dead == nil && !(st.finIn && st.finOut)
	st.drop()
	if tell {
		b := binary.BigEndian.AppendUint16(nil, code)
		b = append(b, text[:min(len(text), MaxText)]...)
		st.m.queueFrame(typeReset, 0, st.id, b)
	}
	st.m.mu.Unlock()
	if tell {
		st.m.put()
	}
}

// Drop abandons the stream without notice to the peer. Further messages are ignored.
func (st *Stream) Drop() {
	st.m.mu.Lock()
	defer st.m.mu.Unlock()
	st.drop()
}

func (st *Stream) drop() {
	st.dropped = true
	st.onDead = nil
	st.queue = nil
	st.release(st.metered)
	delete(st.m.owing, st)
	st.kill(ErrClosed)
	if st.m.streams[st.id] == st {
		delete(st.m.streams, st.id)
	}
}
