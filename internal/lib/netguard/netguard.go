// Package netguard tells public IP addresses from others, and keeps dialers away from the others.
//
// A program that connects to addresses of its users' choice can reach more than its users: services on loopback and
// in private networks, and the metadata services at which clouds give secrets to their machines. A Guard is the
// Control function of a net.Dialer, which sees the addresses that names resolve to, so that no answer of a name server
// can lead around it.
//
// The package has no state. Its functions and values are safe for concurrent use.
package netguard

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
)

// ErrNotPublic means that an address is neither public nor in a network that is allowed.
var ErrNotPublic = errors.New("not a public address")

// reserved4 are the IPv4 ranges that are not the public internet (IANA special-purpose registry, RFC 6890), with the
// addresses of metadata services that lie outside of them.
var reserved4 = parse(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"224.0.0.0/4", "240.0.0.0/4",
	azure,
)

// azure is the address of the platform services of Azure, which is public by its number.
const azure = "168.63.129.16/32"

// metadata4 are the IPv4 addresses and ranges of the metadata services of clouds: link-local (most of them), Azure,
// Alibaba and Oracle.
var metadata4 = parse("169.254.0.0/16", azure, "100.100.100.200/32", "192.0.0.192/32")

// metadata6 are the IPv6 addresses of the metadata services of clouds: link-local, Amazon, Google and Oracle.
var metadata6 = parse("fe80::/10", "fd00:ec2::/32", "fd20:ce::/32", "fd00:c1::/32")

// public6 is the part of IPv6 that is assigned to the internet, and reserved6 what of it is not public: protocol
// assignments with Teredo, documentation, and 6to4, which holds an IPv4 address.
var (
	public6   = parse("2000::/3")
	reserved6 = parse("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)

// nat64 is the network whose addresses hold an IPv4 address in their last four bytes (RFC 6052).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

func parse(list ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

// ReservedIPv4 returns the IPv4 ranges that are not the public internet, with those of MetadataIPv4.
func ReservedIPv4() []netip.Prefix { return slices.Clone(reserved4) }

// MetadataIPv4 returns the IPv4 ranges of the metadata services of clouds.
func MetadataIPv4() []netip.Prefix { return slices.Clone(metadata4) }

// Guard allows connections to public addresses, and to the networks that it lists.
type Guard struct {
	// Allow lists further networks that may be reached. Metadata services stay closed even if they are in one.
	Allow []netip.Prefix
}

// Check returns an error that wraps ErrNotPublic if a may not be reached. It refuses addresses with a zone.
func (g Guard) Check(a netip.Addr) error {
	refused := fmt.Errorf("%s: %w", a, ErrNotPublic)
	if a.Zone() != "" {
		return refused
	}
	a = a.Unmap()
	if nat64.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	switch {
	case !a.IsValid(), contains(metadata4, a), contains(metadata6, a):
		return refused
	case contains(g.Allow, a):
		return nil
	case a.Is4() && !contains(reserved4, a), contains(public6, a) && !contains(reserved6, a):
		return nil
	}
	return refused
}

// Control is the Control function of a net.Dialer that makes connections the guard allows.
func (g Guard) Control(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%.100q: %w", address, ErrNotPublic)
	}
	return g.Check(to.Addr())
}

func contains(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}
