package access

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/internal/lib/accept"
)

// Names of the header that trusted proxies send the client's address in.
const (
	HeaderXForwardedFor = "x-forwarded-for"
	HeaderForwarded     = "forwarded"
)

// Proxies finds the address of a client behind proxies. The zero value trusts none.
type Proxies struct {
	Networks []netip.Prefix // of the trusted proxies
	Header   string         // the one header that they set; "": x-forwarded-for
}

// maxHops bounds how many addresses of a header are looked at.
const maxHops = 32

// Middleware sets RemoteAddr of a request to the address of the client.
//
// Headers about the client count only if a trusted proxy sent them, and are removed from other requests.
func (p Proxies) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer := AddressOf(r)
		if !p.trusts(peer) {
			for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "Forwarded"} {
				r.Header.Del(name)
			}
		} else if client := p.client(r.Header, peer); client != peer {
			r.RemoteAddr = net.JoinHostPort(client.String(), "0")
		}
		next.ServeHTTP(w, r)
	})
}

func (p Proxies) trusts(a netip.Addr) bool {
	return slices.ContainsFunc(p.Networks, func(n netip.Prefix) bool { return n.Contains(a) })
}

// client returns the last address in the header that is not one of a trusted proxy. An element that is no address ends
// the search at the proxy that sent it.
func (p Proxies) client(h http.Header, peer netip.Addr) netip.Addr {
	name, parse := "X-Forwarded-For", parseHop
	if p.Header == HeaderForwarded {
		name, parse = "Forwarded", parseForwarded
	}
	var hops []string
	for _, line := range h.Values(name) {
		hops = append(hops, strings.Split(line, ",")...)
	}
	found := peer
	for n, hop := range slices.Backward(hops) {
		a, ok := parse(strings.TrimSpace(hop))
		if !ok || n < len(hops)-maxHops {
			break
		}
		found = a
		if !p.trusts(a) {
			break
		}
	}
	return found
}

// parseHop parses an address with or without a port.
func parseHop(text string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return a.Unmap(), a.Zone() == ""
	}
	a, err := netip.ParseAddrPort(text)
	return a.Addr().Unmap(), err == nil && a.Addr().Zone() == ""
}

// parseForwarded parses the parameter "for" of an element of the header Forwarded (RFC 7239).
func parseForwarded(element string) (netip.Addr, bool) {
	for pair := range strings.SplitSeq(element, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		if strings.EqualFold(name, "for") {
			return parseHop(strings.Trim(value, `"`))
		}
	}
	return netip.Addr{}, false
}

// AddressOf returns the address of the client of a request, the zero one if it is not known.
func AddressOf(r *http.Request) netip.Addr {
	return accept.Address(r.RemoteAddr)
}
