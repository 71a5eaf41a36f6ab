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

// Bounds of the resolver.
const (
	askTimeout   = 3 * time.Second // for one upstream
	answerLimit  = 8 * time.Second // for one question altogether
	inFlight     = 64              // questions of one guest at once; more are dropped
	connections  = 8               // TCP connections of one guest at once
	perConn      = 128             // questions on one connection
	idle         = 10 * time.Second
	udpSize      = 1232 // what we announce upstream, the size of the DNS flag day 2020
	plainUDPSize = 512  // RFC 1035, for askers without EDNS
)

// Resolver asks upstream resolvers on behalf of guests. All methods may be called at once.
type Resolver struct {
	// Dial opens a connection to an upstream resolver from the host's network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Upstreams gives the resolvers to ask, best first.
	Upstreams func() ([]netip.AddrPort, error)
}

// Names decides what a guest may ask, and hears what it was told.
type Names interface {
	// AllowName tells whether the guest may know the addresses of name, which is in lower case and ends
	// without a dot.
	AllowName(name string) bool
	// Learned is called before the guest hears that name has these IPv4 addresses, and gives those of them
	// that the guest may hear. An error keeps the answer back.
	Learned(ctx context.Context, name string, addrs []netip.Addr, ttl time.Duration) ([]netip.Addr, error)
}

// errQuestion says that a message is not a question that can be answered.
var errQuestion = errors.New("not a plain question")

// question checks a guest's message and gives what it asks: one name, in class IN.
func question(m *dns.Msg) (dns.Question, error) {
	if m.Response || m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 || m.Question[0].Qclass != dns.ClassINET {
		return dns.Question{}, errQuestion
	}
	return m.Question[0], nil
}

// answer gives the reply for a guest's message. It never returns nil.
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
	}
	if names != nil {
		return r.restricted(ctx, q, reply, names)
	}
	got, err := r.ask(ctx, q)
	if err != nil {
		reply.Rcode = dns.RcodeServerFailure
		return reply
	}
	reply.Rcode, reply.Answer, reply.Ns = got.Rcode, got.Answer, got.Ns
	return reply
}

// ask sends a question upstream, as a new message that holds nothing else of the guest's.
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
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, fmt.Errorf("resolver %s did not answer", up))
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
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) }) // an early end of ctx ends the read
	defer stop()
	if err := conn.WriteMsg(m); err != nil {
		return nil, fmt.Errorf("ask resolver %s: %w", up, err)
	}
	for {
		got, err := conn.ReadMsg()
		if err != nil {
			return nil, fmt.Errorf("answer of resolver %s: %w", up, err)
		}
		// Anything else on a connected socket is late, or somebody's guess.
		if got.Id == m.Id && got.Response && len(got.Question) == 1 && sameQuestion(got.Question[0], q) {
			return got, nil
		}
	}
}

func sameQuestion(a, b dns.Question) bool {
	return a.Qtype == b.Qtype && a.Qclass == b.Qclass && plainName(a.Name) == plainName(b.Name)
}

// plainName is a DNS name as policies spell it: lower case, without the last dot.
func plainName(name string) string {
	name = dns.CanonicalName(name)
	if len(name) > 0 && name[len(name)-1] == '.' {
		name = name[:len(name)-1]
	}
	return name
}
