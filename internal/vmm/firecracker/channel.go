package firecracker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// maxPending bounds what is written before the guest can be reached, in bytes.
const maxPending = 1 << 20

// channel is our end of the guest channel. It can be written to before there is a guest: that is kept and
// sent first. Reading waits until the guest was reached.
type channel struct {
	ctx           context.Context // ends when the channel is closed or the monitor has ended
	end           context.CancelFunc
	ready         chan struct{} // closed when conn is set
	deadlineMoved chan struct{} // told when a deadline was moved

	mu      sync.Mutex
	conn    net.Conn
	pending []byte
	read    time.Time // deadlines until conn is set
	write   time.Time
}

var _ net.Conn = (*channel)(nil)

func newChannel(life context.Context) *channel {
	c := &channel{ready: make(chan struct{}), deadlineMoved: make(chan struct{}, 1)}
	c.ctx, c.end = context.WithCancel(life)
	return c
}

// attach gives the channel its connection, which it closes if it cannot be used. What was written early
// goes first; while it does, more may be written.
func (c *channel) attach(conn net.Conn) error {
	sent := 0
	for {
		c.mu.Lock()
		rest := c.pending[sent:]
		if len(rest) == 0 {
			break
		}
		c.mu.Unlock()
		err := conn.SetWriteDeadline(time.Now().Add(connectTimeout))
		if err == nil {
			_, err = conn.Write(rest)
		}
		if err != nil {
			return errors.Join(err, conn.Close())
		}
		sent += len(rest)
	}
	defer c.mu.Unlock()
	err := c.ctx.Err()
	if err == nil {
		err = errors.Join(conn.SetReadDeadline(c.read), conn.SetWriteDeadline(c.write))
	}
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	c.conn, c.pending = conn, nil
	close(c.ready)
	return nil
}

// waitConn answers the connection once there is one.
func (c *channel) waitConn(deadline func() time.Time) (net.Conn, error) {
	for {
		c.mu.Lock()
		conn, at := c.conn, deadline()
		c.mu.Unlock()
		if conn != nil {
			return conn, nil
		}
		var late <-chan time.Time
		if !at.IsZero() {
			t := time.NewTimer(time.Until(at))
			defer t.Stop()
			late = t.C
		}
		select {
		case <-c.ready:
		case <-c.deadlineMoved:
		case <-c.ctx.Done():
			return nil, net.ErrClosed
		case <-late:
			return nil, os.ErrDeadlineExceeded
		}
	}
}

func (c *channel) Read(p []byte) (int, error) {
	conn, err := c.waitConn(func() time.Time { return c.read })
	if err != nil {
		return 0, err
	}
	return conn.Read(p)
}

func (c *channel) Write(p []byte) (int, error) {
	c.mu.Lock()
	if c.ctx.Err() != nil {
		c.mu.Unlock()
		return 0, net.ErrClosed
	}
	if c.conn == nil && len(c.pending)+len(p) <= maxPending {
		c.pending = append(c.pending, p...)
		c.mu.Unlock()
		return len(p), nil
	}
	c.mu.Unlock()
	conn, err := c.waitConn(func() time.Time { return c.write })
	if err != nil {
		return 0, err
	}
	return conn.Write(p)
}

// Close ends the channel.
func (c *channel) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil && c.conn == nil {
		return nil
	}
	c.end()
	if c.conn == nil {
		return nil
	}
	err := c.conn.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (c *channel) set(read, write *time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if read != nil {
		c.read = *read
	}
	if write != nil {
		c.write = *write
	}
	if c.conn != nil {
		return errors.Join(c.conn.SetReadDeadline(c.read), c.conn.SetWriteDeadline(c.write))
	}
	select {
	case c.deadlineMoved <- struct{}{}:
	default: // whoever waits looks again anyway
	}
	return nil
}

func (c *channel) SetDeadline(t time.Time) error      { return c.set(&t, &t) }
func (c *channel) SetReadDeadline(t time.Time) error  { return c.set(&t, nil) }
func (c *channel) SetWriteDeadline(t time.Time) error { return c.set(nil, &t) }
func (c *channel) LocalAddr() net.Addr                { return address{} }
func (c *channel) RemoteAddr() net.Addr               { return address{} }

// address is the guest's end.
type address struct{}

func (address) Network() string { return "vsock" }
func (address) String() string  { return "guest" }

// Dial implements vmm.Machine.
func (m *machine) Dial(ctx context.Context) (net.Conn, error) {
	select {
	case <-m.Done():
		return nil, m.WithExitReason(ctx, vmm.ErrGone)
	default:
	}
	c := newChannel(m.lifetime)
	m.mu.Lock()
	old, live := m.dialled, m.Phase() != vmmproc.Prepared
	m.dialled = c
	m.mu.Unlock()
	if old != nil {
		if err := old.Close(); err != nil {
			return nil, err
		}
	}
	if live {
		m.connectChannel(c)
	}
	return c, nil
}

// closeChannel ends the guest channel.
func (m *machine) closeChannel() {
	m.mu.Lock()
	old := m.dialled
	m.dialled = nil
	m.mu.Unlock()
	if old != nil {
		_ = old.Close() // an end is what it is for
	}
}

// connectChannel connects a channel, in a goroutine that lives no longer than it.
func (m *machine) connectChannel(c *channel) {
	m.helpers.Go(func() {
		for wait := newBackoff(guestRetryMax); ; {
			conn, err := m.connectGuest(c.ctx)
			if err == nil {
				stop := context.AfterFunc(c.ctx, func() { _ = conn.Close() })
				if c.attach(conn) == nil {
					return
				}
				stop()
			}
			// A guest that boots does not listen yet, and one that was restored has first to hear that the
			// connections it knew are gone: until then it is no error that nobody answers.
			if wait.next(c.ctx, m.lifetime) != nil {
				return
			}
		}
	})
}

// connectGuest makes one attempt.
func (m *machine) connectGuest(ctx context.Context) (net.Conn, error) {
	conn, err := vmmproc.Connect(ctx, m.root(), vsockSocket)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := connectPort(conn, ChannelPort); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// connectTimeout bounds one attempt: a monitor that is paused does not answer.
const connectTimeout = 2 * time.Second

// maxAnswer bounds the line that answers a request for a connection: "OK" and a number of 32 bits.
const maxAnswer = 32

// connectPort asks for a connection to a port of the guest. The request is one write, since the monitor reads but
// once; the answer is read byte by byte, since what the guest says may follow at once.
func connectPort(conn net.Conn, port int) error {
	if err := conn.SetDeadline(time.Now().Add(connectTimeout)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %d\n", port); err != nil {
		return err
	}
	line := make([]byte, 0, maxAnswer)
	for {
		var one [1]byte
		if _, err := conn.Read(one[:]); err != nil {
			return fmt.Errorf("nobody listens on port %d of the guest: %w", port, err)
		}
		if one[0] == '\n' {
			break
		}
		if line = append(line, one[0]); len(line) == maxAnswer {
			return fmt.Errorf("answer to a request for a connection: %q is too long", line)
		}
	}
	number, ok := strings.CutPrefix(string(line), "OK ")
	if _, err := strconv.ParseUint(number, 10, 32); !ok || err != nil {
		return fmt.Errorf("answer to a request for a connection: %q", line)
	}
	return nil
}
