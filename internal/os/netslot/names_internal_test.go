package netslot

import (
	"net/netip"
	"testing"
)

// TestPrivateNames checks that guests get the records of private names only if they may reach a private network.
func TestPrivateNames(t *testing.T) {
	for _, allow := range [][]netip.Prefix{nil, {netip.MustParsePrefix("10.1.0.0/16")}} {
		p, err := New(Config{Allow: allow})
		if err != nil {
			t.Fatal(err)
		}
		if r := p.newResolver(); r.HidePrivateNames != (len(allow) == 0) || r.Closed == nil {
			t.Errorf("with %v open: HidePrivateNames is %v", allow, r.HidePrivateNames)
		}
	}
}
