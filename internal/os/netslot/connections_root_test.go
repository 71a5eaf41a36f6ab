//go:build root

package netslot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/miekg/dns"
)

// opens opens connections from a guest until one is not accepted, at most one more than want.
func (w *fixture) opens(g *guest, want int) (open []net.Conn) {
	w.t.Helper()
	for range want + 1 {
		limit := patience
		if len(open) == want {
			limit = impatience
		}
		c, _, err := dial(g.ns, public, 80, limit)
		if err != nil {
			break
		}
		w.t.Cleanup(func() { c.Close() })
		open = append(open, c)
	}
	if len(open) != want {
		w.t.Fatalf("got %d connections, want %d", len(open), want)
	}
	return open
}

// TestConnectionsAreBounded opens connections until the slot's limit, and some again after others ended.
func TestConnectionsAreBounded(t *testing.T) {
	w := newFixture(t)
	w.names(map[string]string{"a.test.": public})
	p := w.pool(func(c *Config) { c.Connections = 5 })
	defer w.closePool(p)
	s := w.take(p)
	g := w.guest(s, "pntga")
	open := w.opens(g, 5)
	w.must(echo(open[0], patience))
	for range 20 { // questions to the resolver are no connections
		if _, err := ask(g.ns, "udp", s.DNS.String(), "a.test.", dns.TypeA); err != nil {
			t.Fatal(err)
		}
	}
	w.serve(g.ns, s.Address.Addr().String(), 9000)
	w.reaches(w.host, s.GuestIP.String(), 9000) // the host's own are not the guest's
	open[0].Close()
	open[1].Close()
	w.until("another connection", func() bool {
		c, _, err := dial(g.ns, public, 80, impatience)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	n, err := s.droppedPackets()
	if err != nil || n == 0 {
		t.Errorf("got %d refused packets, %v; want some", n, err)
	}
	// A tighter limit for this owner; what exists is not counted.
	w.must(s.SetConnections(2, 0))
	w.opens(g, 2)
	w.must(s.SetConnections(0, 0))
	w.must(s.SetConnections(100, 0)) // not more than the pool's
	w.opens(g, 5)
	if err := s.SetConnections(-1, 0); err == nil {
		t.Error("a negative limit: got no error")
	}
	w.must(s.SetConnections(1, 0))
	w.give(p, s, g)
	if err := s.SetConnections(1, 0); !errors.Is(err, ErrReleased) {
		t.Errorf("after the release: got %v, want ErrReleased", err)
	}
	s = w.take(p)
	g = w.guest(s, "pntga")
	w.opens(g, 5) // of the next owner
	w.give(p, s, g)
}

// TestNewConnectionsAreBounded opens connections faster than the slot's rate.
func TestNewConnectionsAreBounded(t *testing.T) {
	w := newFixture(t)
	p := w.pool(func(c *Config) { c.NewConnections = 1 })
	defer w.closePool(p)
	s := w.take(p)
	g := w.guest(s, "pntga")
	defer w.give(p, s, g)
	got := w.datagrams(public + ":7")
	w.send(g.ns, "192.168.241.2", public+":7", "first")
	if text := <-got; text != "first" {
		t.Errorf("got %q, want the first datagram", text)
	}
	for i := range 500 {
		w.send(g.ns, "192.168.241.2", public+":7", fmt.Sprint(i))
	}
	w.until("refused packets", func() bool {
		n, err := s.droppedPackets()
		w.must(err)
		return n > 0
	})
	if s.dialRate.Burst() != burstSeconds || s.dialRate.Limit() != 1 {
		t.Errorf("the proxy may open %v a second with a burst of %d", s.dialRate.Limit(), s.dialRate.Burst())
	}
}

// TestAdoptedSlotsHaveLimits adopts a slot of a process that had no limits.
func TestAdoptedSlotsHaveLimits(t *testing.T) {
	w := newFixture(t)
	first := w.pool(nil)
	s := w.take(first)
	g := w.guest(s, "pntga")
	w.reaches(g.ns, public, 80)
	w.closePool(first)
	p := w.pool(func(c *Config) { c.Connections = 3 })
	defer w.closePool(p)
	again, err := p.Adopt(context.Background(), "test", s.Index)
	w.must(err)
	w.opens(g, 3)
	w.give(p, again, g)
}
