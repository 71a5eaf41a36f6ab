package egress

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/pandastack/pandastack/internal/lib/budget"
)

// DNSServer resolves one guest's questions on two sockets. It owns the sockets and its goroutines.
type DNSServer struct {
	resolver *Resolver
	packets  net.PacketConn
	listener net.Listener
	cancel   context.CancelCauseFunc
	wg       sync.WaitGroup
	slots    chan struct{} // one token per question in flight
	conns    chan struct{} // one token per connection
	share    *budget.Account

	mu    sync.Mutex
	names Names
}

// DNSConfig configures a DNSServer.
type DNSConfig struct {
	Resolver *Resolver
	Packets  net.PacketConn // where questions come from, with Listener; the server closes both
	Listener net.Listener
	Names    Names // decides on each question; nil: every name is allowed
	// Share pays for questions in progress out of what all guests of the host share; those that it refuses are dropped.
	// The server closes it. nil: only the limits of one guest hold.
	Share *budget.Account
}

// ServeDNS starts a server that resolves questions, until Close.
func ServeDNS(ctx context.Context, cfg DNSConfig) *DNSServer {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	s := &DNSServer{resolver: cfg.Resolver, packets: cfg.Packets, listener: cfg.Listener, cancel: cancel,
		names: cfg.Names, share: cfg.Share,
		slots: make(chan struct{}, inFlight), conns: make(chan struct{}, connections)}
	s.wg.Go(func() { s.datagrams(ctx) })
	s.wg.Go(func() { s.streams(ctx) })
	return s
}

// SetNames replaces the filter for names, from the next question on.
func (s *DNSServer) SetNames(names Names) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = names
}

func (s *DNSServer) decider() Names {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names
}

// Close ends the server with all its goroutines, and waits for them.
func (s *DNSServer) Close() error {
	s.cancel(errors.New("resolver closed"))
	err := errors.Join(s.packets.Close(), s.listener.Close())
	s.wg.Wait()
	s.share.Close()
	return err
}

func (s *DNSServer) datagrams(ctx context.Context) {
	buf := make([]byte, dns.MaxMsgSize)
	for {
		n, from, err := s.packets.ReadFrom(buf)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			continue // an ICMP error for an earlier reply
		}
		m := new(dns.Msg)
		if m.Unpack(buf[:n]) != nil || m.Response {
			continue
		}
		select {
		case s.slots <- struct{}{}:
		default:
			continue // more questions than the limit; the guest will ask again
		}
		if s.share.Take(1) != nil {
			<-s.slots
			continue
		}
		s.wg.Go(func() {
			defer func() { <-s.slots; s.share.Give(1) }()
			reply := s.reply(ctx, m)
			size := plainUDPSize
			if o := m.IsEdns0(); o != nil {
				size = max(size, min(int(o.UDPSize()), udpSize))
				reply.SetEdns0(udpSize, false)
			}
			reply.Truncate(size)
			if wire, err := reply.Pack(); err == nil {
				_, _ = s.packets.WriteTo(wire, from) // the guest asks again for a lost reply
			}
		})
	}
}

func (s *DNSServer) reply(ctx context.Context, m *dns.Msg) *dns.Msg {
	ctx, cancel := context.WithTimeoutCause(ctx, answerLimit, errors.New("name not resolved in time"))
	defer cancel()
	return s.resolver.answer(ctx, m, s.decider())
}

func (s *DNSServer) streams(ctx context.Context) {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		select {
		case s.conns <- struct{}{}:
		default:
			_ = c.Close() // too many at once
			continue
		}
		s.wg.Go(func() {
			defer func() { <-s.conns }()
			s.stream(ctx, c)
		})
	}
}

// stream replies to the questions of one connection, one after the other.
func (s *DNSServer) stream(ctx context.Context, c net.Conn) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	conn := &dns.Conn{Conn: c}
	for range perConn {
		if ctx.Err() != nil || c.SetDeadline(time.Now().Add(idle)) != nil {
			return
		}
		m, err := conn.ReadMsg()
		if err != nil || m.Response {
			return
		}
		if s.share.Take(1) != nil {
			return
		}
		reply := s.reply(ctx, m)
		s.share.Give(1)
		if m.IsEdns0() != nil {
			reply.SetEdns0(udpSize, false)
		}
		if c.SetDeadline(time.Now().Add(idle)) != nil || conn.WriteMsg(reply) != nil {
			return
		}
	}
}
