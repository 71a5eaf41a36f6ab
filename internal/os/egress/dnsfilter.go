package egress

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// answerFiltered resolves a question under a policy with names. The reply contains IPv4 addresses alone, and no service
// bindings, whose keys would hide the server of a TLS connection from the proxy.
func (r *Resolver) answerFiltered(ctx context.Context, q dns.Question, reply *dns.Msg, names Names) *dns.Msg {
	name := plainName(q.Name)
	if !names.AllowName(name) {
		reply.Rcode = dns.RcodeNameError
		return reply
	}
	if q.Qtype == dns.TypeHTTPS || q.Qtype == dns.TypeSVCB {
		return reply
	}
	got, err := r.ask(ctx, q)
	if err != nil {
		reply.Rcode = dns.RcodeServerFailure
		return reply
	}
	reply.Rcode, reply.Ns = got.Rcode, r.authority(got.Ns)
	var addrs []netip.Addr
	shortest := time.Duration(1<<31-1) * time.Second
	for _, rr := range got.Answer {
		if a, ok := addressOf(rr); ok {
			addrs = append(addrs, a)
			shortest = min(shortest, time.Duration(rr.Header().Ttl)*time.Second)
		}
	}
	usable, err := names.Learned(ctx, name, addrs, shortest)
	if err != nil {
		reply.Rcode, reply.Ns = dns.RcodeServerFailure, nil
		return reply
	}
	records := slices.DeleteFunc(got.Answer, func(rr dns.RR) bool {
		t := rr.Header().Rrtype
		return t == dns.TypeHTTPS || t == dns.TypeSVCB
	})
	return r.withRecords(reply, records, func(a netip.Addr) bool { return slices.Contains(usable, a) })
}

// withRecords adds the records of an upstream reply to reply, without the addresses that are not open and without IPv6.
// If no address is left, the name does not exist for the guest. With HidePrivateNames,
// records that name private hosts remain only as the way to an open address.
func (r *Resolver) withRecords(reply *dns.Msg, records []dns.RR, open func(netip.Addr) bool) *dns.Msg {
	removed, left := false, false
	for _, rr := range records {
		var hints *[]dns.SVCBKeyValue
		switch v := rr.(type) {
		case *dns.AAAA:
			continue
		case *dns.HTTPS:
			hints = &v.Value
		case *dns.SVCB:
			hints = &v.Value
		}
		if hints != nil {
			var ok bool
			if *hints, ok = openHints(*hints, open); !ok {
				removed = true
				continue
			}
		}
		if a, ok := addressOf(rr); ok {
			if !open(a) {
				removed = true
				continue
			}
			left = true
		}
		reply.Answer = append(reply.Answer, rr)
	}
	if removed && !left {
		reply.Rcode, reply.Answer, reply.Ns = dns.RcodeNameError, nil, nil
	}
	if r.HidePrivateNames && !left {
		reply.Answer = slices.DeleteFunc(reply.Answer, namesPrivate)
	}
	return reply
}

// openHints returns the values of a service binding without IPv6 addresses, and whether all its other addresses are
// open. A binding that is of no use without its IPv6 addresses counts as closed.
func openHints(values []dns.SVCBKeyValue, open func(netip.Addr) bool) ([]dns.SVCBKeyValue, bool) {
	var kept []dns.SVCBKeyValue
	for _, v := range values {
		switch v := v.(type) {
		case *dns.SVCBIPv6Hint:
			continue
		case *dns.SVCBMandatory:
			if slices.Contains(v.Code, dns.SVCB_IPV6HINT) {
				return nil, false
			}
		case *dns.SVCBIPv4Hint:
			for _, ip := range v.Hint {
				if a, ok := netip.AddrFromSlice(ip); !ok || !open(a.Unmap()) {
					return nil, false
				}
			}
		}
		kept = append(kept, v)
	}
	return kept, true
}

// isOpen reports whether guests can reach an address.
func (r *Resolver) isOpen(a netip.Addr) bool { return r.Closed == nil || !r.Closed(a) }

// isClosedReverse reports whether name is that of an address in the reverse zones, or of a network, that guests cannot
// reach.
func (r *Resolver) isClosedReverse(name string) bool {
	name = plainName(name)
	if r.Closed == nil {
		return false
	}
	if name == "ip6.arpa" || strings.HasSuffix(name, ".ip6.arpa") {
		return true
	}
	labels, ok := strings.CutSuffix(name, ".in-addr.arpa")
	if !ok {
		return false
	}
	var b [4]byte
	at := 0
	for _, l := range slices.Backward(strings.Split(labels, ".")) {
		n, err := strconv.ParseUint(l, 10, 8)
		if err != nil || at == len(b) { // a zone of less than 256 addresses (RFC 2317)
			break
		}
		b[at] = byte(n)
		at++
	}
	return at > 0 && r.Closed(netip.AddrFrom4(b))
}

// addressOf returns the IPv4 address of an answer record.
func addressOf(rr dns.RR) (netip.Addr, bool) {
	v, ok := rr.(*dns.A)
	if !ok {
		return netip.Addr{}, false
	}
	a, ok := netip.AddrFromSlice(v.A)
	return a.Unmap(), ok
}
