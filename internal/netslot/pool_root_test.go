//go:build root

package netslot

import (
	"context"
	"net/netip"
	"testing"

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
