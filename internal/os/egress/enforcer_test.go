package egress

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

func to(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func learn(t *testing.T, g *Enforcer, name string, ttl time.Duration, addrs ...string) {
	t.Helper()
	var list []netip.Addr
	for _, a := range addrs {
		list = append(list, netip.MustParseAddr(a))
	}
	if _, err := g.Learned(context.Background(), name, list, ttl); err != nil {
		t.Fatal(err)
	}
}

func TestConnectionsUnderAnAllowList(t *testing.T) {
	g := NewEnforcer(EnforcerConfig{Closed: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
		compile(t, Policy{Allow: []string{"a.com", "*.b.com", "9.9.9.9", "10.1.1.1"}, DenyOthers: true}))
	learn(t, g, "a.com", time.Minute, "1.1.1.1", "10.2.2.2")
	learn(t, g, "x.b.com", time.Minute, "2.2.2.2")
	for _, c := range []struct {
		kind, name, to string
		want           bool
	}{
		{KindTLS, "a.com", "1.1.1.1:443", true},
		{KindTLS, "a.com", "1.1.1.1:8443", true},
		{KindTLS, "x.b.com", "2.2.2.2:443", true},
		{KindTLS, "x.b.com", "1.1.1.1:443", false}, // not the name's address
		{KindTLS, "y.b.com", "2.2.2.2:443", false}, // never resolved
		{KindTLS, "evil.com", "1.1.1.1:443", false},
		{KindTLS, "", "1.1.1.1:443", false},
		{KindTLS, "", "1.1.1.1:8443", false},
		{KindHTTP, "evil.com", "1.1.1.1:80", false},
		{KindHTTP, "a.com", "1.1.1.1:80", true},
		{KindHTTP, "", "1.1.1.1:8080", false},
		{KindTCP, "", "1.1.1.1:443", false},
		{KindTCP, "", "1.1.1.1:22", true},
		{KindTCP, "", "3.3.3.3:22", false},
		{KindTLS, "", "9.9.9.9:443", true}, // allowed by its address
		{KindTLS, "a.com", "10.2.2.2:443", false},
		{KindTCP, "", "10.1.1.1:22", false}, // closed under every policy
	} {
		if got := g.AllowConn(c.kind, c.name, to(c.to)); got != c.want {
			t.Errorf("AllowConn(%s, %q, %s) = %v", c.kind, c.name, c.to, got)
		}
	}
}

func TestConnectionsUnderADenyList(t *testing.T) {
	g := NewEnforcer(
		EnforcerConfig{},
		compile(t, Policy{Deny: []string{"evil.com", "6.6.6.0/24"}, Allow: []string{"ok.evil.com"}}),
	)
	for _, c := range []struct {
		kind, name, to string
		want           bool
	}{
		{KindTLS, "a.com", "1.1.1.1:443", true},
		{KindTLS, "evil.com", "1.1.1.1:443", false},
		{KindTLS, "", "1.1.1.1:443", true},
		{KindTCP, "", "1.1.1.1:443", true},
		{KindHTTP, "evil.com", "1.1.1.1:80", false},
		{KindTLS, "a.com", "6.6.6.6:443", false},
	} {
		if got := g.AllowConn(c.kind, c.name, to(c.to)); got != c.want {
			t.Errorf("AllowConn(%s, %q, %s) = %v", c.kind, c.name, c.to, got)
		}
	}
}

func TestLearnedAddressesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewEnforcer(EnforcerConfig{}, compile(t, Policy{Allow: []string{"a.com", "b.com"}, DenyOthers: true}))
		learn(t, g, "a.com", time.Second, "1.1.1.1")
		learn(t, g, "b.com", 2*time.Hour, "2.2.2.2")
		<-time.After(minStay - time.Second)
		if !g.AllowConn(KindTLS, "a.com", to("1.1.1.1:443")) {
			t.Error("address was closed too early")
		}
		<-time.After(2 * time.Second)
		if g.AllowConn(KindTLS, "a.com", to("1.1.1.1:443")) {
			t.Error("address was never closed")
		}
		known, stay := g.Known()
		if len(known) != 1 || known[0].String() != "2.2.2.2" || stay <= time.Hour {
			t.Errorf("Known: got %v for %s", known, stay)
		}
		g.SetRules(compile(t, Policy{Allow: []string{"a.com"}, DenyOthers: true}))
		if known, _ := g.Known(); len(known) != 0 {
			t.Errorf("Known after the name was removed: got %v", known)
		}
	})
}

func TestLearnedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewEnforcer(EnforcerConfig{}, compile(t, Policy{Allow: []string{"*.com"}, DenyOthers: true}))
		for i := range maxAddresses {
			learn(t, g, fmt.Sprintf("a%d.com", i), time.Minute, "1.1.1.1")
		}
		one := []netip.Addr{netip.MustParseAddr("2.2.2.2")}
		if _, err := g.Learned(context.Background(), "more.com", one, 0); err == nil {
			t.Error("Learned beyond the limit: got no error")
		}
		<-time.After(minStay + time.Second)
		if _, err := g.Learned(context.Background(), "more.com", one, 0); err != nil {
			t.Errorf("Learned after the others expired: got error %v", err)
		}
	})
}
