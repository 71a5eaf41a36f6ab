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

// maxKept bounds the bytes that are kept to be sent again.
const maxKept = 1 << 20

// channel is this process's end of the guest channel. It may be written before the guest is
// connected: the data is kept and sent first. Reading waits for the connection.
//
// Until the guest's first byte arrives, a connection may be a dead one: Firecracker before 1.16
// opens connections to a guest that has just been captured or restored and then drops them, with
// what was written to them. Therefore everything written is kept until then. If the connection ends
// before, the channel connects again and sends it again. Beyond maxKept, the connection at hand is
// the last one.
type channel struct {
	ctx           context.Context // canceled when the channel is closed or the monitor has exited
	end           context.CancelFunc
	deadlineMoved chan struct{} // receives a value when a deadline has changed
	lost          chan struct{} // receives a value when a connection has ended that will be replaced
	settled       chan struct{} // closed when no connection will be replaced anymore

	mu    sync.Mutex
	ready chan struct{} // closed when conn is set; replaced when conn is lost
	conn  net.Conn
	last  bool   // settled is closed
	kept  []byte // sent to every new connection
	read  time.Time
	write time.Time // deadlines, used until conn is set
}

var _ net.Conn = (*channel)(nil)

func newChannel(lifetime context.Context) *channel {
	c := &channel{
		ready: make(chan struct{}), deadlineMoved: make(chan struct{}, 1), lost: make(chan struct{}, 1),
		settled: make(chan struct{}),
	}
	c.ctx, c.end = context.WithCancel(lifetime)
	return c
}

// attach sets the connection of the channel and closes it on failure. It sends the kept data first;
// more data may be written meanwhile.
func (c *channel) attach(conn net.Conn) error {
	sent := 0
	for {
		c.mu.Lock()
		rest := c.kept[sent:]
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
	c.conn = conn
	close(c.ready)
	return nil
}

// settle makes the connection at hand the last one. The caller holds c.mu.
func (c *channel) settle() {
	if !c.last {
		c.last, c.kept = true, nil
		close(c.settled)
	}
}

// replace closes a connection that has failed and reports whether the channel gets another one, or
// has it already.
func (c *channel) replace(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	if c.conn != conn {
		return true
	}
	if c.last {
		return false
	}
	c.conn, c.ready = nil, make(chan struct{})
	_ = conn.Close() // it has failed already
	c.lost <- struct{}{}
	return true
}

// waitConn waits for the connection and returns it.
func (c *channel) waitConn(deadline func() time.Time) (net.Conn, error) {
	for {
		c.mu.Lock()
		conn, ready, at := c.conn, c.ready, deadline()
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
		case <-ready:
		case <-c.deadlineMoved:
		case <-c.ctx.Done():
			return nil, net.ErrClosed
		case <-late:
			return nil, os.ErrDeadlineExceeded
		}
	}
}

func (c *channel) Read(p []byte) (int, error) {
	for {
		conn, err := c.waitConn(func() time.Time { return c.read })
		if err != nil {
			return 0, err
		}
		n, err := conn.Read(p)
		if n > 0 {
			c.mu.Lock()
			c.settle()
			c.mu.Unlock()
			return n, err
		}
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) || !c.replace(conn) {
			return n, err
		}
	}
}

func (c *channel) Write(p []byte) (int, error) {
	c.mu.Lock()
	if c.ctx.Err() != nil {
		c.mu.Unlock()
		return 0, net.ErrClosed
	}
	conn, kept := c.conn, !c.last && len(c.kept)+len(p) <= maxKept
	if kept {
		c.kept = append(c.kept, p...)
	}
	if !kept && conn != nil {
		c.settle()
	}
	c.mu.Unlock()
	if kept {
		if conn == nil {
			return len(p), nil
		}
		n, err := conn.Write(p)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && c.replace(conn) {
			return len(p), nil // it is sent again
		}
		return n, err
	}
	conn, err := c.waitConn(func() time.Time { return c.write })
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	c.settle()
	c.mu.Unlock()
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

// connectChannel connects a channel in a goroutine, which ends with the channel or once its
// connection is the last one.
func (m *machine) connectChannel(c *channel) {
	m.helpers.Go(func() {
		for wait := newBackoff(guestRetryMax); ; {
			conn, err := m.connectGuest(c.ctx)
			if err == nil {
				stop := context.AfterFunc(c.ctx, func() { _ = conn.Close() })
				if c.attach(conn) == nil {
					select {
					case <-c.settled:
						return
					case <-c.ctx.Done():
						return
					case <-c.lost:
					}
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
