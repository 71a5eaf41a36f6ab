package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// Limits of the resolver.
const (
	askTimeout   = 3 * time.Second // for one upstream resolver
	answerLimit  = 8 * time.Second // for one question altogether
	inFlight     = 64              // questions of one guest at once; more are dropped
	connections  = 8               // TCP connections of one guest at once
	perConn      = 128             // questions on one connection
	idle         = 10 * time.Second
	udpSize      = 1232 // announced upstream, the size of the DNS flag day 2020
	plainUDPSize = 512  // RFC 1035, for clients without EDNS
)

// Resolver queries upstream resolvers on behalf of guests. All methods are safe for concurrent use.
type Resolver struct {
	// Dial opens a connection to an upstream resolver from the host's network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Upstreams returns the resolvers to query, best first.
	Upstreams func() ([]netip.AddrPort, error)
	// Closed reports whether guests cannot reach an address. Such addresses are removed from replies, so that guests do
	// not learn private names from the host's resolvers. nil: none is removed.
	Closed func(netip.Addr) bool
	// HidePrivateNames removes records that belong to a private name or name one, other than the way to an open
	// address.
	HidePrivateNames bool
}

// Names decides which names a guest may resolve, and records the addresses it learned.
type Names interface {
	// AllowName reports whether the guest may resolve name, which is in lower case without a trailing dot.
	AllowName(name string) bool
	// Learned is called before the guest learns that name has these IPv4 addresses. It returns those that the guest
	// may learn. After an error the guest gets no reply.
	Learned(ctx context.Context, name string, addrs []netip.Addr, ttl time.Duration) ([]netip.Addr, error)
}

// errQuestion means that a message is not a question that can be resolved.
var errQuestion = errors.New("not a plain question")

// question validates a guest's message and returns its question: one name, in class IN.
func question(m *dns.Msg) (dns.Question, error) {
	if m.Response || m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 || m.Question[0].Qclass != dns.ClassINET {
		return dns.Question{}, errQuestion
	}
	return m.Question[0], nil
}

// answer returns the reply to a guest's message. It never returns nil.
func (r *Resolver) answer(ctx context.Context, m *dns.Msg, names Names) *dns.Msg {
	reply := new(dns.Msg)
	q, err := question(m)
	if err != nil {
		return reply.SetRcode(m, dns.RcodeNotImplemented)
	}
	reply.SetReply(m)
	reply.RecursionAvailable = true
	switch q.Qtype {
	case dns.TypeAAAA: // IPv6 is closed: a name has no such addresses here
		if names != nil && !names.AllowName(plainName(q.Name)) {
			reply.Rcode = dns.RcodeNameError
		}
		return reply
	case dns.TypeANY, dns.TypeAXFR, dns.TypeIXFR, dns.TypeNone, dns.TypeOPT:
		reply.Rcode = dns.RcodeRefused
		return reply
	case dns.TypeAPL, dns.TypeIPSECKEY, dns.TypeAMTRELAY, dns.TypeL32: // addresses that are not filtered here
		reply.Rcode = dns.RcodeRefused
		return reply
	}
	if r.isClosedReverse(q.Name) {
		reply.Rcode = dns.RcodeNameError
		return reply
	}
	if r.HidePrivateNames && q.Qtype != dns.TypeA && isPrivateName(q.Name) { // only its addresses matter
		return reply
	}
	if names != nil {
		return r.answerFiltered(ctx, q, reply, names)
	}
	got, err := r.ask(ctx, q)
	if err != nil {
		reply.Rcode = dns.RcodeServerFailure
		return reply
	}
	reply.Rcode, reply.Ns = got.Rcode, r.authority(got.Ns)
	return r.withRecords(reply, got.Answer, r.isOpen)
}

// ask sends a question upstream, as a new message that contains nothing else of the guest's.
func (r *Resolver) ask(ctx context.Context, q dns.Question) (*dns.Msg, error) {
	ups, err := r.Upstreams()
	if err != nil {
		return nil, err
	}
	if len(ups) == 0 {
		return nil, errors.New("no upstream resolver is known")
	}
	var all error
	for _, up := range ups {
		got, err := r.askOne(ctx, up, q, "udp")
		if err == nil && got.Truncated {
			got, err = r.askOne(ctx, up, q, "tcp")
		}
		if err == nil {
			return got, nil
		}
		all = errors.Join(all, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, all
}

func (r *Resolver) askOne(ctx context.Context, up netip.AddrPort, q dns.Question, network string) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, fmt.Errorf("no reply from resolver %s", up))
	defer cancel()
	c, err := r.Dial(ctx, network, up.String())
	if err != nil {
		return nil, fmt.Errorf("reach resolver %s: %w", up, err)
	}
	defer c.Close()
	m := new(dns.Msg)
	m.Id = dns.Id()
	m.RecursionDesired = true
	m.Question = []dns.Question{q}
	m.SetEdns0(udpSize, false)
	conn := &dns.Conn{Conn: c, UDPSize: udpSize}
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return nil, fmt.Errorf("ask resolver %s: %w", up, err)
		}
	}
	// An early end of ctx ends the read. A closed connection fails in the read.
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := conn.WriteMsg(m); err != nil {
		return nil, fmt.Errorf("ask resolver %s: %w", up, err)
	}
	for {
		got, err := conn.ReadMsg()
		if err != nil {
			return nil, fmt.Errorf("reply of resolver %s: %w", up, err)
		}
		// Any other message on a connected socket is late or forged.
		if got.Id == m.Id && got.Response && len(got.Question) == 1 && sameQuestion(got.Question[0], q) {
			return got, nil
		}
	}
}

func sameQuestion(a, b dns.Question) bool {
	return a.Qtype == b.Qtype && a.Qclass == b.Qclass && plainName(a.Name) == plainName(b.Name)
}

// plainName returns a DNS name as policies spell it: lower case, without the trailing dot.
func plainName(name string) string {
	name = dns.CanonicalName(name)
	if len(name) > 0 && name[len(name)-1] == '.' {
		name = name[:len(name)-1]
	}
	return name
}
