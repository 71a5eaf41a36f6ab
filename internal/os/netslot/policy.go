package netslot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/os/egress"
	"github.com/pandastack/pandastack/internal/os/nft"
)

// soOriginalDst is SO_ORIGINAL_DST of linux/netfilter_ipv4.h.
const soOriginalDst = 80

// openRules returns the rules of a slot without a policy. The empty policy always compiles.
func openRules() *egress.Rules {
	r, err := egress.Compile(egress.Policy{})
	if err != nil {
		return &egress.Rules{}
	}
	return r
}

// SetEgress opens or closes all egress, at once and for existing connections too. It sets the policy that allows
// everything, or nothing. Connections that the host opens are not affected. A new slot is open.
func (s *Slot) SetEgress(ctx context.Context, on bool) error {
	return s.SetPolicy(ctx, egress.Policy{DenyOthers: !on})
}

// SetPolicy changes which destinations the guest may reach, at once.
//
// The kernel loads the new rules in one transaction; connections that they do not allow end. After an error the old
// policy holds. If the policy contains names, the guest's TCP connections to the addresses of allowed names pass
// through a proxy in this process, which checks the names in them against the policy: they end with this process.
func (s *Slot) SetPolicy(ctx context.Context, policy egress.Policy) error {
	rules, err := egress.Compile(policy)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return fmt.Errorf("set policy of slot %d: %w", s.Index, ErrReleased)
	}
	if s.enforcer == nil && len(policy.Allow) == 0 && rules.AllowsAll() {
		return nil // a slot without a policy is open: its connections are kept
	}
	if err := s.apply(ctx, rules); err != nil {
		return fmt.Errorf("set policy of slot %d: %w", s.Index, err)
	}
	return nil
}

// apply puts rules in force. The caller holds mu.
func (s *Slot) apply(ctx context.Context, rules *egress.Rules) error {
	if s.enforcer == nil {
		s.enforcer, s.rules = s.newEnforcer(openRules()), openRules()
	}
	before := s.rules
	// Destinations that both the old and the new rules deny must never be open in between: names first, then the
	// kernel.
	s.enforcer.SetRules(rules)
	s.names.SetNames(s.nameFilter(rules))
	var err error
	if rules.ByName() && s.proxy == nil {
		err = s.inside(func() error { return s.startProxy(ctx) })
	}
	if err == nil {
		var known learned
		known.addrs, known.stay = s.enforcer.Known()
		sets, chains := policyRules(rules, known, s.pool.cfg.ServicePort)
		err = s.withKernel(func(k *kernel) error {
			if err := k.rules.Update(slotTable, sets, chains); err != nil {
				return err
			}
			return k.flows.forgetMarked(markGuest)
		})
	}
	if err != nil {
		s.enforcer.SetRules(before)
		s.names.SetNames(s.nameFilter(before))
		return err
	}
	s.rules = rules
	if s.proxy != nil {
		s.proxy.Recheck()
	}
	if !rules.ByName() && s.proxy != nil {
		err = s.proxy.Close()
		s.proxy = nil
	}
	return err
}

// nameFilter returns the filter for names; nil while all names are allowed.
func (s *Slot) nameFilter(rules *egress.Rules) egress.Names {
	if rules.AllowsAll() {
		return nil
	}
	return s.enforcer
}

func (s *Slot) newEnforcer(rules *egress.Rules) *egress.Enforcer {
	cfg := egress.EnforcerConfig{
		Closed: s.pool.closed,
		Open: func(_ context.Context, addrs []netip.Addr, stay time.Duration) error {
			return s.withKernel(
				func(k *kernel) error { return k.rules.AddAddresses(slotTable, setLearned, addrs, stay) },
			)
		},
	}
	if s.pool.cfg.Decided != nil {
		cfg.Decided = func(d egress.Decision) { s.pool.cfg.Decided(s.pool.ownerOf(s.Index), s.Index, d) }
	}
	return egress.NewEnforcer(cfg, rules)
}

func (p *Pool) ownerOf(index int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.slots[index]; e != nil {
		return e.owner
	}
	return ""
}

// startProxy opens the slot's proxy on its gateway address, from a thread in its namespace. The caller holds mu.
func (s *Slot) startProxy(ctx context.Context) error {
	var lc net.ListenConfig
	at := net.JoinHostPort(gateway.String(), strconv.Itoa(proxyPort))
	l, err := whileInUse(ctx, func() (net.Listener, error) { return lc.Listen(ctx, "tcp4", at) })
	if err != nil {
		return fmt.Errorf("listen for connections: %w", err)
	}
	owner := strconv.Itoa(s.Index)
	s.proxy = egress.ServeProxy(ctx, l, egress.ProxyConfig{
		Guard: s.enforcer, Original: originalDest, Dial: s.dialOut,
		Conns: s.pool.shares.conns.Open(owner), Dials: s.pool.shares.dials.Open(owner), Rate: s.dialRate,
	})
	return nil
}

// dialOut connects from the slot's namespace, so that the host's rules apply as they do for the guest.
func (s *Slot) dialOut(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	return s.pool.dialFrom(ctx, s.inside, "tcp", to)
}

// originalDest returns the destination of a connection before it was redirected to the proxy.
func originalDest(c net.Conn) (to netip.AddrPort, err error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return to, errors.New("not a TCP connection")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return to, err
	}
	var request *unix.IPv6Mreq // large enough for struct sockaddr_in: family, port, address
	controlErr := raw.Control(func(fd uintptr) {
		request, err = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, soOriginalDst)
	})
	if err = errors.Join(controlErr, err); err != nil {
		return to, fmt.Errorf("original destination: %w", err)
	}
	b := request.Multiaddr
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3])), nil
}

// resume starts the resolver and proxy that an earlier process ran for an adopted slot.
func (s *Slot) resume(ctx context.Context) error {
	return s.inside(func() error {
		mode, err := nft.Names(slotTable, setMode)
		if err != nil {
			return err
		}
		if err := s.listen(ctx); err != nil {
			return err
		}
		if slices.Contains(mode, modeOpen) {
			return nil
		}
		shut, err := egress.Compile(egress.Policy{DenyOthers: true})
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.enforcer, s.rules = s.newEnforcer(shut), shut
		s.names.SetNames(s.enforcer)
		return nil
	})
}
