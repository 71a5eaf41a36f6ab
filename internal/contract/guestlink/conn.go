package guestlink

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/lib/mux"
)

// DialPort implements guestapi.Guest. The connection also has CloseWrite.
func (l *Link) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	st, _, err := l.open(ctx, guestapi.OpDial, guestapi.AppendDial(nil, port))
	if err != nil {
		return nil, err
	}
	return newConn(st, address("guest:"+strconv.Itoa(int(port)))), nil
}

// DialSocket implements guestapi.Guest. The connection also has CloseWrite.
func (l *Link) DialSocket(ctx context.Context, path string) (net.Conn, error) {
	st, _, err := l.open(ctx, guestapi.OpDialSocket, guestapi.AppendDialSocket(nil, path))
	if err != nil {
		return nil, err
	}
	return newConn(st, address("guest:"+path)), nil
}

// conn is a connection to a server in the guest.
type conn struct {
	st      *mux.Stream
	remote  address
	in, out *deadline
	reading sync.Mutex
	content content // guarded by reading
	writing sync.Mutex
}

func newConn(st *mux.Stream, remote address) *conn {
	return &conn{in: newDeadline(), out: newDeadline(), remote: remote, st: st, content: content{st: st}}
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.content.ctx = c.in.context()
	if err := c.content.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.content.Read(b)
	return n, closedError(err)
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for n := 0; n < len(b); {
		ctx := c.out.context()
		if err := ctx.Err(); err != nil {
			return n, err
		}
		part := b[n:min(len(b), n+messageSize)]
		if err := c.st.Send(ctx, part); err != nil {
			return n, closedError(linkError(err))
		}
		n += len(part)
	}
	return len(b), nil
}

func closedError(err error) error {
	if errors.Is(err, mux.ErrClosed) {
		return net.ErrClosed
	}
	return err
}

// CloseWrite ends the direction to the program in the guest.
func (c *conn) CloseWrite() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return closedError(linkError(c.st.SendFin(c.out.context(), nil)))
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.in.stop()
	c.out.stop()
	return cancelStream(c.st, nil)
}

func (c *conn) LocalAddr() net.Addr  { return address("host") }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error {
	c.in.set(t)
	c.out.set(t)
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.set(t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.set(t)
	return nil
}

// address is an end of a connection to a guest: "host", "guest:8000", "guest:/run/socket".
type address string

func (address) Network() string  { return "guest" }
func (a address) String() string { return string(a) }

// deadline is a deadline that can be moved.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer   // nil: no deadline to come
	done  closedContext // closed when the deadline passed; replaced when it is moved afterwards
}

func newDeadline() *deadline { return &deadline{done: make(closedContext)} }

func (l *deadline) set(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil && !l.timer.Stop() {
		<-l.done // the timer has fired and is about to close it
	}
	l.timer = nil
	passed := l.passed()
	if !t.IsZero() && !t.After(time.Now()) {
		if !passed {
			close(l.done)
		}
		return
	}
	if passed {
		l.done = make(closedContext)
	}
	if !t.IsZero() {
		done := l.done
		l.timer = time.AfterFunc(time.Until(t), func() { close(done) })
	}
}

func (l *deadline) passed() bool { return l.done.Err() != nil }

func (l *deadline) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil && !l.timer.Stop() {
		<-l.done
	}
	l.timer = nil
}

// context returns a context that ends when the deadline passes, as set now or moved before it passed.
func (l *deadline) context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.done
}

// closedContext is a context that ends when the channel is closed.
type closedContext chan struct{}

func (u closedContext) Done() <-chan struct{} { return u }

func (u closedContext) Err() error {
	select {
	case <-u:
		return os.ErrDeadlineExceeded
	default:
		return nil
	}
}

func (u closedContext) Deadline() (time.Time, bool) { return time.Time{}, false }
func (u closedContext) Value(any) any               { return nil }
