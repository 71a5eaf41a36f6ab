package fctest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/vmm/fake"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
)

// vsock is the vsock device: the host's way to the guest's sockets.
type vsock struct {
	m *monitor
	l net.Listener

	mu     sync.Mutex
	cond   *sync.Cond
	guest  *fake.Guest
	port   int  // on which the guest listens
	drops  int  // number of connections to drop until the guest can be reached
	dead   int  // number of connections to open and drop after that
	served bool // the guest has accepted a connection
	paused bool // the program is paused and handles no sockets
	closed bool
	conn   net.Conn      // current connection of the guest
	ended  chan struct{} // closed when the guest has finished with conn
}

// openVsock binds the socket, which must not exist yet.
func (m *monitor) openVsock(deaf int) error {
	l, err := net.Listen("unix", m.shape.Vsock.Path)
	if err != nil {
		return bad("Cannot create backend for vsock device: UnixBind(%v)", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	m.vsock = &vsock{m: m, l: l, drops: deaf}
	m.vsock.cond = sync.NewCond(&m.vsock.mu)
	go m.vsock.accept()
	return nil
}

func (v *vsock) guestStarted(g *fake.Guest, port, deaf int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.guest, v.port, v.drops = g, port, deaf
	v.cond.Broadcast()
}

// dropNext makes the next connection a dead one, as after captures and restores in releases before 1.16: the
// guest's transport is still being reset, so it opens and is dropped with what was sent on it.
func (v *vsock) dropNext(release fcapi.Version) {
	if release.AtLeast(1, 16) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.dead = 1
}

// wasServed reports whether the guest has accepted a connection.
func (v *vsock) wasServed() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.served
}

// pause stops or resumes the handling of sockets.
func (v *vsock) pause(still bool) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.paused = still
	v.cond.Broadcast()
}

func (v *vsock) shutdown() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	if v.conn != nil {
		_ = v.conn.Close()
	}
}

// reset drops the guest's connections. The host notices when it sends something.
func (v *vsock) reset() {
	v.mu.Lock()
	conn, ended := v.conn, v.ended
	v.conn = nil
	v.mu.Unlock()
	if conn == nil {
		return
	}
	_ = conn.SetReadDeadline(time.Unix(1, 0)) // ends the guest's pending read
	go func() {
		<-ended
		_ = conn.SetReadDeadline(time.Time{})
		var one [1]byte
		_, _ = conn.Read(one[:]) // any data; the connection is dead
		_ = conn.Close()
	}()
}

func (v *vsock) accept() {
	for {
		conn, err := v.l.Accept()
		if err != nil {
			return
		}
		v.mu.Lock()
		for v.paused {
			v.cond.Wait()
		}
		v.mu.Unlock()
		go v.serve(conn)
	}
}

// request reads "CONNECT <port>\n", which must arrive at once.
func request(conn net.Conn) (int, error) {
	buf := make([]byte, 64)
	n, err := conn.Read(buf)
	if err != nil {
		return 0, err
	}
	line, _, ok := bytes.Cut(buf[:n], []byte("\n"))
	if !ok || len(line) > 31 {
		return 0, errors.New("no line")
	}
	port, ok := strings.CutPrefix(string(line), "CONNECT ")
	if !ok {
		return 0, errors.New("no request")
	}
	return strconv.Atoi(port)
}

// dropOpened opens a connection and drops it with the first data on it.
func dropOpened(conn net.Conn) {
	if _, err := fmt.Fprintf(conn, "OK %d\n", 1<<30); err == nil {
		_, _ = conn.Read(make([]byte, 1)) // lost
	}
	_ = conn.Close()
}

func (v *vsock) serve(conn net.Conn) {
	port, err := request(conn)
	v.mu.Lock()
	dropped := err != nil || v.closed || v.guest == nil || port != v.port || v.drops > 0
	if v.drops > 0 {
		v.drops--
	}
	if dropped {
		v.mu.Unlock()
		_ = conn.Close()
		return
	}
	if v.dead > 0 {
		v.dead--
		v.mu.Unlock()
		dropOpened(conn)
		return
	}
	v.served = true
	old, ended := v.conn, v.ended
	mine := make(chan struct{})
	v.conn, v.ended = conn, mine
	guest := v.guest
	v.mu.Unlock()
	if old != nil {
		_ = old.Close() // the guest serves the newest connection
	}
	if ended != nil {
		<-ended
	}
	defer close(mine)
	if _, err := fmt.Fprintf(conn, "OK %d\n", 1<<30); err == nil {
		_ = guest.Serve(v.m.ctx, struct{ net.Conn }{conn}) // its end is not an error of the guest
	}
	v.mu.Lock()
	kept := v.conn != conn
	v.mu.Unlock()
	if !kept {
		_ = conn.Close()
	}
}
