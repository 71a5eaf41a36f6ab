package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
)

const patience = 60 * time.Second

// bothSockets listens on one port of loopback, by UDP and TCP.
func bothSockets(t testing.TB) (net.PacketConn, net.Listener) {
	t.Helper()
	var last error
	for range 100 { // the port of one protocol may be in use by the other
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		pc, err := net.ListenPacket("udp", l.Addr().String())
		if err == nil {
			return pc, l
		}
		last = err
		l.Close()
	}
	t.Fatal(last)
	return nil, nil
}

// upstream is a resolver on loopback that replies with handle, over UDP and TCP.
func upstream(t testing.TB, handle func(*dns.Msg) *dns.Msg) *Resolver {
	t.Helper()
	pc, l := bothSockets(t)
	h := dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
		r := handle(m)
		if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
			r.Truncate(plainUDPSize)
		}
		w.WriteMsg(r)
	})
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: h}, {Listener: l, Handler: h}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go s.ActivateAndServe()
		<-started
		t.Cleanup(func() { s.Shutdown() })
	}
	at := netip.MustParseAddrPort(pc.LocalAddr().String())
	var d net.Dialer
	return &Resolver{
		Dial:      d.DialContext,
		Upstreams: func() ([]netip.AddrPort, error) { return []netip.AddrPort{at}, nil },
	}
}

func records4(m *dns.Msg, lines ...string) *dns.Msg {
	r := new(dns.Msg).SetReply(m)
	for _, l := range lines {
		rr, err := dns.NewRR(l)
		if err != nil {
			panic(err)
		}
		r.Answer = append(r.Answer, rr)
	}
	return r
}

func asked(name string, kind uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, kind) }

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func TestQuestionsThatAreNotForwarded(t *testing.T) {
	r := &Resolver{Upstreams: func() ([]netip.AddrPort, error) { t.Error("asked upstream"); return nil, nil }}
	two := asked("a.com.", dns.TypeA)
	two.Question = append(two.Question, two.Question[0])
	notify := asked("a.com.", dns.TypeA)
	notify.Opcode = dns.OpcodeNotify
	chaos := asked("version.bind.", dns.TypeTXT)
	chaos.Question[0].Qclass = dns.ClassCHAOS
	for _, c := range []struct {
		m    *dns.Msg
		want int
	}{
		{two, dns.RcodeNotImplemented}, {notify, dns.RcodeNotImplemented}, {chaos, dns.RcodeNotImplemented},
		{asked("a.com.", dns.TypeANY), dns.RcodeRefused}, {asked("a.com.", dns.TypeAXFR), dns.RcodeRefused},
		{asked("a.com.", dns.TypeAAAA), dns.RcodeSuccess},
	} {
		got := r.answer(testContext(t), c.m, nil)
		if got.Rcode != c.want || len(got.Answer) > 0 || got.Id != c.m.Id || !got.Response {
			t.Errorf("answer(%v) = %v", c.m.Question, got)
		}
		if _, err := got.Pack(); err != nil {
			t.Errorf("%v: got error %v", c.m.Question, err)
		}
	}
}

func TestForwardedAsANewMessage(t *testing.T) {
	heard := make(chan *dns.Msg, 1)
	r := upstream(t, func(m *dns.Msg) *dns.Msg { heard <- m.Copy(); return records4(m, "a.com. 60 IN A 1.2.3.4") })
	m := asked("a.com.", dns.TypeA)
	m.CheckingDisabled = true
	m.SetEdns0(4096, true)
	m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: 65001, Data: []byte("secret")})
	extra, err := dns.NewRR("tunnel.com. 1 IN TXT secret")
	if err != nil {
		t.Fatal(err)
	}
	m.Extra = append(m.Extra, extra)
	got := r.answer(testContext(t), m, nil)
	if len(got.Answer) != 1 || got.Id != m.Id {
		t.Fatalf("got answer %v", got)
	}
	if seen := <-heard; seen.Id == m.Id || seen.CheckingDisabled || len(seen.Extra) != 1 ||
		len(seen.IsEdns0().Option) > 0 ||
		seen.IsEdns0().Do() {
		t.Errorf("upstream received the guest's message: %v", seen)
	}
}

func TestAskOverTCPWhenTruncated(t *testing.T) {
	r := upstream(t, func(m *dns.Msg) *dns.Msg {
		a := records4(m)
		for i := range 100 {
			rr, err := dns.NewRR("a.com. 60 IN A 1.2.3." + string(rune('0'+i%10)))
			if err != nil {
				panic(err)
			}
			a.Answer = append(a.Answer, rr)
		}
		return a
	})
	if got := r.answer(testContext(t), asked("a.com.", dns.TypeA), nil); len(got.Answer) != 100 {
		t.Errorf("got %d records, want 100", len(got.Answer))
	}
}

func TestNextUpstreamIsQueried(t *testing.T) {
	good := upstream(t, func(m *dns.Msg) *dns.Msg { return records4(m, "a.com. 60 IN A 1.2.3.4") })
	ups, err := good.Upstreams()
	if err != nil {
		t.Fatal(err)
	}
	r := &Resolver{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if address == "192.0.2.1:53" {
			return nil, errors.New("no route")
		}
		return good.Dial(ctx, network, address)
	}, Upstreams: func() ([]netip.AddrPort, error) {
		return append([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53")}, ups...), nil
	}}
	if got := r.answer(testContext(t), asked("a.com.", dns.TypeA), nil); len(got.Answer) != 1 {
		t.Errorf("got answer %v", got)
	}
}

func TestRestrictedAnswers(t *testing.T) {
	r := upstream(t, func(m *dns.Msg) *dns.Msg {
		if m.Question[0].Qtype == dns.TypeTXT {
			return records4(m, "a.com. 60 IN TXT hello")
		}
		return records4(
			m,
			"a.com. 60 IN CNAME b.net.",
			"b.net. 30 IN A 1.2.3.4",
			"b.net. 30 IN A 10.0.0.1",
			"b.net. 30 IN AAAA 2000::1",
			"b.net. 30 IN HTTPS 1 . alpn=h3",
		)
	})
	var opened []netip.Addr
	var decisions []Decision
	g := NewEnforcer(EnforcerConfig{
		Closed: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Open: func(_ context.Context, a []netip.Addr, _ time.Duration) error {
			opened = append(opened, a...)
			return nil
		},
		Decided: func(d Decision) { decisions = append(decisions, d) },
	}, compile(t, Policy{Allow: []string{"a.com"}, DenyOthers: true}))
	got := r.answer(testContext(t), asked("A.com.", dns.TypeA), g)
	if len(got.Answer) != 2 || got.Answer[1].(*dns.A).A.String() != "1.2.3.4" {
		t.Errorf("got answer %v", got)
	}
	if len(opened) != 1 || opened[0].String() != "1.2.3.4" {
		t.Errorf("got opened addresses %v", opened)
	}
	for _, c := range []struct {
		name   string
		kind   uint16
		rcode  int
		amount int
	}{
		{"evil.com.", dns.TypeA, dns.RcodeNameError, 0},
		{"data.a.com.", dns.TypeTXT, dns.RcodeNameError, 0},
		{"evil.com.", dns.TypeAAAA, dns.RcodeNameError, 0},
		{"evil.com.", dns.TypeHTTPS, dns.RcodeNameError, 0},
		{"a.com.", dns.TypeHTTPS, dns.RcodeSuccess, 0},
		{"a.com.", dns.TypeTXT, dns.RcodeSuccess, 1},
	} {
		got := r.answer(testContext(t), asked(c.name, c.kind), g)
		if got.Rcode != c.rcode || len(got.Answer) != c.amount {
			t.Errorf("%s %s: got %v", c.name, dns.TypeToString[c.kind], got)
		}
	}
	if !slices.ContainsFunc(decisions, func(d Decision) bool { return d.Name == "evil.com" && !d.Verdict.Allowed }) {
		t.Errorf("got decisions %v", decisions)
	}
	g.cfg.Open = func(context.Context, []netip.Addr, time.Duration) error { return errors.New("kernel says no") }
	if got := r.answer(testContext(t), asked("a.com.", dns.TypeA), g); got.Rcode != dns.RcodeServerFailure ||
		len(got.Answer) > 0 {
		t.Errorf("answer contains addresses that were not opened: %v", got)
	}
}

func TestDNSServerServesAndCloses(t *testing.T) {
	r := upstream(t, func(m *dns.Msg) *dns.Msg {
		a := records4(m)
		for range 100 {
			a.Answer = append(a.Answer, records4(m, "a.com. 60 IN A 1.2.3.4").Answer...)
		}
		return a
	})
	pc, l := bothSockets(t)
	s := ServeDNS(context.Background(), DNSConfig{Resolver: r, Packets: pc, Listener: l})
	garbage, err := net.Dial("udp", pc.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer garbage.Close()
	if _, err := garbage.Write([]byte("this is no question")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		network string
		cut     bool
	}{{"udp", true}, {"tcp", false}} {
		client := &dns.Client{Net: c.network, Timeout: patience}
		got, _, err := client.Exchange(asked("a.com.", dns.TypeA), pc.LocalAddr().String())
		if err != nil || got.Truncated != c.cut || !c.cut && len(got.Answer) != 100 {
			t.Errorf("%s: got error %v", c.network, err)
		}
	}
	open, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("the server listens after Close")
	}
}

func TestUpstreamsOfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	f := NewFile(path)
	if _, err := f.Upstreams(); err == nil {
		t.Error("Upstreams of a missing file: got no error")
	}
	for _, c := range []struct {
		text string
		want []string
	}{
		{"nameserver 127.0.0.53\noptions edns0\n", []string{"127.0.0.53:53"}},
		{"# x\nnameserver 1.1.1.1\nnameserver fd00::1\nsearch a.b\n", []string{"1.1.1.1:53", "[fd00::1]:53"}},
		{"", nil},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := f.Upstreams()
		var text []string
		for _, a := range got {
			text = append(text, a.String())
		}
		if err != nil || !slices.Equal(text, c.want) {
			t.Errorf("file %q: got %v, %v", c.text, text, err)
		}
	}
}

// FuzzAnswer checks the resolver with any message of a guest, without an upstream.
func FuzzAnswer(f *testing.F) {
	for _, m := range []*dns.Msg{asked("a.com.", dns.TypeA), asked("b.com.", dns.TypeHTTPS), asked(".", dns.TypeANY)} {
		wire, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	rules, err := Compile(Policy{Allow: []string{"a.com"}, DenyOthers: true})
	if err != nil {
		f.Fatal(err)
	}
	g := NewEnforcer(EnforcerConfig{}, rules)
	asking := 0
	r := &Resolver{Upstreams: func() ([]netip.AddrPort, error) { asking++; return nil, nil }}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(dns.Msg)
		if m.Unpack(b) != nil || m.Response {
			return
		}
		asking = 0
		got := r.answer(context.Background(), m, g)
		if asking > 0 && (len(m.Question) != 1 || plainName(m.Question[0].Name) != "a.com") {
			t.Errorf("upstream was queried for %v", m.Question)
		}
		got.Truncate(plainUDPSize)
		if _, err := got.Pack(); err != nil {
			return // names that cannot be encoded again get no reply
		}
	})
}
