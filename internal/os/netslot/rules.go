package netslot

import (
	"net/netip"
	"time"

	"github.com/pandastack/pandastack/internal/os/egress"
	"github.com/pandastack/pandastack/internal/os/nft"
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
	dotPort  = 853 // DNS over TLS and over QUIC
	webPort  = 80
	tlsPort  = 443
	// peekPort is where the proxy listens on the gateway address, when names decide.
	peekPort = 15001
	// learnedStay is the default of the set, whose elements have their own times.
	learnedStay = time.Hour
)

// Marks of connections, by which they are forgotten.
const (
	markGuest = 1          // in a slot: the guest began it
	markBase  = 0x50000000 // on the host: of a slot, with the number of its link
)

// Of a slot's packets that the kernel refuses, so many a second are told to this group of its log, by each rule.
const (
	logGroup  = 1
	toldEvery = 20
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
	chainPeek    = "peek"
	chainRefuse  = "refuse"
	setAllow     = "allow"
	setDeny      = "deny"
	setLearned   = "learned"
	setMode      = "mode" // tells a later process what the slot's resolver may answer
	modeOpen     = "open"
	modeRules    = "rules"
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
				{to, nft.Tracked(nft.New), nft.MarkByOut(markBase)},
			}},
			{Name: "forward", Base: base("filter", "forward", priorityFilter), Rules: []nft.Rule{
				{from, nft.Tracked(nft.New), nft.MarkByIn(markBase)},
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
// in as the beginning of a connection: an answer from the internet that no connection is known for is not. With told,
// what is refused is told to the log.
func slotRules(
	closed []netip.Prefix,
	hostIP, guestIP netip.Addr,
	rules *egress.Rules,
	known learned,
	told bool,
) nft.Table {
	tell := func(of ...nft.Term) []nft.Rule { // with who listens: where to, of some packets a second
		if !told {
			return nil
		}
		return []nft.Rule{append(of, nft.AtMost(toldEvery), nft.ToLog(logGroup))}
	}
	tap, veth := nft.InIface(tapName), nft.InIface(innerName)
	toTap, toVeth := nft.OutIface(tapName), nft.OutIface(innerName)
	one := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, 32) }
	guest := one(guestAddress.Addr())
	base := func(kind, hook string, priority int, drop bool) *nft.Base {
		return &nft.Base{Type: kind, Hook: hook, Priority: priority, Drop: drop}
	}
	sets, chains := policyRules(rules, known)
	return nft.Table{Name: slotTable,
		Sets: append([]nft.Set{{Name: setClosed, Prefixes: closed}}, sets...),
		Chains: append([]nft.Chain{
			{
				Name: "guard",
				Base: base("filter", "prerouting", priorityRaw, false),
				Rules: append(tell(tap, nft.IPv6()), []nft.Rule{
					{nft.IPv6(), nft.Drop()},
					{tap, nft.EtherSourceNot(guestMAC), nft.Drop()},
					{tap, nft.SourceNot(guest), nft.Drop()},
				}...),
			},
			{Name: "input", Base: base("filter", "input", priorityFilter, true), Rules: append([]nft.Rule{
				{tap, nft.Dest(one(gateway)), nft.Jump(chainNames)},
				{veth, nft.Tracked(nft.Established | nft.Related), nft.Reply(), nft.Accept()}, // to the proxy
			}, tell(tap)...)},
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
				{veth, nft.Source(one(hostIP)), nft.Dest(one(guestIP)), nft.DNAT(guestAddress.Addr())},
				{tap, nft.MarkTracked(markGuest)}, // of new connections: others do not come here
				{tap, nft.Jump(chainPeek)},
			}},
			{Name: "leave", Base: base("nat", "postrouting", prioritySNAT, false), Rules: []nft.Rule{
				{toVeth, nft.Source(guest), nft.SNAT(guestIP)},
			}},
			{Name: chainRefuse, Rules: append(append([]nft.Rule{{nft.Count()}}, tell()...), []nft.Rule{
				{nft.Protocol("tcp"), nft.RejectTCP()},
				{nft.Reject()},
			}...)},
		}, chains...)}
}

// learned are addresses that are open by their names, and for how long.
type learned struct {
	addrs []netip.Addr
	stay  time.Duration
}

// policyRules are the sets and chains of a slot that change with its policy: what the guest may begin, which
// connections the proxy looks into, which answers come back, and what this process hears on the gateway.
// What is refused is answered, so that programs in the guest do not wait.
func policyRules(rules *egress.Rules, known learned) ([]nft.Set, []nft.Chain) {
	refuse := nft.Jump(chainRefuse)
	allow, deny := rules.Networks()
	mode := modeRules
	if rules.AllowsAll() && !rules.ByName() && len(allow) == 0 {
		mode = modeOpen
	}
	sets := []nft.Set{
		{Name: setMode, IsNames: true, Names: []string{mode}},
		{Name: setAllow, Prefixes: nft.Merge(allow)},
		{Name: setDeny, Prefixes: nft.Merge(deny)},
		{Name: setLearned, Timeout: max(known.stay, learnedStay), Addrs: known.addrs},
	}
	answers := nft.Chain{Name: chainAnswers, Rules: []nft.Rule{{nft.Accept()}}}
	if rules.DeniesAll() {
		answers.Rules = []nft.Rule{{nft.Drop()}}
	}
	out := []nft.Rule{
		{nft.DestIn(setClosed), refuse},
		{nft.TCP(smtpPort), refuse},
		{nft.ClampMSS()},
		{nft.DestIn(setAllow), nft.Accept()},
	}
	if rules.ByName() {
		for _, t := range []nft.Term{nft.UDP(tlsPort), nft.UDP(dnsPort), nft.TCP(dnsPort), nft.UDP(dotPort), nft.TCP(dotPort)} {
			out = append(out, nft.Rule{t, refuse})
		}
	}
	if rules.AllowsNames() {
		out = append(out, nft.Rule{nft.DestIn(setLearned), nft.Protocol("udp"), nft.Accept()},
			nft.Rule{nft.DestIn(setLearned), nft.Protocol("icmp"), nft.Accept()})
	}
	out = append(out, nft.Rule{nft.DestIn(setDeny), refuse})
	if rules.DeniesOthers() {
		out = append(out, nft.Rule{refuse}, nft.Rule{nft.Drop()})
	} else {
		out = append(out, nft.Rule{nft.Accept()})
	}
	return sets, []nft.Chain{{Name: chainEgress, Rules: out}, answers, namesChain(), peekChain(rules)}
}

// namesChain lets the guest speak to the resolver, and to the proxy where its connections were turned to it.
func namesChain() nft.Chain {
	return nft.Chain{Name: chainNames, Rules: []nft.Rule{
		{nft.UDP(dnsPort), nft.Accept()},
		{nft.TCP(dnsPort), nft.Accept()},
		{nft.TCP(peekPort), nft.Translated(), nft.Accept()},
	}}
}

// peekChain turns connections to the proxy: those to addresses that were handed out for allowed names, and
// those of the web, where names are denied.
func peekChain(rules *egress.Rules) nft.Chain {
	c := nft.Chain{Name: chainPeek}
	if !rules.ByName() {
		return c
	}
	c.Rules = []nft.Rule{{nft.DestIn(setClosed), nft.Return()}, {nft.DestIn(setAllow), nft.Return()}}
	for _, port := range []uint16{smtpPort, dnsPort, dotPort} {
		c.Rules = append(c.Rules, nft.Rule{nft.TCP(port), nft.Return()})
	}
	if rules.AllowsNames() {
		c.Rules = append(c.Rules, nft.Rule{nft.DestIn(setLearned), nft.Protocol("tcp"), nft.Redirect(peekPort)})
	}
	c.Rules = append(c.Rules, nft.Rule{nft.DestIn(setDeny), nft.Return()})
	if !rules.DeniesOthers() && rules.DeniesNames() {
		for _, port := range []uint16{webPort, tlsPort} {
			c.Rules = append(c.Rules, nft.Rule{nft.TCP(port), nft.Redirect(peekPort)})
		}
	}
	return c
}
