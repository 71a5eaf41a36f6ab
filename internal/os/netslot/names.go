package netslot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/pandastack/pandastack/internal/os/egress"
)

// listenDNS opens the slot's resolver on its gateway address, from a thread in its namespace.
func (p *Pool) listenDNS(ctx context.Context) (*egress.DNSServer, error) {
	at := net.JoinHostPort(gateway.String(), strconv.Itoa(dnsPort))
	var lc net.ListenConfig
	packets, err := lc.ListenPacket(ctx, "udp4", at)
	if err != nil {
		return nil, fmt.Errorf("listen for names: %w", err)
	}
	listener, err := lc.Listen(ctx, "tcp4", at)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for names: %w", err), packets.Close())
	}
	return egress.ServeDNS(ctx, p.resolver, packets, listener, nil), nil
}

// newResolver makes the resolver that all slots share.
func (p *Pool) newResolver() *egress.Resolver {
	upstreams := egress.NewFile("/etc/resolv.conf").Upstreams
	if len(p.cfg.Resolvers) > 0 {
		upstreams = func() ([]netip.AddrPort, error) { return p.cfg.Resolvers, nil }
	}
	return &egress.Resolver{Dial: p.dialFromHost, Upstreams: upstreams}
}

// dialFromHost connects to an address, which must be a literal, from the host's network namespace.
func (p *Pool) dialFromHost(ctx context.Context, network, address string) (c net.Conn, err error) {
	var d net.Dialer
	if p.cfg.Namespace == "" {
		return d.DialContext(ctx, network, address)
	}
	err = within(p.host, func() error {
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, err
}
