package netslot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/pandastack/pandastack/internal/os/egress"
)

// listenDNS opens the slot's resolver on its gateway address, from a thread in its namespace.
func (p *Pool) listenDNS(ctx context.Context, index int) (*egress.DNSServer, error) {
	at := net.JoinHostPort(gateway.String(), strconv.Itoa(dnsPort))
	var lc net.ListenConfig
	packets, err := whileInUse(ctx, func() (net.PacketConn, error) { return lc.ListenPacket(ctx, "udp4", at) })
	if err != nil {
		return nil, fmt.Errorf("listen for names: %w", err)
	}
	listener, err := whileInUse(ctx, func() (net.Listener, error) { return lc.Listen(ctx, "tcp4", at) })
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for names: %w", err), packets.Close())
	}
	return egress.ServeDNS(ctx, egress.DNSConfig{
		Resolver: p.resolver, Packets: packets, Listener: listener, Share: p.shares.questions.Open(strconv.Itoa(index)),
	}), nil
}

// newResolver makes the resolver that all slots share.
func (p *Pool) newResolver() *egress.Resolver {
	upstreams := egress.NewFile("/etc/resolv.conf").Upstreams
	if len(p.cfg.Resolvers) > 0 {
		upstreams = func() ([]netip.AddrPort, error) { return p.cfg.Resolvers, nil }
	}
	return &egress.Resolver{
		Dial: p.dialFromHost, Upstreams: upstreams, Closed: p.isClosed, HidePrivateNames: len(p.cfg.Allow) == 0,
	}
}

// isClosed reports whether guests cannot reach an address.
func (p *Pool) isClosed(a netip.Addr) bool {
	return !a.Is4() || slices.ContainsFunc(p.closed, func(r netip.Prefix) bool { return r.Contains(a) })
}

// dialFromHost connects to an address, which must be a literal, from the host's network namespace.
func (p *Pool) dialFromHost(ctx context.Context, network, address string) (net.Conn, error) {
	if p.cfg.Namespace == "" {
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial from the host: %w", err)
	}
	return p.dialFrom(ctx, func(do func() error) error { return within(p.host, do) }, network, to)
}
