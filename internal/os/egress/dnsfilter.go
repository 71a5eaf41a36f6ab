package egress

import (
	"context"
	"net/netip"
	"slices"
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
	reply.Rcode, reply.Ns = got.Rcode, got.Ns
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
	for _, rr := range got.Answer {
		switch rr.(type) {
		case *dns.AAAA, *dns.HTTPS, *dns.SVCB:
			continue
		}
		if a, ok := addressOf(rr); ok && !slices.Contains(usable, a) {
			continue
		}
		reply.Answer = append(reply.Answer, rr)
	}
	return reply
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
