package netslot

import (
	"net/netip"

	"github.com/pandastack/pandastack/internal/nft"
)

// Priorities of the hooks, from linux/netfilter_ipv4.h.
const (
	priorityRaw    = -300
	priorityDNAT   = -100
	priorityFilter = 0
	prioritySNAT   = 100
)

const (
	dnsPort  = 53
	smtpPort = 25
)

// Names in the tables.
const (
	slotTable    = "slot"
	setClosed    = "closed"
	setUplinks   = "uplinks"
	setSwitched  = "switched"
	chainEgress  = "egress"
	chainAnswers = "answers"
	chainNames   = "names"
)

// reserved are the IPv4 ranges that are not the public internet (IANA special-purpose registry, RFC 6890).
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("192.88.99.0/24"),
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("240.0.0.0/4"),
}

// closed is what no guest reaches, less what the operator opened. The slots' own range and the metadata
// range stay closed whatever the operator opened.
func closed(allow []netip.Prefix, slots netip.Prefix) []netip.Prefix {
	metadata := netip.MustParsePrefix("169.254.0.0/16")
	return nft.Merge(append(nft.Subtract(reserved, allow), slots, metadata))
}

// hostRules is the table on the host: the second wall around the slots, and the way out.
func hostRules(c Config, uplinks, switched []string) nft.Table {
	slots := c.Prefix + "-*"
	from, to := nft.InIface(slots), nft.OutIface(slots)
	base := func(kind, hook string, priority int) *nft.Base {
		return &nft.Base{Type: kind, Hook: hook, Priority: priority}
	}
	return nft.Table{Name: c.Prefix,
		Sets: []nft.Set{
			{Name: setClosed, Prefixes: closed(c.Allow, c.Range)},
			{Name: setUplinks, IsNames: true, Names: uplinks},
			{Name: setSwitched, IsNames: true, Names: switched},
		},
		Chains: []nft.Chain{
			{Name: "guard", Base: base("filter", "prerouting", priorityRaw), Rules: []nft.Rule{
				{from, nft.IPv6(), nft.Drop()},
				{from, nft.SourceNot(c.Range), nft.Drop()},
			}},
			{Name: "input", Base: base("filter", "input", priorityFilter), Rules: []nft.Rule{
				{from, nft.Tracked(nft.Established | nft.Related), nft.Reply(), nft.Accept()},
				{from, nft.Drop()},
			}},
			{Name: "output", Base: base("filter", "output", priorityFilter), Rules: []nft.Rule{
				{to, nft.IPv6(), nft.Drop()},
			}},
			{Name: "forward", Base: base("filter", "forward", priorityFilter), Rules: []nft.Rule{
				{from, nft.Jump("out")},
				{to, nft.Tracked(nft.Established | nft.Related), nft.Reply(), nft.Accept()},
				{to, nft.Drop()},
			}},
			{Name: "out", Rules: []nft.Rule{
				{nft.OutIfaceNotIn(setUplinks), nft.Drop()},
				{nft.DestIn(setClosed), nft.Drop()},
				{nft.TCP(smtpPort), nft.Drop()},
				{nft.ClampMSS()},
				{nft.Accept()},
			}},
			{Name: "leave", Base: base("nat", "postrouting", prioritySNAT), Rules: []nft.Rule{
				{nft.OutIfaceIn(setUplinks), nft.Source(c.Range), nft.Masquerade()},
			}},
		}}
}

// slotRules is the table in a slot's namespace. Only what comes from the host's own end of the slot is let
// in as the beginning of a connection: an answer from the internet that no connection is known for is not.
func slotRules(closed []netip.Prefix, hostIP, guestIP netip.Addr, egress bool) nft.Table {
	tap, veth := nft.InIface(tapName), nft.InIface(innerName)
	toTap, toVeth := nft.OutIface(tapName), nft.OutIface(innerName)
	guest := netip.PrefixFrom(guestAddress.Addr(), 32)
	base := func(kind, hook string, priority int, drop bool) *nft.Base {
		return &nft.Base{Type: kind, Hook: hook, Priority: priority, Drop: drop}
	}
	return nft.Table{Name: slotTable,
		Sets: []nft.Set{{Name: setClosed, Prefixes: closed}},
		Chains: append([]nft.Chain{
			{Name: "guard", Base: base("filter", "prerouting", priorityRaw, false), Rules: []nft.Rule{
				{nft.IPv6(), nft.Drop()},
				{tap, nft.EtherSourceNot(guestMAC), nft.Drop()},
				{tap, nft.SourceNot(guest), nft.Drop()},
			}},
			{Name: "input", Base: base("filter", "input", priorityFilter, true), Rules: []nft.Rule{
				{tap, nft.Dest(netip.PrefixFrom(gateway, 32)), nft.Jump(chainNames)},
			}},
			{Name: "output", Base: base("filter", "output", priorityFilter, false), Rules: []nft.Rule{
				{nft.IPv6(), nft.Drop()},
			}},
			{Name: "forward", Base: base("filter", "forward", priorityFilter, true), Rules: []nft.Rule{
				{nft.Tracked(nft.Invalid), nft.Drop()},
				{veth, toTap, nft.Original(), nft.Translated(), nft.Accept()},
				{tap, toVeth, nft.Reply(), nft.Accept()},
				{veth, toTap, nft.Reply(), nft.Jump(chainAnswers)},
				{tap, toVeth, nft.Original(), nft.Jump(chainEgress)},
			}},
			{Name: "arrive", Base: base("nat", "prerouting", priorityDNAT, false), Rules: []nft.Rule{
				{veth, nft.Source(netip.PrefixFrom(hostIP, 32)), nft.Dest(netip.PrefixFrom(guestIP, 32)), nft.DNAT(guestAddress.Addr())},
			}},
			{Name: "leave", Base: base("nat", "postrouting", prioritySNAT, false), Rules: []nft.Rule{
				{toVeth, nft.Source(guest), nft.SNAT(guestIP)},
			}},
		}, egressChains(egress)...)}
}

// egressChains are the chains of a slot that change while it lives: what the guest may begin, which
// answers come back to it, and whether the resolver hears it.
func egressChains(on bool) []nft.Chain {
	if !on {
		shut := []nft.Rule{{nft.Drop()}}
		return []nft.Chain{
			{Name: chainEgress, Rules: shut},
			{Name: chainAnswers, Rules: shut},
			{Name: chainNames, Rules: shut},
		}
	}
	return []nft.Chain{
		{Name: chainEgress, Rules: []nft.Rule{
			{nft.DestIn(setClosed), nft.Drop()},
			{nft.TCP(smtpPort), nft.Drop()},
			{nft.ClampMSS()},
			{nft.Accept()},
		}},
		{Name: chainAnswers, Rules: []nft.Rule{{nft.Accept()}}},
		{Name: chainNames, Rules: []nft.Rule{
			{nft.UDP(dnsPort), nft.Accept()},
			{nft.TCP(dnsPort), nft.Accept()},
		}},
	}
}
