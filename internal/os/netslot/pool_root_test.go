//go:build root

package netslot

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/os/nft"
)

func TestGuestReachesTheInternetAndNothingElse(t *testing.T) {
	w := newFixture(t)
	w.serve(w.host, "0.0.0.0", 8080)
	p := w.pool(nil)
	defer w.closePool(p)
	a, b := w.take(p), w.take(p)
	ga, gb := w.guest(a, "pntga"), w.guest(b, "pntgb")
	defer w.give(p, a, ga)
	defer w.give(p, b, gb)
	w.serve(ga.ns, "192.168.241.2", 9000)
	w.serve(gb.ns, "192.168.241.2", 9000)

	if saw := w.reaches(ga.ns, public, 80); netip.MustParseAddrPort(saw).Addr().String() != "198.100.1.2" {
		t.Errorf("the internet saw source %s, want the host's uplink", saw)
	}
	w.reaches(w.host, a.GuestIP.String(), 9000)
	w.reaches(w.host, b.GuestIP.String(), 9000)

	hostA, _ := slotAddresses(p.Range(), a.Index)
	var closed []string
	for _, to := range append(everywhere[1:], "198.100.1.2", hostA.String(), "192.168.241.1", a.GuestIP.String()) {
		closed = append(closed, to+":80", to+":8080")
	}
	w.reachesNone(ga.ns, append(closed, b.GuestIP.String()+":9000", public+":25")...)
	w.reachesNone(w.internet, a.GuestIP.String()+":9000")
}

func TestCloseLeavesNothing(t *testing.T) {
	w := newFixture(t)
	p := w.pool(nil)
	s := w.take(p)
	w.must(p.Release(context.Background(), s))
	w.closePool(p)
	if left := w.leftovers(); len(left) > 0 {
		t.Errorf("after Close: got leftovers %v, want none", left)
	}
	w.must(within(w.host, func() error {
		if ok, err := nft.Exists(testPrefix); err != nil || ok {
			t.Errorf("nft table after Close: exists %v, error %v", ok, err)
		}
		return nil
	}))
}

func TestAllowedRangeIsReached(t *testing.T) {
	w := newFixture(t)
	p := w.pool(func(c *Config) {
		c.Allow = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16")}
	})
	defer w.closePool(p)
	a, b := w.take(p), w.take(p)
	ga, gb := w.guest(a, "pntga"), w.guest(b, "pntgb")
	defer w.give(p, a, ga)
	defer w.give(p, b, gb)
	w.serve(gb.ns, "192.168.241.2", 9000)
	w.reaches(ga.ns, "10.9.9.9", 80)
	w.reachesNone(ga.ns, "169.254.169.254:80", b.GuestIP.String()+":9000", "172.16.3.3:80")
}

func TestSpoofedSourcesAreDropped(t *testing.T) {
	w := newFixture(t)
	got := w.datagrams(public + ":7000")
	p := w.pool(nil)
	defer w.closePool(p)
	a, b := w.take(p), w.take(p)
	g := w.guest(a, "pntga")
	defer w.give(p, a, g)
	defer w.give(p, b, nil)
	host, _ := slotAddresses(p.Range(), a.Index)
	for _, from := range []string{
		"192.168.241.3", b.GuestIP.String(), a.GuestIP.String(), host.String(), "198.100.1.2", "8.8.8.8",
	} {
		w.must(within(g.ns, func() error { return configure(tapName, from+"/32") }))
		w.send(g.ns, from, public+":7000", "spoofed "+from)
	}
	w.send(g.ns, "192.168.241.2", public+":7000", "honest")
	select {
	case text := <-got: // datagrams on one path keep their order
		if text != "honest" {
			t.Errorf("the internet received %q", text)
		}
	case <-time.After(patience):
		t.Fatal("a datagram with the right source did not arrive")
	}
	setMAC := func(mac string) {
		w.must(within(g.ns, func() error {
			link, err := netlink.LinkByName(tapName)
			if err != nil {
				return err
			}
			hw, err := net.ParseMAC(mac)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetHardwareAddr(link, hw); err != nil {
				return err
			}
			return netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
				IP: a.Gateway.AsSlice(), HardwareAddr: tapMAC}) // without ARP
		}))
	}
	setMAC("02:fc:00:00:00:77")
	w.send(g.ns, "192.168.241.2", public+":7000", "from another card")
	setMAC(a.MAC.String())
	w.send(g.ns, "192.168.241.2", public+":7000", "honest again")
	select {
	case text := <-got:
		if text != "honest again" {
			t.Errorf("the internet received %q", text)
		}
	case <-time.After(patience):
		t.Fatal("a datagram with the right source did not arrive")
	}
	w.reaches(g.ns, public, 80)
}

func TestIPv6IsClosed(t *testing.T) {
	w := newFixture(t)
	p := w.pool(nil)
	defer w.closePool(p)
	s := w.take(p)
	g := w.guest(s, "pntga")
	defer w.give(p, s, g)
	w.must(within(g.ns, func() error { return configure(tapName, "fd00:1::2/64") }))
	for name, inside := range map[string]func(func() error) error{
		"the slot": s.inside,
		"the host": func(do func() error) error { return within(w.host, do) },
	} {
		w.must(inside(func() error {
			addrs, err := netlink.AddrList(nil, netlink.FAMILY_V6)
			for _, a := range addrs {
				link, err := netlink.LinkByIndex(a.LinkIndex)
				if err == nil &&
					(strings.HasPrefix(link.Attrs().Name, testPrefix) ||
						link.Attrs().Name == tapName || link.Attrs().Name == innerName) {
					t.Errorf("%s has an IPv6 address: %s", name, a)
				}
			}
			return err
		}))
	}
	// Even a slot with an address must not reply: give it one, and a server.
	w.must(s.inside(func() error {
		if err := sysctl("net/ipv6/conf/tap0/disable_ipv6", "0"); err != nil {
			return err
		}
		link, err := netlink.LinkByName(tapName)
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr("fd00:1::1/64")
		if err != nil {
			return err
		}
		a.Flags = unix.IFA_F_NODAD
		return netlink.AddrAdd(link, a)
	}))
	ns, err := openNamespace(p.linkName(s.Index))
	w.must(err)
	defer ns.Close()
	w.serve(ns, "::", 8080)
	w.reachesNone(g.ns, "[fd00:1::1]:8080")
}

func TestManyAcquireReleaseCyclesLeaveNothing(t *testing.T) {
	w := newFixture(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	goroutines := runtime.NumGoroutine()
	files := openFiles(t)
	p := w.pool(func(c *Config) { c.Ready = 3 })
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	for range 60 {
		var held []*Slot
		for range 5 {
			held = append(held, w.take(p))
		}
		for _, s := range held {
			w.must(p.Release(ctx, s))
			w.must(p.Release(ctx, s))
		}
	}
	cancel()
	w.must(<-done)
	w.closePool(p)
	if left := w.leftovers(); len(left) > 0 {
		t.Errorf("after the cycles: got leftovers %v, want none", left)
	}
	w.until("all goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines })
	w.until("all files are closed", func() bool { return openFiles(t) <= files+2 }) // the runtime opens its poller once
	tasks, err := os.ReadDir("/proc/self/task")
	w.must(err)
	if len(tasks) > 100 {
		t.Errorf("got %d threads", len(tasks))
	}
	for _, task := range tasks { // no thread is left in a namespace of a slot
		if got, err := os.Readlink("/proc/self/task/" + task.Name() + "/ns/net"); err == nil {
			if home, err := os.Readlink("/proc/self/ns/net"); err != nil || got != home {
				t.Errorf("thread %s is in namespace %s, want %s: %v", task.Name(), got, home, err)
			}
		}
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// abandon leaves a pool as a killed process would: its sockets closed, its kernel state in place.
func (w *fixture) abandon(p *Pool, slots ...*Slot) {
	w.t.Helper()
	for _, s := range slots {
		w.must(s.names.Close())
		s.names = nil
		w.must(s.closeKernel())
	}
	p.flows.close()
	w.must(p.unlock())
	w.must(p.host.Close())
}

func TestAnotherPoolAdoptsAndSweeps(t *testing.T) {
	ctx := context.Background()
	w := newFixture(t)
	w.names(map[string]string{"example.test.": public})
	dead := w.pool(nil)
	kept, lost := w.take(dead), w.take(dead)
	g := w.guest(kept, "pntga")
	w.serve(g.ns, "192.168.241.2", 9000)
	alive, _, err := dial(g.ns, public, 80, patience)
	w.must(err)
	defer alive.Close()
	w.must(kept.SetEgress(ctx, true))
	second, err := New(dead.cfg)
	w.must(err)
	if err := second.Open(ctx); !errors.Is(err, ErrInUse) {
		t.Fatalf("second pool of the same prefix: got error %v, want ErrInUse", err)
	}
	w.abandon(dead, kept, lost)

	p := w.pool(nil)
	defer w.closePool(p)
	if p.Range() != dead.Range() {
		t.Errorf("the range changed from %s to %s", dead.Range(), p.Range())
	}
	s, err := p.Adopt(ctx, "test", kept.Index)
	w.must(err)
	if _, err := p.Adopt(ctx, "test", kept.Index); !errors.Is(err, ErrNoSlot) {
		t.Errorf("second Adopt: got error %v, want ErrNoSlot", err)
	}
	if _, err := p.Adopt(ctx, "test", 4000); !errors.Is(err, ErrNoSlot) {
		t.Errorf("Adopt of an unknown slot: got error %v, want ErrNoSlot", err)
	}
	if n, err := p.Sweep(ctx); n != 1 || err != nil {
		t.Errorf("Sweep: got %d, %v", n, err)
	}
	w.must(echo(alive, patience))
	w.reaches(g.ns, public, 80)
	w.reaches(w.host, s.GuestIP.String(), 9000)
	if got, err := ask(g.ns, "udp", s.DNS.String(), "example.test.", dns.TypeA); err != nil || len(got.Answer) != 1 {
		t.Errorf("name after adoption: got %v, %v", got, err)
	}

	var busy *BusyError
	if err := p.Release(ctx, s); !errors.As(err, &busy) || busy.Index != s.Index {
		t.Errorf("Release while the tap is held: got error %v, want a *BusyError", err)
	}
	if err := s.SetEgress(ctx, false); !errors.Is(err, ErrReleased) {
		t.Errorf("use after Release: got error %v, want ErrReleased", err)
	}
	g.stop()
	w.must(kept.Tap.Close())
	w.must(lost.Tap.Close())
	run, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- p.Run(run) }()
	w.until("the slot is renewed", func() bool { return len(p.inState(used)) == 0 && p.count(ready) > 0 })
	cancel()
	w.must(<-done)
}

func TestReusedSlotRemembersNothing(t *testing.T) {
	ctx := context.Background()
	w := newFixture(t)
	p := w.pool(nil)
	defer w.closePool(p)
	s := w.take(p)
	g := w.guest(s, "pntga")
	w.must(s.SetEgress(ctx, false))
	w.must(s.SetEgress(ctx, true))
	old, _, err := dial(g.ns, public, 80, patience)
	w.must(err)
	defer old.Close()
	w.give(p, s, g)
	again := w.take(p)
	if again.Index != s.Index || again == s {
		t.Fatalf("got slot %d, want slot %d as another value", again.Index, s.Index)
	}
	for name, inside := range map[string]func(func() error) error{
		"slot": again.inside,
		"host": func(do func() error) error { return within(w.host, do) },
	} {
		w.must(inside(func() error {
			flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
			for _, f := range flows {
				for _, ip := range []net.IP{f.Forward.SrcIP, f.Forward.DstIP, f.Reverse.SrcIP, f.Reverse.DstIP} {
					if ip.Equal(s.GuestIP.AsSlice()) || ip.Equal(s.Address.Addr().AsSlice()) {
						t.Errorf("%s still tracks connection %s", name, f)
					}
				}
			}
			return err
		}))
	}
	g2 := w.guest(again, "pntgb")
	w.reaches(g2.ns, public, 80)
	w.give(p, again, g2)
}

func TestForwardingIsReset(t *testing.T) {
	w := newFixture(t)
	w.must(within(w.host, func() error { return sysctl("net/ipv4/ip_forward", "0") }))
	first := w.pool(nil)
	if !w.forwards() {
		t.Error("the uplink does not forward")
	}
	w.abandon(first)
	p := w.pool(nil) // a second process knows which links the first one changed
	w.closePool(p)
	if w.forwards() {
		t.Error("the uplink still forwards")
	}
	p = w.pool(nil)
	w.must(within(w.host, func() error { return sysctl("net/ipv4/ip_forward", "1") }))
	w.closePool(p)
	if !w.forwards() {
		t.Error("forwarding that another program turned on was turned off")
	}
}

func TestTwoPoolsShareAHost(t *testing.T) {
	w := newFixture(t)
	w.must(within(w.host, func() error { return sysctl("net/ipv4/ip_forward", "0") }))
	w.must(within(w.host, func() error { // another program's table
		return nft.Replace(nft.Table{Name: "other", Sets: []nft.Set{{Name: "x", IsNames: true}}})
	}))
	p := w.pool(nil)
	q := w.pool(func(c *Config) { c.Prefix = testPrefix + "b" })
	defer func() {
		if w.forwards() {
			t.Error("the uplink forwards after the last pool was closed")
		}
	}()
	defer w.closePool(q)
	defer func() {
		w.closePool(p)
		if !w.forwards() {
			t.Error("the first to close took the uplink from the other")
		}
	}()
	if p.Range().Overlaps(q.Range()) {
		t.Fatalf("both pools have range %s", p.Range())
	}
	a, b := w.take(p), w.take(q)
	ga, gb := w.guest(a, "pntga"), w.guest(b, "pntgb")
	defer w.give(p, a, ga)
	defer w.give(q, b, gb)
	w.serve(gb.ns, "192.168.241.2", 9000)
	w.reaches(ga.ns, public, 80)
	w.reaches(gb.ns, public, 80)
	w.reaches(w.host, b.GuestIP.String(), 9000)
	w.reachesNone(ga.ns, b.GuestIP.String()+":9000")
	third, err := New(Config{Prefix: testPrefix + "c", Range: q.Range(), Namespace: p.cfg.Namespace})
	w.must(err)
	var taken *RangeError
	if err := third.Open(context.Background()); !errors.As(err, &taken) {
		t.Errorf("third pool in the second's range: got error %v, want a *RangeError", err)
	}
}

func TestUplinksAreFollowed(t *testing.T) {
	w := newFixture(t)
	gateway := &netlink.Route{Gw: net.ParseIP("198.100.1.1")}
	w.must(within(w.host, func() error {
		return netlink.RouteDel(
			&netlink.Route{Gw: gateway.Gw, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}},
		)
	}))
	p := w.pool(nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	defer func() { cancel(); w.must(<-done); w.closePool(p) }()
	s := w.take(p)
	g := w.guest(s, "pntga")
	defer w.give(p, s, g)
	w.reachesNone(g.ns, public+":80")
	w.must(within(w.host, func() error { return netlink.RouteAdd(gateway) }))
	w.until("the new uplink is used", func() bool {
		c, _, err := dial(g.ns, public, 80, impatience)
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
}

func TestGatewayResolvesNames(t *testing.T) {
	w := newFixture(t)
	w.names(map[string]string{"example.test.": public})
	p := w.pool(nil)
	defer w.closePool(p)
	s := w.take(p)
	g := w.guest(s, "pntga")
	defer w.give(p, s, g)
	for _, network := range []string{"udp", "tcp"} {
		got, err := ask(g.ns, network, s.DNS.String(), "example.test.", dns.TypeA)
		if err != nil || len(got.Answer) != 1 || got.Answer[0].(*dns.A).A.String() != public {
			t.Errorf("over %s: got %v, %v", network, got, err)
		}
	}
	got, err := ask(g.ns, "udp", s.DNS.String(), "nowhere.test.", dns.TypeA)
	if err != nil || got.Rcode != dns.RcodeNameError {
		t.Errorf("unknown name: got %v, %v", got, err)
	}
}

func TestEgressSwitchesLive(t *testing.T) {
	ctx := context.Background()
	w := newFixture(t)
	w.names(map[string]string{"example.test.": public})
	p := w.pool(nil)
	defer w.closePool(p)
	s := w.take(p)
	g := w.guest(s, "pntga")
	defer w.give(p, s, g)
	w.serve(g.ns, "192.168.241.2", 9000)

	old, _, err := dial(g.ns, public, 80, patience)
	w.must(err)
	defer old.Close()
	fromHost, _, err := dial(w.host, s.GuestIP.String(), 9000, patience)
	w.must(err)
	defer fromHost.Close()
	w.must(echo(old, patience))

	w.must(s.SetEgress(ctx, false))
	if echo(old, impatience) == nil {
		t.Error("a connection from before still works with egress off")
	}
	w.reachesNone(g.ns, public+":80")
	if got, err := ask(g.ns, "udp", s.DNS.String(), "example.test.", dns.TypeA); err != nil ||
		got.Rcode != dns.RcodeNameError {
		t.Errorf("a name with egress off: got %v, %v", got, err)
	}
	w.must(echo(fromHost, patience))
	w.reaches(w.host, s.GuestIP.String(), 9000)

	w.must(s.SetEgress(ctx, true))
	w.reaches(g.ns, public, 80)
}

// TestSharedTapIsOpenedByName checks that a monitor that opens the tap itself finds it as it was made, and that the
// slot can be used again afterwards.
func TestSharedTapIsOpenedByName(t *testing.T) {
	w := newFixture(t)
	p := w.pool(nil)
	defer w.closePool(p)
	s := w.take(p)
	ns, err := s.ShareTap(1000)
	w.must(err)
	defer ns.Close()
	var tap *os.File
	w.must(within(ns, func() error {
		link, err := netlink.LinkByName(s.TapName)
		if err != nil {
			return err
		}
		if link.Attrs().HardwareAddr.String() != tapMAC.String() {
			t.Errorf("tap has hardware address %s", link.Attrs().HardwareAddr)
		}
		tap, err = openTap() // as a monitor does
		return err
	}))
	var busy *BusyError
	if err := p.Release(context.Background(), s); !errors.As(err, &busy) {
		t.Errorf("Release while the tap is open: got error %v, want a *BusyError", err)
	}
	w.must(tap.Close())
	w.must(p.Release(context.Background(), s))
}

// TestOtherUsersHoldNoPrefix opens a pool although a process holds the socket names of its prefix and range, which any
// user can.
func TestOtherUsersHoldNoPrefix(t *testing.T) {
	w := newFixture(t)
	w.must(within(w.host, func() error {
		for _, name := range []string{testPrefix, candidates[0].String()} {
			l, err := net.Listen("unix", "@netslot-"+name)
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
		}
		return nil
	}))
	p := w.pool(nil)
	defer w.closePool(p)
	other, err := New(Config{Prefix: testPrefix, Namespace: p.cfg.Namespace})
	w.must(err)
	if err := other.Open(t.Context()); !errors.Is(err, ErrInUse) {
		t.Errorf("a second pool: got %v, want ErrInUse", err)
	}
}
