package nft

import (
	"net/netip"
	"slices"
)

// after returns the address after the last one of p; not valid if p ends at 255.255.255.255.
func after(p netip.Prefix) netip.Addr {
	last := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(last).Next()
}

// Merge turns IPv4 prefixes into a list that fits a Set. The result is masked and sorted, without overlaps, and
// adjacent prefixes are joined where they form a larger one.
func Merge(prefixes []netip.Prefix) []netip.Prefix {
	all := make([]netip.Prefix, len(prefixes))
	for i, p := range prefixes {
		all[i] = p.Masked()
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	var out []netip.Prefix
	for _, p := range all {
		if n := len(out); n > 0 && out[n-1].Overlaps(p) {
			continue
		}
		out = join(append(out, p))
	}
	return out
}

// join merges the end of a sorted list while its last two prefixes are the halves of one.
func join(list []netip.Prefix) []netip.Prefix {
	for n := len(list); n > 1; n = len(list) {
		a, b := list[n-2], list[n-1]
		if a.Bits() != b.Bits() || a.Bits() == 0 {
			return list
		}
		parent, err := a.Addr().Prefix(a.Bits() - 1)
		if err != nil || parent.Addr() != a.Addr() || !parent.Contains(b.Addr()) {
			return list
		}
		list = append(list[:n-2], parent)
	}
	return list
}

// Subtract returns the parts of the prefixes in list that are in none of holes, merged.
func Subtract(list, holes []netip.Prefix) []netip.Prefix {
	rest := Merge(list)
	for _, h := range holes {
		var next []netip.Prefix
		for _, p := range rest {
			next = append(next, without(p, h.Masked())...)
		}
		rest = next
	}
	return Merge(rest)
}

// without returns p without hole, as prefixes.
func without(p, hole netip.Prefix) []netip.Prefix {
	switch {
	case !p.Overlaps(hole):
		return []netip.Prefix{p}
	case hole.Bits() <= p.Bits():
		return nil
	}
	low := netip.PrefixFrom(p.Addr(), p.Bits()+1)
	high := netip.PrefixFrom(after(low), p.Bits()+1)
	return append(without(low, hole), without(high, hole)...)
}
