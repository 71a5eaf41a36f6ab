//go:build root

package netslot

import (
	"bufio"
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/os/egress"
)

// serveGuests sends every client of a service the address that it sees, and echoes after that.
func (w *fixture) serveGuests(s *Service) {
	w.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
				_, _ = io.WriteString(c, host+"\n")
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	w.t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
}

// knock connects to the service from a guest and returns the connection and what the service says first.
func knock(g *guest, limit time.Duration) (c net.Conn, saw string, err error) {
	err = within(g.ns, func() error {
		c, err = net.DialTimeout("tcp4", "192.168.241.1:5432", limit)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return c, "", err
	}
	saw, err = bufio.NewReader(c).ReadString('\n')
	return c, saw, err
}

func TestGuestsReachTheServiceAtTheirGateway(t *testing.T) {
	w := newFixture(t)
	p := w.pool(func(c *Config) { c.ServicePort = 5432 })
	defer w.closePool(p)
	w.serveGuests(p.Service())
	a, b := w.take(p), w.take(p)
	ga, gb := w.guest(a, "pntga"), w.guest(b, "pntgb")
	for _, one := range []struct {
		s *Slot
		g *guest
	}{{a, ga}, {b, gb}} {
		c, saw, err := knock(one.g, patience)
		if err != nil || saw != one.s.GuestIP.String()+"\n" {
			t.Fatalf("the service sees %q (%v), want %s", saw, err, one.s.GuestIP)
		}
		defer c.Close()
	}
	w.must(a.SetPolicy(context.Background(), egress.Policy{Allow: []string{"good.test"}, DenyOthers: true}))
	c, _, err := knock(ga, patience)
	w.must(err)
	defer c.Close()
	w.must(a.SetEgress(context.Background(), false))
	if c, _, err := knock(ga, impatience); err == nil {
		_ = c.Close()
		t.Error("a guest whose network is off reaches the service")
	}
	if _, _, err := knock(gb, patience); err != nil {
		t.Errorf("another guest no longer reaches it: %v", err)
	}
	open := 0
	for range maxServed + 8 {
		if c, _, err := knock(gb, patience); err == nil {
			open++
			defer c.Close()
		}
	}
	if open >= maxServed || open < maxServed/2 {
		t.Errorf("one guest has %d more connections, want fewer than %d", open, maxServed)
	}
	w.give(p, a, ga)
	w.give(p, b, gb)
}
