package netguard_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/netguard"
)

func TestCheck(t *testing.T) {
	private := netguard.Guard{Allow: []netip.Prefix{
		netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd12::/16"),
		netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"),
	}}
	for _, row := range []struct {
		addr          string
		plain, opened bool
	}{
		{"8.8.8.8", true, true},
		{"2606:4700::1111", true, true},
		{"::ffff:8.8.8.8", true, true},
		{"64:ff9b::808:808", true, true}, // NAT64 of a public address
		{"10.1.2.3", false, true},
		{"::ffff:10.1.2.3", false, true},
		{"64:ff9b::a01:203", false, true},
		{"127.0.0.1", false, true},
		{"::1", false, true},
		{"0.0.0.0", false, true},
		{"::", false, true},
		{"192.168.1.1", false, true},
		{"172.16.0.1", false, true},
		{"100.64.0.9", false, true},
		{"fd12::1", false, true},
		{"ff02::1", false, true},
		{"2002:a01:203::1", false, true}, // 6to4 of a private address
		{"2001:db8::1", false, true},
		{"169.254.169.254", false, false},
		{"::ffff:169.254.169.254", false, false},
		{"64:ff9b::a9fe:a9fe", false, false},
		{"168.63.129.16", false, false},
		{"100.100.100.200", false, false},
		{"192.0.0.192", false, false},
		{"fd00:ec2::254", false, false},
		{"fd20:ce::254", false, false},
		{"fe80::1", false, false},
		{"fe80::1%eth0", false, false},
		{"2606:4700::1111%eth0", false, false},
	} {
		a := netip.MustParseAddr(row.addr)
		for g, want := range map[*netguard.Guard]bool{{}: row.plain, &private: row.opened} {
			if err := g.Check(a); (err == nil) != want || err != nil && !errors.Is(err, netguard.ErrNotPublic) {
				t.Errorf("Check(%s) with %v allowed: got %v, want allowed: %v", a, g.Allow, err, want)
			}
		}
	}
	if err := private.Check(netip.Addr{}); err == nil {
		t.Error("the zero address is allowed")
	}
}

func TestControlSeesResolvedAddresses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d := net.Dialer{Control: netguard.Guard{}.Control}
	if c, err := d.Dial("tcp", "localhost:"+port); !errors.Is(err, netguard.ErrNotPublic) {
		t.Errorf("got %v, %v; want the name of a loopback address refused", c, err)
	}
	d.Control = netguard.Guard{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}.Control
	c, err := d.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := d.Control("tcp", "not an address", nil); !errors.Is(err, netguard.ErrNotPublic) {
		t.Errorf("got %v for a name, want it refused", err)
	}
}
