package netslot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// maxServed is the number of connections of one guest to the service at once; more are closed.
const maxServed = 128

// Service is what guests reach at a port of their gateway: it accepts the connections of all of them, each with the
// guest's address on the host as its remote address. It implements net.Listener. Connections end with their slot.
type Service struct {
	port  uint16
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newService(port uint16) *Service {
	return &Service{port: port, conns: make(chan net.Conn), done: make(chan struct{})}
}

// Service returns the service of the guests; nil without Config.ServicePort.
func (p *Pool) Service() *Service { return p.service }

// Accept implements net.Listener.
func (s *Service) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.done:
		return nil, fmt.Errorf("service of guests: %w", net.ErrClosed)
	}
}

// Close implements net.Listener. Connections that were accepted stay.
func (s *Service) Close() error {
	s.once.Do(func() { close(s.done) })
	return nil
}

// Addr implements net.Listener: it is where guests find the service.
func (s *Service) Addr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(gateway, s.port))
}

// door is the service's listener in one slot.
type door struct {
	service  *Service
	listener net.Listener
	guest    netip.Addr
	closed   context.CancelFunc
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns map[*servedConn]bool // +checklocks:mu
}

// openDoor listens on the slot's gateway address, from a thread in its namespace.
func (s *Slot) openDoor(ctx context.Context) (*door, error) {
	var lc net.ListenConfig
	at := net.JoinHostPort(gateway.String(), strconv.Itoa(int(s.pool.service.port)))
	l, err := whileInUse(ctx, func() (net.Listener, error) { return lc.Listen(ctx, "tcp4", at) })
	if err != nil {
		return nil, fmt.Errorf("listen for the service: %w", err)
	}
	d := &door{service: s.pool.service, listener: l, guest: s.GuestIP, conns: map[*servedConn]bool{}}
	ctx, d.closed = context.WithCancel(context.WithoutCancel(ctx))
	d.wg.Go(func() { d.accept(ctx) })
	return d, nil
}

// acceptPause is how long a door waits after an error, such as a shortage of file descriptors.
const acceptPause = 10 * time.Millisecond

func (d *door) accept(ctx context.Context) {
	for {
		c, err := d.listener.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		served := d.admit(c)
		if served == nil {
			_ = c.Close() // refused
			continue
		}
		select {
		case d.service.conns <- served:
		case <-d.service.done:
			_ = served.Close() // no process serves it
		case <-ctx.Done():
			_ = served.Close() // the slot ends
		}
	}
}

// admit returns nil for one connection too many.
func (d *door) admit(c net.Conn) *servedConn {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.conns) >= maxServed {
		return nil
	}
	peer := &net.TCPAddr{IP: d.guest.AsSlice()}
	if from, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		peer.Port = from.Port
	}
	served := &servedConn{Conn: c, door: d, peer: peer}
	d.conns[served] = true
	return served
}

// close ends the door with all its connections.
func (d *door) close() error {
	d.closed()
	err := d.listener.Close()
	d.wg.Wait()
	d.mu.Lock()
	open := make([]*servedConn, 0, len(d.conns))
	for c := range d.conns {
		open = append(open, c)
	}
	d.mu.Unlock()
	for _, c := range open {
		_ = c.Close() // its server may have closed it
	}
	return err
}

// servedConn is a connection of a guest to the service.
type servedConn struct {
	net.Conn
	door *door
	peer net.Addr
}

// RemoteAddr returns the guest's address on the host: in its slot all guests have the same.
func (c *servedConn) RemoteAddr() net.Addr { return c.peer }

// Close implements net.Conn.
func (c *servedConn) Close() error {
	c.door.mu.Lock()
	delete(c.door.conns, c)
	c.door.mu.Unlock()
	return c.Conn.Close()
}
