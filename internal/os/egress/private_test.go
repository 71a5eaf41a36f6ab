package egress

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
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

// TestPrivateNamesAreWithheld asks for records that tell of private hosts without an address that the guest cannot
// reach.
func TestPrivateNamesAreWithheld(t *testing.T) {
	zone := map[string][]string{
		"db.corp.": {`db.corp. 60 IN TXT "secret"`,
			"db.corp. 60 IN MX 1 mail.corp.",
			"db.corp. 60 IN A 10.1.2.3"},
		"open.internal.": {"open.internal. 60 IN CNAME a.internal.",
			"a.internal. 60 IN A 10.2.0.1"},
		"_http._tcp.x.lan.": {"_http._tcp.x.lan. 60 IN SRV 0 0 80 host.x.lan."},
		"example.test.": {"example.test. 60 IN MX 1 mail.internal.",
			"example.test. 60 IN MX 2 mail.example.test."},
		"_db._tcp.site.test.":   {"_db._tcp.site.test. 60 IN SRV 0 0 5432 db.corp."},
		"alias.test.":           {"alias.test. 60 IN CNAME db.corp."},
		"naptr.test.":           {`naptr.test. 60 IN NAPTR 1 1 "S" "SIP+D2U" "" _sip._udp.voice.corp.`},
		"7.8.8.8.in-addr.arpa.": {"7.8.8.8.in-addr.arpa. 60 IN PTR secret.corp."},
		"https.test.":           {`https.test. 60 IN HTTPS 1 svc.internal. alpn="h2"`},
		"v6.test.":              {`v6.test. 60 IN HTTPS 1 . alpn="h2" ipv6hint="fd00::1"`},
		"onlyv6.test.":          {`onlyv6.test. 60 IN SVCB 1 . mandatory="ipv6hint" ipv6hint="fd00::1"`},
		"notprivate.acorp.":     {`notprivate.acorp. 60 IN TXT "public"`},
		"soa.test.":             {},
	}
	r := upstream(t, func(m *dns.Msg) *dns.Msg {
		reply := records4(m, zone[m.Question[0].Name]...)
		for _, line := range []string{
			"test. 60 IN SOA ns.test. root.test. 1 2 3 4 5", "corp. 60 IN SOA ns.corp. root.corp. 1 2 3 4 5",
			"test. 60 IN NS ns1.test.",
		} {
			rr, err := dns.NewRR(line)
			if err != nil {
				panic(err)
			}
			reply.Ns = append(reply.Ns, rr)
		}
		kept := reply.Answer[:0]
		for _, rr := range reply.Answer {
			if t := rr.Header().Rrtype; t == m.Question[0].Qtype || t == dns.TypeCNAME {
				kept = append(kept, rr)
			}
		}
		if m.Question[0].Qtype == dns.TypeA {
			kept = reply.Answer
		}
		reply.Answer = kept
		return reply
	})
	closed := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	r.Closed = func(a netip.Addr) bool { return closed[0].Contains(a) }
	if got := r.answer(testContext(t), asked("_http._tcp.x.lan.", dns.TypeSRV), nil); len(got.Answer) != 1 {
		t.Errorf("a private name that is not to be hidden: got %v, want its record", got.Answer)
	}
	r.HidePrivateNames = true
	for name, names := range map[string]Names{
		"without rules": nil,
		"with rules":    NewEnforcer(EnforcerConfig{Closed: closed}, compile(t, Policy{Deny: []string{"evil.test"}})),
	} {
		for _, row := range []struct {
			name  string
			kind  uint16
			rcode int
			want  []string // records, without the header
		}{
			{"db.corp.", dns.TypeTXT, dns.RcodeSuccess, nil},
			{"db.corp.", dns.TypeMX, dns.RcodeSuccess, nil},
			{"db.corp.", dns.TypeCNAME, dns.RcodeSuccess, nil},
			{"_http._tcp.x.lan.", dns.TypeSRV, dns.RcodeSuccess, nil},
			{"example.test.", dns.TypeMX, dns.RcodeSuccess, []string{"2 mail.example.test."}},
			{"_db._tcp.site.test.", dns.TypeSRV, dns.RcodeSuccess, nil},
			{"alias.test.", dns.TypeCNAME, dns.RcodeSuccess, nil},
			{"alias.test.", dns.TypeTXT, dns.RcodeSuccess, nil},
			{"naptr.test.", dns.TypeNAPTR, dns.RcodeSuccess, nil},
			{"7.8.8.8.in-addr.arpa.", dns.TypePTR, dns.RcodeSuccess, nil},
			{"https.test.", dns.TypeHTTPS, dns.RcodeSuccess, nil},
			{"v6.test.", dns.TypeHTTPS, dns.RcodeSuccess, []string{`1 . alpn="h2"`}},
			{"onlyv6.test.", dns.TypeSVCB, dns.RcodeNameError, nil},
			{"v6.test.", dns.TypeIPSECKEY, dns.RcodeRefused, nil},
			{"notprivate.acorp.", dns.TypeTXT, dns.RcodeSuccess, []string{`"public"`}},
		} {
			// Service bindings are never sent under rules for names.
			if names != nil && (row.kind == dns.TypeHTTPS || row.kind == dns.TypeSVCB) {
				row.rcode, row.want = dns.RcodeSuccess, nil
			}
			got := r.answer(testContext(t), asked(row.name, row.kind), names)
			var records []string
			for _, rr := range got.Answer {
				records = append(records, strings.TrimPrefix(rr.String(), rr.Header().String()))
			}
			if got.Rcode != row.rcode || !slices.Equal(records, row.want) {
				t.Errorf("%s, %s %s: got code %d and %q, want code %d and %q", name, row.name,
					dns.TypeToString[row.kind], got.Rcode, records, row.rcode, row.want)
			}
		}
		// The way to an address that guests may reach stays whole.
		if got := r.answer(testContext(t), asked("open.internal.", dns.TypeA), names); len(got.Answer) != 2 {
			t.Errorf("%s: a private name with an open address: got %v, want its two records", name, got.Answer)
		}
		got := r.answer(testContext(t), asked("soa.test.", dns.TypeTXT), names)
		if len(got.Ns) != 1 || got.Ns[0].Header().Rrtype != dns.TypeSOA || got.Ns[0].Header().Name != "test." {
			t.Errorf("%s: got the authority section %v, want the public SOA alone", name, got.Ns)
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
