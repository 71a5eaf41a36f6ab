//go:build root

package netslot

import (
	"context"
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/pandastack/pandastack/internal/nft"
)

func TestGuestReachesTheInternetAndNothingElse(t *testing.T) {
	w := newWorld(t)
	w.serve(w.host, "0.0.0.0", 8080)
	p := w.pool(nil)
	defer w.closePool(p)
	a, b := w.take(p), w.take(p)
	defer func() { w.must(p.Give(context.Background(), a)); w.must(p.Give(context.Background(), b)) }()
	ga, gb := w.guest(a, "pntga"), w.guest(b, "pntgb")
	defer ga.stop()
	defer gb.stop()
	w.serve(ga.ns, "192.168.241.2", 9000)
	w.serve(gb.ns, "192.168.241.2", 9000)

	if saw := w.reaches(ga.ns, public, 80); netip.MustParseAddrPort(saw).Addr().String() != "198.100.1.2" {
		t.Errorf("the internet saw %s, not the host's uplink", saw)
	}
	w.reaches(w.host, a.GuestIP.String(), 9000)
	w.reaches(w.host, b.GuestIP.String(), 9000)

	hostA, _ := place(p.Range(), a.Index)
	for _, to := range append(everywhere[1:], "198.100.1.2", hostA.String(), "192.168.241.1", "127.0.0.1") {
		w.reachesNot(ga.ns, to, 80)
		w.reachesNot(ga.ns, to, 8080)
	}
	w.reachesNot(ga.ns, b.GuestIP.String(), 9000)
	w.reachesNot(ga.ns, public, 25)
	w.reachesNot(w.internet, a.GuestIP.String(), 9000)
}

func TestCloseLeavesNothing(t *testing.T) {
	w := newWorld(t)
	p := w.pool(nil)
	s := w.take(p)
	w.must(p.Give(context.Background(), s))
	w.closePool(p)
	if left := w.leftovers(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	w.must(within(w.host, func() error {
		if ok, err := nft.Exists(testPrefix); err != nil || ok {
			t.Errorf("nft table is there: %v, %v", ok, err)
		}
		return nil
	}))
}

func TestNamesAreAnsweredOnTheGateway(t *testing.T) {
	w := newWorld(t)
	w.names(map[string]string{"example.test.": public})
	p := w.pool(nil)
	defer w.closePool(p)
	s := w.take(p)
	defer func() { w.must(p.Give(context.Background(), s)) }()
	g := w.guest(s, "pntga")
	defer g.stop()
	for _, network := range []string{"udp", "tcp"} {
		got, err := ask(g.ns, network, s.DNS.String(), "example.test.", dns.TypeA)
		if err != nil || len(got.Answer) != 1 || got.Answer[0].(*dns.A).A.String() != public {
			t.Errorf("by %s: %v, %v", network, got, err)
		}
	}
	got, err := ask(g.ns, "udp", s.DNS.String(), "nowhere.test.", dns.TypeA)
	if err != nil || got.Rcode != dns.RcodeNameError {
		t.Errorf("unknown name: %v, %v", got, err)
	}
}

func TestEgressSwitchesLive(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.names(map[string]string{"example.test.": public})
	p := w.pool(nil)
	defer w.closePool(p)
	s := w.take(p)
	defer func() { w.must(p.Give(ctx, s)) }()
	g := w.guest(s, "pntga")
	defer g.stop()
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
	w.reachesNot(g.ns, public, 80)
	if got, err := ask(g.ns, "udp", s.DNS.String(), "example.test.", dns.TypeA); err == nil {
		t.Errorf("a name was answered with egress off: %v", got)
	}
	w.must(echo(fromHost, patience))
	w.reaches(w.host, s.GuestIP.String(), 9000)

	w.must(s.SetEgress(ctx, true))
	w.reaches(g.ns, public, 80)
}
