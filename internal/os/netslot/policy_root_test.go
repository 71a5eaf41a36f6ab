//go:build root

package netslot

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/pandastack/pandastack/internal/os/egress"
)

// Two sites share one address, as behind a content delivery network; a third has its own.
const (
	shared = public
	other  = "93.184.216.99"
)

// web runs TLS and plain web servers in the internet. They reply with the host name of the request.
func (w *fixture) web(addr string, tlsPorts, plainPorts []int) {
	w.t.Helper()
	h := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		name := r.Host
		if r.TLS != nil {
			name = r.TLS.ServerName
		}
		fmt.Fprint(rw, "site "+name)
	})
	for _, ports := range []struct {
		list   []int
		secure bool
	}{{tlsPorts, true}, {plainPorts, false}} {
		for _, port := range ports.list {
			s := httptest.NewUnstartedServer(h)
			s.Listener.Close()
			w.must(within(w.internet, func() (err error) {
				s.Listener, err = net.Listen("tcp", net.JoinHostPort(addr, fmt.Sprint(port)))
				return err
			}))
			if ports.secure {
				s.StartTLS()
			} else {
				s.Start()
			}
			w.t.Cleanup(s.Close)
		}
	}
}

// fetch requests a site from a namespace. Address and name are separate, as an attacker would use them.
func fetch(ns *os.File, scheme, addr, name string, limit time.Duration) (string, error) {
	client := &http.Client{Timeout: limit, Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{ServerName: name, InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, _, _ string) (c net.Conn, err error) {
			err = within(ns, func() error {
				var d net.Dialer
				c, err = d.DialContext(ctx, "tcp4", addr)
				return err
			})
			return c, err
		},
	}}
	r, err := client.Get(scheme + "://" + name + "/")
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", r.StatusCode, b)
	}
	return string(b), err
}

// policyFixture is a test network with sites, and a guest in a slot.
type policyFixture struct {
	*fixture
	pool *Pool
	slot *Slot
	g    *guest

	mu        sync.Mutex
	decisions []egress.Decision
}

func newPolicyFixture(t *testing.T) *policyFixture {
	t.Helper()
	w := &policyFixture{fixture: newFixtureWith(t, other)}
	w.web(shared, []int{443, 8443}, []int{8080})
	w.web(other, []int{443}, nil)
	w.fixture.names(
		map[string]string{
			"good.test.":     shared,
			"evil.test.":     shared,
			"far.test.":      other,
			"sub.wild.test.": other,
			"inside.test.":   "10.9.9.9 " + shared,
		},
	)
	w.pool = w.fixture.pool(func(c *Config) {
		c.Decided = func(_ string, _ int, d egress.Decision) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.decisions = append(w.decisions, d)
		}
	})
	w.slot = w.take(w.pool)
	w.g = w.guest(w.slot, "pntga")
	t.Cleanup(func() {
		w.give(w.pool, w.slot, w.g)
		w.closePool(w.pool)
	})
	return w
}

func (w *policyFixture) set(p egress.Policy) {
	w.t.Helper()
	w.must(w.slot.SetPolicy(context.Background(), p))
}

// look asks for a name and returns its addresses.
func (w *policyFixture) look(name string) []string {
	w.t.Helper()
	m, err := ask(w.g.ns, "udp", w.slot.DNS.String(), name+".", dns.TypeA)
	w.must(err)
	var list []string
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			list = append(list, a.A.String())
		}
	}
	return list
}

func (w *policyFixture) gets(scheme, addr, name string) {
	w.t.Helper()
	if got, err := fetch(w.g.ns, scheme, addr, name, patience); err != nil || got != "site "+name {
		w.t.Errorf("%s://%s at %s: got %q, %v", scheme, name, addr, got, err)
	}
}

func (w *policyFixture) getsNot(scheme, addr, name string) {
	w.t.Helper()
	if got, err := fetch(w.g.ns, scheme, addr, name, 4*impatience); err == nil {
		w.t.Errorf("%s://%s at %s: got reply %q, want none", scheme, name, addr, got)
	}
}

func TestOnlyAllowedNamesAreReached(t *testing.T) {
	w := newPolicyFixture(t)
	w.set(egress.Policy{Allow: []string{"good.test", "*.wild.test", "inside.test"}, DenyOthers: true})

	w.getsNot("https", shared+":443", "good.test") // never asked for: a raw address
	if got := w.look("good.test"); !slices.Equal(got, []string{shared}) {
		t.Fatalf("addresses of good.test: got %v", got)
	}
	for _, name := range []string{
		"evil.test", "far.test", "wild.test", "c2VjcmV0.tunnel.evil.test", "good.test.evil.test",
	} {
		if got := w.look(name); len(got) > 0 {
			t.Errorf("denied name %s: got addresses %v", name, got)
		}
	}
	if got := w.look("inside.test"); !slices.Equal(got, []string{shared}) {
		t.Errorf("resolver returned a private address: %v", got)
	}
	w.gets("https", shared+":443", "good.test")
	w.gets("https", shared+":8443", "good.test")
	w.gets("http", shared+":8080", "good.test")
	// The same server's other site, by a spoofed name.
	w.getsNot("https", shared+":443", "evil.test")
	w.getsNot("https", shared+":8443", "evil.test")
	w.getsNot("http", shared+":8080", "evil.test")
	// An allowed name as a disguise for another address.
	w.getsNot("https", other+":443", "good.test")
	w.look("sub.wild.test")
	w.getsNot("https", other+":443", "good.test")
	w.gets("https", other+":443", "sub.wild.test")
	w.must(within(w.g.ns, func() error { return configure(tapName, "fd00:1::2/64") }))
	w.reachesNone(
		w.g.ns,
		shared+":25",
		"10.9.9.9:80",
		"169.254.169.254:80",
		"192.168.241.1:15001",
		"[2606:2800::1]:443",
	)

	w.mu.Lock()
	defer w.mu.Unlock()
	for _, want := range []egress.Decision{
		{Kind: egress.KindName, Name: "far.test"},
		{Kind: egress.KindTLS, Name: "evil.test", Address: netip.MustParseAddrPort(shared + ":443")},
		{Kind: egress.KindHTTP, Name: "evil.test", Address: netip.MustParseAddrPort(shared + ":8080")},
	} {
		if !slices.Contains(w.decisions, want) {
			t.Errorf("decision not reported: %+v", want)
		}
	}
}

func TestOtherResolversAndQUICAreClosed(t *testing.T) {
	w := newPolicyFixture(t)
	got := w.datagrams(shared + ":443")
	names := w.datagrams(shared + ":53")
	ntp := w.datagrams(shared + ":123")
	w.set(egress.Policy{Allow: []string{"good.test"}, DenyOthers: true})
	w.look("good.test")
	for _, port := range []string{"443", "53", "853", "123"} {
		w.send(w.g.ns, "192.168.241.2", shared+":"+port, "to "+port)
	}
	select {
	case <-ntp: // sent last on the same path
	case <-time.After(patience):
		t.Fatal("a datagram to the address of an allowed name did not arrive")
	}
	select {
	case text := <-got:
		t.Errorf("QUIC packet passed: %q", text)
	case text := <-names:
		t.Errorf("question to another resolver passed: %q", text)
	default:
	}
	if m, err := askWithin(impatience, w.g.ns, "tcp", shared, "good.test.", dns.TypeA); err == nil {
		t.Errorf("another resolver replied: %v", m)
	}
}

func TestDeniedNamesAreNotReached(t *testing.T) {
	w := newPolicyFixture(t)
	unseen, _, err := dial(w.g.ns, shared, 80, patience)
	w.must(err)
	defer unseen.Close()
	w.must(echo(unseen, patience))
	w.set(egress.Policy{Deny: []string{"evil.test", other}})
	if echo(unseen, impatience) == nil {
		t.Error("a web connection that the proxy did not inspect survived the policy")
	}
	w.gets("https", shared+":443", "good.test")
	w.getsNot("https", shared+":443", "evil.test")
	w.getsNot("https", other+":443", "far.test")
	if got := w.look("evil.test"); len(got) > 0 {
		t.Errorf("addresses of evil.test: got %v, want none", got)
	}
	if got := w.look("good.test"); len(got) != 1 {
		t.Errorf("addresses of good.test: got %v", got)
	}
}

func TestPolicyChangesLive(t *testing.T) {
	w := newPolicyFixture(t)
	w.serve(w.internet, shared, 7777)
	conn := func() net.Conn {
		c, _, err := dial(w.g.ns, shared, 7777, patience)
		w.must(err)
		t.Cleanup(func() { c.Close() })
		w.must(echo(c, patience))
		return c
	}
	direct := conn()
	w.set(egress.Policy{Allow: []string{"good.test", "far.test"}, DenyOthers: true})
	if echo(direct, impatience) == nil {
		t.Error("a connection to a raw address survived the policy")
	}
	w.look("good.test")
	byName := conn()
	w.set(egress.Policy{Allow: []string{"good.test"}, DenyOthers: true})
	w.must(echo(byName, patience)) // still allowed, so not cut
	conn()                         // its address is still open
	w.set(egress.Policy{Allow: []string{"far.test"}, DenyOthers: true})
	if echo(byName, impatience) == nil {
		t.Error("a connection by a removed name survived")
	}
	w.reachesNone(w.g.ns, shared+":7777")
	w.set(egress.Policy{Allow: []string{shared}, DenyOthers: true})
	conn()
	w.set(egress.Policy{})
	conn()
	if got := w.look("evil.test"); len(got) != 1 {
		t.Errorf("after egress was opened: addresses of evil.test: got %v", got)
	}
	if err := w.slot.SetPolicy(context.Background(), egress.Policy{Allow: []string{"not a name"}}); err == nil {
		t.Error("SetPolicy of an invalid policy: got no error")
	}
	conn()
}

func TestPolicyEndsWithItsOwner(t *testing.T) {
	w := newPolicyFixture(t)
	w.set(egress.Policy{Allow: []string{"good.test"}, DenyOthers: true})
	w.look("good.test")
	w.give(w.pool, w.slot, w.g)
	w.slot = w.take(w.pool)
	w.g = w.guest(w.slot, "pntgb")
	if got := w.look("evil.test"); len(got) != 1 {
		t.Errorf("the former owner's policy applies to the next owner: got %v", got)
	}
	w.reaches(w.g.ns, shared, 80)
}

func TestAdoptedPolicyStaysClosed(t *testing.T) {
	ctx := context.Background()
	w := newPolicyFixture(t)
	w.set(egress.Policy{Allow: []string{"good.test"}, DenyOthers: true})
	w.look("good.test")
	w.must(w.slot.proxy.Close())
	w.slot.proxy = nil
	w.abandon(w.pool, w.slot)
	before := w.slot
	w.pool = w.fixture.pool(nil)
	var err error
	w.slot, err = w.pool.Adopt(ctx, "test", before.Index)
	w.must(err)
	w.slot.Tap = before.Tap // the test is the monitor: released with the slot
	if got := w.look("good.test"); len(got) > 0 {
		t.Errorf("resolver replied before the policy was set: %v", got)
	}
	w.getsNot("https", shared+":443", "evil.test")
	w.set(egress.Policy{Allow: []string{"good.test"}, DenyOthers: true})
	w.look("good.test")
	w.gets("https", shared+":443", "good.test")
	w.getsNot("https", shared+":443", "evil.test")
}

// TestAdoptedOpenSlotIsLeftAlone checks that an open slot is adopted without a change to its connections, and that a
// slot with a policy of ineffective entries does not count as open.
func TestAdoptedOpenSlotIsLeftAlone(t *testing.T) {
	ctx := context.Background()
	w := newPolicyFixture(t)
	adopt := func() {
		before := w.slot
		if before.proxy != nil {
			w.must(before.proxy.Close())
			before.proxy = nil
		}
		w.abandon(w.pool, before)
		w.pool = w.fixture.pool(nil)
		var err error
		w.slot, err = w.pool.Adopt(ctx, "test", before.Index)
		w.must(err)
		w.slot.Tap = before.Tap // the test is the monitor: released with the slot
	}
	adopt()
	w.set(egress.Policy{})
	if w.slot.enforcer != nil {
		t.Error("Adopt set the rules of an open slot again")
	}
	if got := w.look("evil.test"); len(got) != 1 {
		t.Errorf("addresses of evil.test: got %v", got)
	}
	w.set(egress.Policy{Allow: []string{"good.test"}})
	adopt()
	if got := w.look("good.test"); len(got) > 0 {
		t.Errorf("resolver replied before the policy was set: %v", got)
	}
	w.set(egress.Policy{})
	w.look("good.test")
	w.gets("https", shared+":443", "good.test")
}

// TestRefusedPacketsAreCounted checks that packets refused by the kernel are counted and reported to Decided.
func TestRefusedPacketsAreCounted(t *testing.T) {
	w := newPolicyFixture(t)
	w.set(egress.Policy{DenyOthers: true})
	seen := w.pool.reportDrops(t.Context(), nil)
	w.getsNot("https", other+":443", "far.test")
	seen = w.pool.reportDrops(t.Context(), seen)
	counted := func() (times int, packets uint64) { // destinations are reported later, by the drop log
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, d := range w.decisions {
			if d.Kind == egress.KindPackets {
				times, packets = times+1, packets+d.Packets
			}
		}
		return times, packets
	}
	before, told := counted()
	if told == 0 || seen[w.slot] != told {
		t.Errorf("reported %d refused packets, the counter says %d", told, seen[w.slot])
	}
	w.pool.reportDrops(t.Context(), seen)
	if after, _ := counted(); after != before {
		t.Errorf("reported again, %d times", after-before)
	}
}

// TestRefusedDestinationsAreReported checks that destinations of packets refused by the kernel are reported.
func TestRefusedDestinationsAreReported(t *testing.T) {
	w := newPolicyFixture(t)
	w.set(egress.Policy{DenyOthers: true})
	w.getsNot("https", other+":443", "far.test")
	want := netip.MustParseAddrPort(other + ":443")
	end := time.Now().Add(time.Minute)
	for {
		w.mu.Lock()
		found := slices.ContainsFunc(w.decisions, func(d egress.Decision) bool {
			return d.Kind == egress.KindRefused && d.Protocol == "tcp" && d.Address == want && !d.Verdict.Allowed
		})
		all := fmt.Sprintf("%+v", w.decisions)
		w.mu.Unlock()
		if found {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%v was not reported within a minute: got %s", want, all)
		}
		<-time.After(20 * time.Millisecond)
	}
}
