//go:build root

package netslot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
)

const (
	patience   = 60 * time.Second        // for what must happen
	impatience = 1500 * time.Millisecond // for what must not happen
	public     = "93.184.216.34"
	testPrefix = "pnt"
)

// fixture is a test network: a host and an internet in network namespaces. No packet leaves the machine.
type fixture struct {
	t        testing.TB
	host     *os.File
	internet *os.File
}

// everywhere lists the addresses of the test's internet: servers that a guest may and may not reach.
var everywhere = []string{
	public,
	"10.9.9.9",
	"172.16.3.3",
	"192.168.3.3",
	"100.64.0.9",
	"169.254.169.254",
	"168.63.129.16",
	"100.100.100.200",
	"192.0.0.192",
	"198.18.0.1",
	"203.0.113.7",
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	return newFixtureWith(t)
}

// newFixtureWith is newFixture with more addresses in its internet, without servers.
func newFixtureWith(t testing.TB, more ...string) *fixture {
	t.Helper()
	probetest.Need(t, probe.Config{}, probe.Network)
	w := &fixture{t: t}
	w.internet = w.namespace("pntnet", nil)
	w.host = w.namespace("pnthost", func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "up0"
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "net0", PeerNamespace: netlink.NsFd(w.internet.Fd())}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		if err := configure("up0", "198.100.1.2/24"); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP("198.100.1.1")})
	})
	w.must(within(w.internet, func() error {
		if err := configure("net0", "198.100.1.1/24"); err != nil {
			return err
		}
		for _, a := range append(more, everywhere...) {
			if err := configure("lo", a+"/32"); err != nil {
				return err
			}
		}
		return nil
	}))
	for _, a := range everywhere {
		w.serve(w.internet, a, 80)
		w.serve(w.internet, a, 25)
	}
	return w
}

func (w *fixture) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// namespace makes a namespace that ends with the test, with lo up.
func (w *fixture) namespace(name string, fill func() error) *os.File {
	w.t.Helper()
	var ns *os.File
	w.must(removeNamespace(name))
	w.must(onThread(func() (err error) {
		if ns, err = makeNamespace(name); err != nil {
			return err
		}
		if err := configure("lo", ""); err != nil || fill == nil {
			return err
		}
		return fill()
	}))
	w.t.Cleanup(func() {
		ns.Close()
		if err := removeNamespace(name); err != nil {
			w.t.Error(err)
		}
	})
	return ns
}

func configure(name, address string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if address != "" {
		a, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, a); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
}

// serve sends the peer's address on every TCP connection, and echoes lines after that.
func (w *fixture) serve(ns *os.File, addr string, port int) {
	w.t.Helper()
	var l net.Listener
	w.must(within(ns, func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(addr, fmt.Sprint(port)))
		return err
	}))
	w.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintf(c, "%-21s\n", c.RemoteAddr())
				io.Copy(c, c)
			}()
		}
	}()
}

// dial connects from a namespace and reads the greeting.
func dial(ns *os.File, addr string, port int, limit time.Duration) (c net.Conn, saw string, err error) {
	err = within(ns, func() error {
		d := net.Dialer{Timeout: limit}
		c, err = d.Dial("tcp", net.JoinHostPort(addr, fmt.Sprint(port)))
		return err
	})
	if err != nil {
		return nil, "", err
	}
	saw, err = line(c, limit)
	return c, saw, err
}

func line(c net.Conn, limit time.Duration) (string, error) {
	buf := make([]byte, 22)
	_ = c.SetReadDeadline(time.Now().Add(limit)) // a closed connection fails in the read
	_, err := io.ReadFull(c, buf)
	return strings.TrimSpace(string(buf)), err
}

func (w *fixture) reaches(ns *os.File, addr string, port int) string {
	w.t.Helper()
	c, saw, err := dial(ns, addr, port, patience)
	if err != nil {
		w.t.Fatalf("%s:%d: got error %v, want a connection", addr, port, err)
	}
	c.Close()
	return saw
}

// reachesNone dials all addresses at once and reports those that accept.
func (w *fixture) reachesNone(ns *os.File, addrs ...string) {
	w.t.Helper()
	var wg sync.WaitGroup
	for _, a := range addrs {
		wg.Go(func() {
			to := netip.MustParseAddrPort(a)
			c, saw, err := dial(ns, to.Addr().String(), int(to.Port()), impatience)
			if err == nil {
				c.Close()
				w.t.Errorf("%s: got reply %q, want no connection", a, saw)
			}
		})
	}
	wg.Wait()
}

// until waits for a condition.
func (w *fixture) until(what string, ok func() bool) {
	w.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	end := time.After(patience)
	for !ok() {
		select {
		case <-end:
			w.t.Fatalf("timeout: want %s", what)
		case <-tick.C:
		}
	}
}

// datagrams is a UDP server in the internet that reports the datagrams it receives.
func (w *fixture) datagrams(addr string) <-chan string {
	w.t.Helper()
	var pc net.PacketConn
	w.must(within(w.internet, func() (err error) {
		pc, err = net.ListenPacket("udp4", addr)
		return err
	}))
	w.t.Cleanup(func() { pc.Close() })
	got := make(chan string, 100)
	go func() {
		buf := make([]byte, 2000)
		for {
			n, _, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			got <- string(buf[:n])
		}
	}()
	return got
}

// send sends a datagram with a source address of the sender's choice.
func (w *fixture) send(ns *os.File, from, to, text string) {
	w.t.Helper()
	w.must(within(ns, func() error {
		d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("udp4", to)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte(text))
		return err
	}))
}

func (w *fixture) pool(change func(*Config)) *Pool {
	w.t.Helper()
	c := Config{Prefix: testPrefix, Namespace: filepath.Join(namespaces, "pnthost"), Ready: 1,
		Resolvers: []netip.AddrPort{netip.MustParseAddrPort("10.9.9.9:53")}}
	if change != nil {
		change(&c)
	}
	p, err := New(c)
	w.must(err)
	w.must(p.Open(context.Background()))
	return p
}

func (w *fixture) closePool(p *Pool) {
	w.t.Helper()
	w.must(p.Close(context.Background()))
}

func (w *fixture) take(p *Pool) *Slot {
	w.t.Helper()
	s, err := p.Acquire(context.Background(), "test")
	w.must(err)
	return s
}

// guest puts a namespace with a network stack on the tap of a slot, as a monitor would put a guest.
type guest struct {
	ns   *os.File
	stop func()
}

func (w *fixture) guest(s *Slot, name string) *guest {
	w.t.Helper()
	var outer *os.File
	ns := w.namespace(name, func() (err error) {
		if outer, err = openTap(); err != nil {
			return err
		}
		link, err := netlink.LinkByName(tapName)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetHardwareAddr(link, s.MAC); err != nil {
			return err
		}
		if err := configure(tapName, s.Address.String()); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Gw: s.Gateway.AsSlice()})
	})
	a, b := polled(w, outer), polled(w, s.Tap)
	outer.Close()
	var wg sync.WaitGroup
	wg.Go(func() { frames(a, b) })
	wg.Go(func() { frames(b, a) })
	g := &guest{ns: ns, stop: sync.OnceFunc(func() { a.Close(); b.Close(); wg.Wait() })}
	w.t.Cleanup(g.stop)
	return g
}

// polled returns a duplicate of f whose reads end when it is closed.
func polled(w *fixture, f *os.File) *os.File {
	w.t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	w.must(err)
	w.must(unix.SetNonblock(fd, true))
	return os.NewFile(uintptr(fd), "tap")
}

func frames(to, from *os.File) {
	buf := make([]byte, 70000)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if _, err := to.Write(buf[:n]); errors.Is(err, os.ErrClosed) {
			return
		}
	}
}

// leftovers lists namespaces, links and tables with the prefix of the test's pool.
func (w *fixture) leftovers() []string {
	w.t.Helper()
	var list []string
	files, err := os.ReadDir(namespaces)
	w.must(err)
	for _, f := range files {
		if strings.HasPrefix(f.Name(), testPrefix+"-") {
			list = append(list, f.Name())
		}
	}
	w.must(within(w.host, func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if strings.HasPrefix(l.Attrs().Name, testPrefix+"-") {
				list = append(list, l.Attrs().Name)
			}
		}
		return err
	}))
	return list
}

// echo sends a line and waits for it to come back.
func echo(c net.Conn, limit time.Duration) error {
	c.SetDeadline(time.Now().Add(limit))
	if _, err := fmt.Fprintf(c, "%-21s\n", "are you there"); err != nil {
		return err
	}
	_, err := line(c, limit)
	return err
}

// names runs a resolver in the internet, at a private address that only the host may reach.
func (w *fixture) names(table map[string]string) {
	w.t.Helper()
	h := dns.HandlerFunc(func(rw dns.ResponseWriter, m *dns.Msg) {
		r := new(dns.Msg).SetReply(m)
		a, ok := table[strings.ToLower(m.Question[0].Name)]
		switch {
		case !ok:
			r.Rcode = dns.RcodeNameError
		case m.Question[0].Qtype == dns.TypeA:
			for _, one := range strings.Fields(a) {
				rr, err := dns.NewRR(m.Question[0].Name + " 60 IN A " + one)
				if err != nil {
					w.t.Error(err)
				}
				r.Answer = append(r.Answer, rr)
			}
		}
		rw.WriteMsg(r)
	})
	var pc net.PacketConn
	var l net.Listener
	w.must(within(w.internet, func() (err error) {
		if pc, err = net.ListenPacket("udp", "10.9.9.9:53"); err == nil {
			l, err = net.Listen("tcp", "10.9.9.9:53")
		}
		return err
	}))
	for _, srv := range []*dns.Server{{PacketConn: pc, Handler: h}, {Listener: l, Handler: h}} {
		started := make(chan struct{})
		srv.NotifyStartedFunc = func() { close(started) }
		go srv.ActivateAndServe()
		<-started
		w.t.Cleanup(func() { srv.Shutdown() })
	}
}

// ask queries a resolver, which must reply, from a namespace, as a guest's library would.
func ask(ns *os.File, network, server, name string, kind uint16) (*dns.Msg, error) {
	return askWithin(patience, ns, network, server, name, kind)
}

// askWithin is ask with a limit, for a resolver that must not reply.
func askWithin(limit time.Duration, ns *os.File, network, server, name string, kind uint16) (*dns.Msg, error) {
	var c net.Conn
	err := within(ns, func() (err error) {
		c, err = net.DialTimeout(network, net.JoinHostPort(server, "53"), limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(limit))
	conn := &dns.Conn{Conn: c}
	m := new(dns.Msg).SetQuestion(name, kind)
	if err := conn.WriteMsg(m); err != nil {
		return nil, err
	}
	return conn.ReadMsg()
}

// give ends the guest of a slot and releases the slot.
func (w *fixture) give(p *Pool, s *Slot, g *guest) {
	w.t.Helper()
	if g != nil {
		g.stop()
	}
	w.must(p.Release(context.Background(), s))
}

// forwards reports whether the host's uplink forwards.
func (w *fixture) forwards() (yes bool) {
	w.t.Helper()
	w.must(within(w.host, func() error {
		b, err := os.ReadFile("/proc/sys/net/ipv4/conf/up0/forwarding")
		yes = strings.TrimSpace(string(b)) == "1"
		return err
	}))
	return yes
}
