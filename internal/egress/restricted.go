package egress

import (
	"context"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// restricted answers a question under a policy by name. What it answers holds addresses of IPv4 alone, and
// no service binding, whose keys would hide from us which server a TLS connection is for.
func (r *Resolver) restricted(ctx context.Context, q dns.Question, reply *dns.Msg, names Names) *dns.Msg {
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
		switch v := rr.(type) {
		case *dns.AAAA, *dns.HTTPS, *dns.SVCB:
			continue
		case *dns.A:
			a, ok := netip.AddrFromSlice(v.A)
			if !ok {
				continue
			}
			addrs = append(addrs, a.Unmap())
			shortest = min(shortest, time.Duration(v.Hdr.Ttl)*time.Second)
		}
		reply.Answer = append(reply.Answer, rr)
	}
	if len(addrs) > 0 {
		if err := names.Learned(ctx, name, addrs, shortest); err != nil {
			reply.Rcode, reply.Answer, reply.Ns = dns.RcodeServerFailure, nil, nil
		}
	}
	return reply
}
