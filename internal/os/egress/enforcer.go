package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Limits of the addresses that a guest may learn.
const (
	minStay      = 15 * time.Minute // an address stays open at least this long after its name was resolved
	maxStay      = 24 * time.Hour
	maxAddresses = 4096 // learned pairs of name and address
)

// Kinds of decisions.
const (
	KindName    = "name"    // a name was to be resolved
	KindTLS     = "tls"     // a TLS connection named its server
	KindHTTP    = "http"    // an HTTP request named its host
	KindTCP     = "tcp"     // a connection of another protocol, or without a name
	KindPackets = "packets" // packets refused by the kernel since the last decision of this kind
	KindRefused = "refused" // the destination of one such packet
)

// Decision is one decision about a guest's traffic, for a log.
type Decision struct {
	Kind    string
	Name    string         // "": none was given
	Address netip.AddrPort // the destination; zero for KindName
	// Protocol of KindRefused: "tcp", "udp", "icmp", or its number.
	Protocol string
	Verdict  Verdict
	Reason   string // why a connection is denied although its name is allowed; "" otherwise
	Packets  uint64 // the number of packets, for KindPackets
}

// EnforcerConfig configures an Enforcer.
type EnforcerConfig struct {
	Closed []netip.Prefix // ranges that no policy opens
	// Open lets connections to addresses pass to the proxy, for the given time. It is called before the guest learns
	// the addresses. May be nil.
	Open func(ctx context.Context, addrs []netip.Addr, stay time.Duration) error
	// Decided is called with every decision; it must not block. May be nil.
	Decided func(Decision)
}

// Enforcer applies the rules of one guest and records which addresses it learned by which name.
type Enforcer struct {
	cfg EnforcerConfig

	mu      sync.Mutex
	rules   *Rules                              // +checklocks:mu
	learned map[string]map[netip.Addr]time.Time // until when
	count   int                                 // pairs in learned
}

// NewEnforcer returns an enforcer of rules.
func NewEnforcer(cfg EnforcerConfig, rules *Rules) *Enforcer {
	return &Enforcer{cfg: cfg, rules: rules, learned: map[string]map[netip.Addr]time.Time{}}
}

// SetRules changes the rules, from the next decision on. Addresses learned by names that are still allowed are kept.
func (g *Enforcer) SetRules(rules *Rules) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rules = rules
	for name, addrs := range g.learned {
		if !rules.Name(name).Allowed {
			g.count -= len(addrs)
			delete(g.learned, name)
		}
	}
}

// Known lists the addresses that are open by their names now, and for how long the last of them is.
func (g *Enforcer) Known() ([]netip.Addr, time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var list []netip.Addr
	var stay time.Duration
	for _, addrs := range g.learned {
		for a, until := range addrs {
			if left := time.Until(until); left > 0 {
				list = append(list, a)
				stay = max(stay, left)
			}
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list), stay
}

func (g *Enforcer) decide(d Decision) bool {
	if g.cfg.Decided != nil {
		g.cfg.Decided(d)
	}
	return d.Verdict.Allowed && d.Reason == ""
}

// AllowName reports whether the guest may resolve a name.
func (g *Enforcer) AllowName(name string) bool {
	g.mu.Lock()
	v := g.rules.Name(name)
	g.mu.Unlock()
	return g.decide(Decision{Kind: KindName, Name: name, Verdict: v})
}

// Learned opens the permitted addresses of addrs for connections by name, and returns them.
func (g *Enforcer) Learned(
	ctx context.Context,
	name string,
	addrs []netip.Addr,
	ttl time.Duration,
) ([]netip.Addr, error) {
	usable := slices.DeleteFunc(slices.Clone(addrs), g.isClosed)
	if len(usable) == 0 {
		return nil, nil
	}
	stay := min(max(ttl, minStay), maxStay)
	if err := g.remember(name, usable, stay); err != nil {
		return nil, err
	}
	if g.cfg.Open != nil {
		if err := g.cfg.Open(ctx, usable, stay); err != nil {
			return nil, fmt.Errorf("open the addresses of %s: %w", name, err)
		}
	}
	return usable, nil
}

func (g *Enforcer) isClosed(a netip.Addr) bool {
	return !a.Is4() || slices.ContainsFunc(g.cfg.Closed, func(p netip.Prefix) bool { return p.Contains(a) })
}

// errTooMany means that a guest learned more addresses than the limit.
var errTooMany = errors.New("too many addresses learned by name")

func (g *Enforcer) remember(name string, addrs []netip.Addr, stay time.Duration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.count+len(addrs) > maxAddresses {
		g.expire(now)
	}
	if g.count+len(addrs) > maxAddresses {
		return errTooMany
	}
	have := g.learned[name]
	if have == nil {
		have = map[netip.Addr]time.Time{}
		g.learned[name] = have
	}
	for _, a := range addrs {
		if _, known := have[a]; !known {
			g.count++
		}
		if until := now.Add(stay); have[a].Before(until) {
			have[a] = until
		}
	}
	return nil
}

// expire forgets expired addresses. The caller holds mu.
func (g *Enforcer) expire(now time.Time) {
	for name, addrs := range g.learned {
		for a, until := range addrs {
			if !until.After(now) {
				delete(addrs, a)
				g.count--
			}
		}
		if len(addrs) == 0 {
			delete(g.learned, name)
		}
	}
}

// AllowConn decides on a connection that names its server as kind describes; name "" means no name.
func (g *Enforcer) AllowConn(kind, name string, to netip.AddrPort) bool {
	return g.decide(g.connection(kind, name, to))
}

// StillAllowed is AllowConn for an existing connection, after the rules changed. It does not log allowed ones.
func (g *Enforcer) StillAllowed(kind, name string, to netip.AddrPort) bool {
	d := g.connection(kind, name, to)
	return d.Verdict.Allowed && d.Reason == "" || g.decide(d)
}

// mayConnect reports whether any connection to an address could be allowed. It is not logged.
func (g *Enforcer) mayConnect(to netip.AddrPort) bool {
	d := g.connection(KindTCP, "", to)
	return d.Verdict.Allowed && d.Reason == ""
}

func (g *Enforcer) connection(kind, name string, to netip.AddrPort) Decision {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := Decision{Kind: kind, Name: name, Address: to}
	if g.isClosed(to.Addr()) {
		d.Reason = "the address is closed"
		return d
	}
	if d.Verdict = g.rules.Address(to.Addr()); d.Verdict.Allowed && d.Verdict.Rule != "" {
		return d // an entry allows its address: no name is needed
	}
	byAddress := d.Verdict
	if name == "" {
		return g.unnamed(d, byAddress)
	}
	d.Verdict = g.rules.Name(name)
	switch {
	case !d.Verdict.Allowed:
	case d.Verdict.Rule != "": // allowed by an entry: then it must be the name's own address
		if !g.learned[name][to.Addr()].After(time.Now()) {
			d.Reason = "the address was not handed out for this name"
		}
	default:
		d.Verdict = byAddress
	}
	return d
}

// unnamed decides on a connection that names no server. Other protocols are allowed to addresses learned from any
// name, but web connections must name their server if the policy allows names.
func (g *Enforcer) unnamed(d Decision, byAddress Verdict) Decision {
	if byAddress.Allowed {
		return d
	}
	if d.Kind != KindTCP || isWebPort(d.Address.Port()) {
		d.Reason = "no name was given"
		return d
	}
	for name, addrs := range g.learned {
		if v := g.rules.Name(name); v.Allowed && v.Rule != "" && addrs[d.Address.Addr()].After(time.Now()) {
			d.Verdict = v
			return d
		}
	}
	d.Reason = "the address was not handed out for an allowed name"
	return d
}

// isWebPort reports whether a port is one of the web's.
func isWebPort(port uint16) bool { return port == 80 || port == 443 }
