package nft

import (
	"fmt"
	"net/netip"
	"testing"
)

func prefixes(list ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

func TestMergeAndSubtract(t *testing.T) {
	for _, c := range []struct{ list, holes, want []netip.Prefix }{
		{prefixes("10.0.0.5/8", "10.1.0.0/16", "9.0.0.0/8"), nil, prefixes("9.0.0.0/8", "10.0.0.0/8")},
		{prefixes("224.0.0.0/4", "240.0.0.0/4"), nil, prefixes("224.0.0.0/3")},
		{prefixes("10.0.0.0/9", "10.128.0.0/9", "11.0.0.0/8"), nil, prefixes("10.0.0.0/7")},
		{prefixes("0.0.0.0/1", "128.0.0.0/1"), nil, prefixes("0.0.0.0/0")},
		{prefixes("10.0.0.0/30"), prefixes("10.0.0.2/32"), prefixes("10.0.0.0/31", "10.0.0.3/32")},
		{prefixes("10.0.0.0/30"), prefixes("10.0.0.0/8"), nil},
		{prefixes("255.255.255.254/31"), prefixes("255.255.255.255/32"), prefixes("255.255.255.254/32")},
		{prefixes("10.0.0.0/8"), prefixes("11.0.0.0/8"), prefixes("10.0.0.0/8")},
		{nil, prefixes("11.0.0.0/8"), nil},
	} {
		if got := Subtract(c.list, c.holes); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("Subtract(%v, %v) = %v, want %v", c.list, c.holes, got, c.want)
		}
	}
}

// FuzzSubtract compares the prefix arithmetic with lookups of single addresses.
func FuzzSubtract(f *testing.F) {
	f.Add(uint32(0x0a000000), 8, uint32(0x0a010000), 16, uint32(0x0a010203))
	f.Add(uint32(0), 0, uint32(0xffffffff), 32, uint32(0xffffffff))
	f.Fuzz(func(t *testing.T, a uint32, abits int, b uint32, bbits int, x uint32) {
		at := func(n uint32) netip.Addr {
			return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
		}
		p, hole := netip.PrefixFrom(at(a), abits&31), netip.PrefixFrom(at(b), bbits&31)
		got := false
		for _, q := range Subtract([]netip.Prefix{p}, []netip.Prefix{hole}) {
			got = got || q.Contains(at(x))
		}
		if want := p.Contains(at(x)) && !hole.Contains(at(x)); got != want {
			t.Errorf("%s without %s contains %s: %v", p, hole, at(x), got)
		}
	})
}

func TestElementsOfIntervals(t *testing.T) {
	e := Set{Prefixes: prefixes("10.0.0.0/8", "224.0.0.0/3")}.elements()
	if len(e) != 3 || !e[1].IntervalEnd || e[1].Key[0] != 11 || e[2].IntervalEnd {
		t.Errorf("got elements %+v, want two beginnings and the end of the first", e)
	}
}
