//go:build root

package netslot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/os/nft"
)

// drop lets a port of the test's internet swallow packets, so that connections to it hang.
func (w *fixture) drop(port uint16) {
	w.t.Helper()
	w.must(within(w.internet, func() error {
		return nft.Replace(nft.Table{Name: "drop", Chains: []nft.Chain{{
			Name:  "input",
			Base:  &nft.Base{Type: "filter", Hook: "input", Priority: priorityFilter},
			Rules: []nft.Rule{{nft.TCP(port), nft.Drop()}},
		}}})
	}))
}

// connecting returns the number of TCP connections of a namespace that are not established yet.
func (w *fixture) connecting(ns *os.File) (n int) {
	w.t.Helper()
	w.must(within(ns, func() error {
		b, err := os.ReadFile("/proc/thread-self/net/tcp")
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 3 && f[3] == "02" { // SYN_SENT
				n++
			}
		}
		return err
	}))
	return n
}

func threads(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(b, []byte("Threads:"))
	n, err := strconv.Atoi(string(bytes.Fields(rest)[0]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestHangingDialsHoldNoThreads dials a server that does not respond, hundreds of times at once.
func TestHangingDialsHoldNoThreads(t *testing.T) {
	w := newFixture(t)
	p := w.pool(nil)
	defer w.closePool(p)
	s := w.take(p)
	defer w.give(p, s, nil)
	w.drop(9)
	const dials = 400
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("over")
	before := threads(t)
	var wg sync.WaitGroup
	for range dials {
		wg.Go(func() {
			c, err := s.dialOut(ctx, netip.MustParseAddrPort(public+":9"))
			if err == nil {
				c.Close()
			}
			if !errors.Is(err, over) {
				t.Errorf("got %v, want the cause of the end", err)
			}
		})
	}
	ns, err := openNamespace(p.linkName(s.Index))
	w.must(err)
	defer ns.Close()
	w.until(fmt.Sprint(dials, " dials in progress"), func() bool { return w.connecting(ns) == dials })
	if n := threads(t) - before; n > 50 {
		t.Errorf("%d dials hold %d more threads", dials, n)
	}
	cancel(over)
	wg.Wait()
}

// TestDialOut connects from a slot: to a server, to a closed port and to nowhere.
func TestDialOut(t *testing.T) {
	w := newFixture(t)
	p := w.pool(nil)
	defer w.closePool(p)
	s := w.take(p)
	defer w.give(p, s, nil)
	c, err := s.dialOut(t.Context(), netip.MustParseAddrPort(public+":80"))
	w.must(err)
	defer c.Close()
	if _, ok := c.(*net.TCPConn); !ok {
		t.Errorf("got a %T, want a TCP connection", c)
	}
	if _, err := line(c, patience); err != nil {
		t.Errorf("the server's greeting: %v", err)
	}
	w.must(echo(c, patience))
	if c, err := s.dialOut(t.Context(), netip.MustParseAddrPort(public+":81")); err == nil {
		c.Close()
		t.Error("a closed port accepted a connection")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if c, err := s.dialOut(ctx, netip.MustParseAddrPort(public+":80")); err == nil {
		c.Close()
		t.Error("dial with an ended context: got no error")
	}
}
