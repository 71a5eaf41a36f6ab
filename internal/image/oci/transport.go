package oci

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/lib/netguard"
)

// guardedTransport makes every request of a Puller, those of redirects and token services included: over TLS, and to
// public addresses or allowed networks only. The registries in insecure may use plain HTTP, and have any address but
// that of a metadata service.
//
// If the environment names a proxy, the proxy resolves names: then only literal addresses are checked here.
type guardedTransport struct {
	guard    netguard.Guard
	insecure []string
	direct   *http.Transport
	proxied  *http.Transport
}

// errPlainHTTP means that a registry refers to a server over plain HTTP.
var errPlainHTTP = fmt.Errorf("%w: its registry refers to a server over plain HTTP", ErrReference)

// anyNetwork allows all addresses but those of metadata services.
var anyNetwork = netguard.Guard{Allow: []netip.Prefix{
	netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0),
}}

func newTransport(opt Options) *guardedTransport {
	t := &guardedTransport{guard: netguard.Guard{Allow: opt.Allow}, insecure: opt.Insecure}
	plain := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	guarded, trusting := plain, plain
	guarded.Control, trusting.Control = t.guard.Control, anyNetwork.Control
	t.proxied = &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: plain.DialContext, ForceAttemptHTTP2: true,
		IdleConnTimeout: 30 * time.Second, TLSHandshakeTimeout: 15 * time.Second,
		ResponseHeaderTimeout: 60 * time.Second, DisableCompression: true,
	}
	t.direct = t.proxied.Clone()
	t.direct.Proxy = nil
	t.direct.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if t.isInsecure(address) {
			return trusting.DialContext(ctx, network, address)
		}
		return guarded.DialContext(ctx, network, address)
	}
	return t
}

// RoundTrip implements http.RoundTripper.
func (t *guardedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.check(r.URL); err != nil {
		return nil, err
	}
	proxy, err := http.ProxyFromEnvironment(r)
	if err != nil {
		return nil, fmt.Errorf("%w: the proxy in the environment of the node is invalid", ErrUnavailable)
	}
	if proxy != nil {
		return t.proxied.RoundTrip(r)
	}
	return t.direct.RoundTrip(r)
}

// check refuses plain HTTP, and literal addresses, in any notation that a proxy could understand.
func (t *guardedTransport) check(u *url.URL) error {
	guard := t.guard
	switch {
	case t.isInsecure(hostPort(u)):
		guard = anyNetwork
	case u.Scheme != "https":
		return errPlainHTTP
	}
	host := u.Hostname()
	if a, err := netip.ParseAddr(host); err == nil {
		return guard.Check(a)
	}
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	if last := labels[len(labels)-1]; last == "" || last[0] >= '0' && last[0] <= '9' { // no top-level domain
		return fmt.Errorf("%.100q: %w", host, netguard.ErrNotPublic)
	}
	return nil
}

// isInsecure reports whether an address, with its port, is that of a registry that may use plain HTTP.
func (t *guardedTransport) isInsecure(address string) bool {
	host, port, err := net.SplitHostPort(address)
	return err == nil && (slices.Contains(t.insecure, address) ||
		(port == "80" || port == "443") && slices.Contains(t.insecure, host))
}

// hostPort returns the host of u with its port.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}
