package netslot

import (
	"net/netip"
	"time"

	"github.com/pandastack/pandastack/internal/lib/netguard"
	"github.com/pandastack/pandastack/internal/os/egress"
	"github.com/pandastack/pandastack/internal/os/nft"
)

// Priorities of the hooks, from linux/netfilter_ipv4.h.
const (
	priorityRaw    = -300
	priorityMangle = -150
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
	// proxyPort is where the proxy listens on the gateway address, if the policy contains names.
	proxyPort = 15001
	// learnedTTL is the default timeout of the set, whose elements have their own.
	learnedTTL = time.Hour
)

// Marks of connections, by which they are selected for removal.
const (
	markGuest = 1          // in a slot: opened by the guest
	markBase  = 0x50000000 // on the host: of a slot, with the index of its link
)

// Each rule logs at most logsPerSecond refused packets a second to this group of the slot's log.
const (
	logGroup      = 1
	logsPerSecond = 20
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
	chainLimits  = "limits"
	chainFlows   = "flows"
	chainExcess  = "excess"
	setAllow     = "allow"
	setDeny      = "deny"
	setLearned   = "learned"
	setMode      = "mode" // tells a later process which names the slot's resolver may resolve
	modeOpen     = "open"
	modeRules    = "rules"
)

// closed returns the ranges that no guest reaches: all that is not public, without the ranges that the operator opened.
// The slots' own range and the metadata services of clouds stay closed in any case.
func closed(allow []netip.Prefix, slots netip.Prefix) []netip.Prefix {
	open := nft.Subtract(netguard.ReservedIPv4(), allow)
	return nft.Merge(append(append(open, slots), netguard.MetadataIPv4()...))
}

// hostRules returns the table on the host: a second check of the slots' traffic, and the way out.
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

// slotRules returns the table in a slot's namespace. Only the host's own end of the slot may open connections to the
// guest: a reply from the internet without a known connection may not. If logged is set, refused packets are logged.
func slotRules(
	closed []netip.Prefix,
	hostIP, guestIP netip.Addr,
	rules *egress.Rules,
	known learned,
	most connections,
	service uint16,
	logged bool,
) nft.Table {
	log := func(of ...nft.Term) []nft.Rule { return logRules(logged, of...) }
	tap, veth := nft.InIface(tapName), nft.InIface(innerName)
	toTap, toVeth := nft.OutIface(tapName), nft.OutIface(innerName)
	one := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, 32) }
	guest := one(guestAddress.Addr())
	base := func(kind, hook string, priority int, drop bool) *nft.Base {
		return &nft.Base{Type: kind, Hook: hook, Priority: priority, Drop: drop}
	}
	sets, chains := policyRules(rules, known, service)
	chains = append(chains, flowChains(most, logged)...)
	return nft.Table{Name: slotTable,
		Sets: append([]nft.Set{{Name: setClosed, Prefixes: closed}}, sets...),
		Chains: append([]nft.Chain{
			{
				Name: "guard",
				Base: base("filter", "prerouting", priorityRaw, false),
				Rules: append(log(tap, nft.IPv6()), []nft.Rule{
					{nft.IPv6(), nft.Drop()},
					{tap, nft.EtherSourceNot(guestMAC), nft.Drop()},
					{tap, nft.SourceNot(guest), nft.Drop()},
					{tap, nft.Dest(one(gateway)), nft.UDP(dnsPort), nft.NoTrack()}, // the resolver has own limits
				}...),
			},
			{Name: "replies", Base: base("filter", "output", priorityRaw, false), Rules: []nft.Rule{
				{toTap, nft.Source(one(gateway)), nft.UDPFrom(dnsPort), nft.NoTrack()},
			}},
			{Name: "input", Base: base("filter", "input", priorityFilter, true), Rules: append([]nft.Rule{
				{tap, nft.Dest(one(gateway)), nft.Jump(chainNames)},
				{veth, nft.Tracked(nft.Established | nft.Related), nft.Reply(), nft.Accept()}, // to the proxy
			}, log(tap)...)},
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
				{tap, nft.MarkTracked(markGuest)}, // new connections only: others do not come here
				{tap, nft.Jump(chainPeek)},
			}},
			{Name: "leave", Base: base("nat", "postrouting", prioritySNAT, false), Rules: []nft.Rule{
				{toVeth, nft.Source(guest), nft.SNAT(guestIP)},
			}},
			{Name: chainRefuse, Rules: append(append([]nft.Rule{{nft.Count()}}, log()...), []nft.Rule{
				{nft.Protocol("tcp"), nft.RejectTCP()},
				{nft.Reject()},
			}...)},
		}, chains...)}
}

// logRules returns the rule that logs the destinations of some packets a second, if they are logged.
func logRules(logged bool, of ...nft.Term) []nft.Rule {
	if !logged {
		return nil
	}
	return []nft.Rule{append(of, nft.AtMost(logsPerSecond), nft.ToLog(logGroup))}
}

// flowChains returns the chains that limit the connections which the guest opens. They see the first packets of
// connections after they were looked up, and before they are tracked: a packet that they drop leaves nothing behind.
func flowChains(most connections, logged bool) []nft.Chain {
	excess := append([]nft.Rule{{nft.Count()}}, logRules(logged)...)
	return []nft.Chain{
		{
			Name:  chainLimits,
			Base:  &nft.Base{Type: "filter", Hook: "prerouting", Priority: priorityMangle},
			Rules: []nft.Rule{{nft.InIface(tapName), nft.Tracked(nft.New), nft.Jump(chainFlows)}},
		},
		{Name: chainExcess, Rules: append(excess, nft.Rule{nft.Drop()})},
		flowChain(most),
	}
}

// flowChain returns the chain with the limits. The rate comes first: counting is more work.
func flowChain(most connections) nft.Chain {
	c := nft.Chain{Name: chainFlows}
	if n := uint32(most.perSecond); n > 0 {
		c.Rules = append(c.Rules, nft.Rule{nft.Over(n, n*burstSeconds), nft.Jump(chainExcess)})
	}
	if n := uint32(most.open); n > 0 {
		c.Rules = append(c.Rules, nft.Rule{nft.ConnectionsOver(n), nft.Jump(chainExcess)})
	}
	return c
}

// learned are addresses that are open by their names, and for how long.
type learned struct {
	addrs []netip.Addr
	stay  time.Duration
}

// policyRules returns the sets and chains of a slot that change with its policy: the connections that the guest may
// open, those that the proxy inspects, the replies that may return, and the packets that this process receives on the
// gateway. Refused packets get a reply, so that programs in the guest do not wait.
func policyRules(rules *egress.Rules, known learned, service uint16) ([]nft.Set, []nft.Chain) {
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
		{Name: setLearned, Timeout: max(known.stay, learnedTTL), Addrs: known.addrs},
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
		for _, t := range []nft.Term{
			nft.UDP(tlsPort), nft.UDP(dnsPort), nft.TCP(dnsPort), nft.UDP(dotPort), nft.TCP(dotPort),
		} {
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
	return sets, []nft.Chain{{Name: chainEgress, Rules: out}, answers, namesChain(rules, service), proxyChain(rules)}
}

// namesChain lets the guest reach the resolver, the proxy if its connections were redirected to it, and the service
// unless it may reach nothing.
func namesChain(rules *egress.Rules, service uint16) nft.Chain {
	c := nft.Chain{Name: chainNames, Rules: []nft.Rule{
		{nft.UDP(dnsPort), nft.Accept()},
		{nft.TCP(dnsPort), nft.Accept()},
		{nft.TCP(proxyPort), nft.Translated(), nft.Accept()},
	}}
	if service != 0 && !rules.DeniesAll() {
		c.Rules = append(c.Rules, nft.Rule{nft.TCP(service), nft.Accept()})
	}
	return c
}

// proxyChain redirects connections to the proxy: those to addresses learned from allowed names and, if names are
// denied, those to the ports of the web.
func proxyChain(rules *egress.Rules) nft.Chain {
	c := nft.Chain{Name: chainPeek}
	if !rules.ByName() {
		return c
	}
	c.Rules = []nft.Rule{{nft.DestIn(setClosed), nft.Return()}, {nft.DestIn(setAllow), nft.Return()}}
	for _, port := range []uint16{smtpPort, dnsPort, dotPort} {
		c.Rules = append(c.Rules, nft.Rule{nft.TCP(port), nft.Return()})
	}
	if rules.AllowsNames() {
		c.Rules = append(c.Rules, nft.Rule{nft.DestIn(setLearned), nft.Protocol("tcp"), nft.Redirect(proxyPort)})
	}
	c.Rules = append(c.Rules, nft.Rule{nft.DestIn(setDeny), nft.Return()})
	if !rules.DeniesOthers() && rules.DeniesNames() {
		for _, port := range []uint16{webPort, tlsPort} {
			c.Rules = append(c.Rules, nft.Rule{nft.TCP(port), nft.Redirect(proxyPort)})
		}
	}
	return c
}
