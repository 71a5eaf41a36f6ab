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

// maxPending bounds the bytes that are written before the guest is connected.
const maxPending = 1 << 20

// channel is this process's end of the guest channel. It may be written before the guest is
// connected: the data is kept and sent first. Reading waits for the connection.
type channel struct {
	ctx           context.Context // canceled when the channel is closed or the monitor has exited
	end           context.CancelFunc
	ready         chan struct{} // closed when conn is set
	deadlineMoved chan struct{} // receives a value when a deadline has changed

	mu      sync.Mutex
	conn    net.Conn
	pending []byte
	read    time.Time // deadlines, used until conn is set
	write   time.Time
}

var _ net.Conn = (*channel)(nil)

func newChannel(lifetime context.Context) *channel {
	c := &channel{ready: make(chan struct{}), deadlineMoved: make(chan struct{}, 1)}
	c.ctx, c.end = context.WithCancel(lifetime)
	return c
}

// attach sets the connection of the channel and closes it on failure. It sends the pending data
// first; more data may be written meanwhile.
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

// waitConn waits for the connection and returns it.
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

// Close closes the channel.
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
	default: // a waiting goroutine looks at the deadlines anyway
	}
	return nil
}

func (c *channel) SetDeadline(t time.Time) error      { return c.set(&t, &t) }
func (c *channel) SetReadDeadline(t time.Time) error  { return c.set(&t, nil) }
func (c *channel) SetWriteDeadline(t time.Time) error { return c.set(nil, &t) }
func (c *channel) LocalAddr() net.Addr                { return address{} }
func (c *channel) RemoteAddr() net.Addr               { return address{} }

// address is the address of the guest's end.
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

// closeChannel closes the guest channel.
func (m *machine) closeChannel() {
	m.mu.Lock()
	old := m.dialled
	m.dialled = nil
	m.mu.Unlock()
	if old != nil {
		_ = old.Close() // closing an already broken connection is no error here
	}
}

// connectChannel connects a channel in a goroutine, which ends with the channel.
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
			// Failed attempts are normal: a booting guest does not listen yet, and a restored one
			// accepts connections only after it has handled the vsock transport reset.
			if wait.next(c.ctx, m.lifetime) != nil {
				return
			}
		}
	})
}

// connectGuest makes one attempt to connect.
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

// connectTimeout bounds one attempt: a paused monitor does not respond.
const connectTimeout = 2 * time.Second

// maxResponse bounds the response line, which is "OK" and a 32-bit number.
const maxResponse = 32

// connectPort connects to a port of the guest with Firecracker's vsock protocol ("CONNECT
// <port>\n"). The request must be one write, because the monitor reads only once. The response is
// read byte by byte, because data from the guest may follow directly.
func connectPort(conn net.Conn, port int) error {
	if err := conn.SetDeadline(time.Now().Add(connectTimeout)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %d\n", port); err != nil {
		return err
	}
	line := make([]byte, 0, maxResponse)
	for {
		var one [1]byte
		if _, err := conn.Read(one[:]); err != nil {
			return fmt.Errorf("connect to vsock port %d of the guest: %w", port, err)
		}
		if one[0] == '\n' {
			break
		}
		if line = append(line, one[0]); len(line) == maxResponse {
			return fmt.Errorf("response to a vsock connection request: %q is too long", line)
		}
	}
	number, ok := strings.CutPrefix(string(line), "OK ")
	if _, err := strconv.ParseUint(number, 10, 32); !ok || err != nil {
		return fmt.Errorf("invalid response to a vsock connection request: %q", line)
	}
	return nil
}
