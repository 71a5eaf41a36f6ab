package egress

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/miekg/dns"

	"github.com/pandastack/pandastack/internal/lib/budget"
)

// TestPrivateAnswersAreWithheld asks for names of a private network, with and without rules for names.
func TestPrivateAnswersAreWithheld(t *testing.T) {
	zone := map[string][]string{
		"private.test.":  {"private.test. 60 IN CNAME db.corp.test.", "db.corp.test. 60 IN A 10.1.2.3"},
		"mixed.test.":    {"mixed.test. 60 IN A 10.1.2.3", "mixed.test. 60 IN A 8.8.8.8"},
		"public.test.":   {"public.test. 60 IN CNAME x.test.", "x.test. 60 IN A 8.8.8.8"},
		"none.test.":     {},
		"hint.test.":     {`hint.test. 60 IN HTTPS 1 . alpn="h2" ipv4hint="10.1.2.3"`},
		"openhint.test.": {`openhint.test. 60 IN HTTPS 1 . alpn="h2" ipv4hint="8.8.8.8" ipv6hint="2001:db8::1"`},
		"text.test.":     {`text.test. 60 IN TXT "hello"`},
	}
	for _, reverse := range []string{
		"3.2.1.10.in-addr.arpa.", "10.in-addr.arpa.", "8.8.8.8.in-addr.arpa.", "0/25.8.8.8.in-addr.arpa.",
		"x.3.2.1.10.in-addr.arpa.", "1.0.0.0.ip6.arpa.",
	} {
		zone[reverse] = []string{reverse + " 60 IN PTR secret.corp.test."}
	}
	r := upstream(t, func(m *dns.Msg) *dns.Msg { return records4(m, zone[m.Question[0].Name]...) })
	closed := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	r.Closed = func(a netip.Addr) bool { return closed[0].Contains(a) }
	for name, names := range map[string]Names{
		"without rules": nil,
		"with rules":    NewEnforcer(EnforcerConfig{Closed: closed}, compile(t, Policy{Deny: []string{"evil.test"}})),
	} {
		for _, row := range []struct {
			name  string
			kind  uint16
			rcode int
			want  []uint16 // types of the records; withheld service bindings are so with rules only
		}{
			{"private.test.", dns.TypeA, dns.RcodeNameError, nil},
			{"mixed.test.", dns.TypeA, dns.RcodeSuccess, []uint16{dns.TypeA}},
			{"public.test.", dns.TypeA, dns.RcodeSuccess, []uint16{dns.TypeCNAME, dns.TypeA}},
			{"none.test.", dns.TypeA, dns.RcodeSuccess, nil},
			{"hint.test.", dns.TypeHTTPS, dns.RcodeNameError, nil},
			{"openhint.test.", dns.TypeHTTPS, dns.RcodeSuccess, []uint16{dns.TypeHTTPS}},
			{"text.test.", dns.TypeTXT, dns.RcodeSuccess, []uint16{dns.TypeTXT}},
			{"3.2.1.10.in-addr.arpa.", dns.TypePTR, dns.RcodeNameError, nil},
			{"x.3.2.1.10.in-addr.arpa.", dns.TypePTR, dns.RcodeNameError, nil},
			{"10.in-addr.arpa.", dns.TypePTR, dns.RcodeNameError, nil},
			{"1.0.0.0.ip6.arpa.", dns.TypePTR, dns.RcodeNameError, nil},
			{"8.8.8.8.in-addr.arpa.", dns.TypePTR, dns.RcodeSuccess, []uint16{dns.TypePTR}},
			{"0/25.8.8.8.in-addr.arpa.", dns.TypePTR, dns.RcodeSuccess, []uint16{dns.TypePTR}},
		} {
			if names != nil && row.kind == dns.TypeHTTPS { // never sent under rules for names
				row.rcode, row.want = dns.RcodeSuccess, nil
			}
			got := r.answer(testContext(t), asked(row.name, row.kind), names)
			var kinds []uint16
			for _, rr := range got.Answer {
				kinds = append(kinds, rr.Header().Rrtype)
			}
			if got.Rcode != row.rcode || !slices.Equal(kinds, row.want) {
				t.Errorf("%s, %s: got code %d and %v, want code %d and types %v",
					name, row.name, got.Rcode, got.Answer, row.rcode, row.want)
			}
		}
	}
}

// TestQuestionsAreShared lets one guest ask as much as it can; another is served all the same.
func TestQuestionsAreShared(t *testing.T) {
	asking := make(chan struct{}, 100)
	held := make(chan struct{})
	r := &Resolver{
		Upstreams: func() ([]netip.AddrPort, error) { return []netip.AddrPort{{}}, nil },
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			asking <- struct{}{}
			select {
			case <-held:
			case <-ctx.Done():
			}
			return nil, net.ErrClosed
		},
	}
	questions := budget.New(budget.Config{Name: "questions", Total: 8, Levels: []budget.Level{{Name: "slot"}}})
	ask := func(owner string, n int) *DNSServer {
		pc, l := bothSockets(t)
		s := ServeDNS(context.Background(), DNSConfig{
			Resolver: r, Packets: pc, Listener: l, Share: questions.Open(owner),
		})
		c, err := net.Dial("udp", pc.LocalAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		wire, err := asked("a.test.", dns.TypeA).Pack()
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			if _, err := c.Write(wire); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	greedy := ask("a", 20)
	for range 4 {
		<-asking
	}
	other := ask("b", 1)
	<-asking
	if used := questions.Used(); used != 5 {
		t.Errorf("got %d questions in progress, want 4 of 8 by one guest and 1 by another", used)
	}
	close(held)
	for _, s := range []*DNSServer{greedy, other} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if used := questions.Used(); used != 0 {
		t.Errorf("after the end: %d questions are still paid for", used)
	}
}
