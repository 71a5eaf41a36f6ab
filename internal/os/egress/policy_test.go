package egress

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func compile(t *testing.T, p Policy) *Rules {
	t.Helper()
	r, err := Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPolicyDecides(t *testing.T) {
	only := Policy{Allow: []string{"example.com", "*.Example.org.", "198.51.100.0/24"}, DenyOthers: true}
	but := Policy{Allow: []string{"good.evil.com"}, Deny: []string{"*.evil.com", "evil.com", "8.8.8.8"}}
	for _, c := range []struct {
		policy  Policy
		names   string // "+" allowed, "-" denied
		numbers string
	}{
		{Policy{}, "+a.b +x", "+1.1.1.1"},
		{Policy{DenyOthers: true}, "-a.b", "-1.1.1.1"},
		{
			only,
			"+example.com -www.example.com -example.org +a.example.org +a.b.example.org -xexample.org -com -evil.com",
			"+198.51.100.9 -198.51.101.9",
		},
		{
			but,
			"-evil.com -www.evil.com +good.evil.com -bad.good.evil.com +example.com +notevil.com",
			"-8.8.8.8 +8.8.4.4",
		},
		{Policy{Allow: []string{"*.com"}, DenyOthers: true}, "+a.com +b.a.com -com -a.org", ""},
	} {
		r := compile(t, c.policy)
		for _, w := range strings.Fields(c.names) {
			if v := r.Name(w[1:]); v.Allowed != (w[0] == '+') {
				t.Errorf("%+v: Name(%s) = %+v", c.policy, w[1:], v)
			}
		}
		for _, w := range strings.Fields(c.numbers) {
			if v := r.Address(netip.MustParseAddr(w[1:])); v.Allowed != (w[0] == '+') {
				t.Errorf("%+v: Address(%s) = %+v", c.policy, w[1:], v)
			}
		}
	}
}

func TestRulesDescribePolicy(t *testing.T) {
	type flags struct{ open, shut, byName, others bool }
	for _, c := range []struct {
		policy Policy
		want   flags
	}{
		{Policy{}, flags{open: true}},
		{Policy{Allow: []string{"1.2.3.4"}}, flags{open: true}},
		{Policy{DenyOthers: true}, flags{shut: true, others: true}},
		{Policy{DenyOthers: true, Deny: []string{"1.2.3.4"}}, flags{shut: true, others: true}},
		{Policy{DenyOthers: true, Allow: []string{"a.b"}}, flags{byName: true, others: true}},
		{Policy{Deny: []string{"a.b"}}, flags{byName: true}},
	} {
		r := compile(t, c.policy)
		if got := (flags{r.AllowsAll(), r.DeniesAll(), r.ByName(), r.DeniesOthers()}); got != c.want {
			t.Errorf("%+v: got %+v, want %+v", c.policy, got, c.want)
		}
	}
}

func TestInvalidPolicies(t *testing.T) {
	for _, e := range []string{
		"", "*", "*.", ".", "a..b", "*.*.com", "a.*.com", "-a.com", "a-.com", "1.2.3", "1.2.3.4.5", "1.2.3.4/33",
		"fe80::1", "fd00::/8", "a b.com", "http://a.com", "a.com:443", "münchen.de",
		strings.Repeat("a", 64) + ".com", strings.Repeat("a.", 127) + "com", "999",
	} {
		if r, err := Compile(Policy{Allow: []string{"fine.com", e}}); err == nil {
			t.Errorf("Compile with entry %q = %+v, want an error", e, r)
		} else if !strings.Contains(err.Error(), fmt.Sprintf("%q", e)) {
			t.Errorf("entry %q: the error does not name it: %v", e, err)
		}
	}
	if _, err := Compile(Policy{Deny: make([]string, maxEntries+1)}); err == nil {
		t.Error("Compile of too many entries: got no error")
	}
}

func FuzzPolicy(f *testing.F) {
	for _, s := range []string{"example.com", "*.example.com", "1.2.3.4", "10.0.0.0/8", "*.", "::1", "a_b.c"} {
		f.Add(s, "www.example.com")
	}
	f.Fuzz(func(t *testing.T, entry, name string) {
		r, err := Compile(Policy{Allow: []string{entry}, DenyOthers: true})
		if err != nil {
			return
		}
		if v := r.Name(name); v.Allowed {
			end := strings.TrimPrefix(strings.ToLower(strings.TrimSuffix(entry, ".")), "*")
			if name != end && !strings.HasSuffix(name, end) {
				t.Errorf("entry %q allows %q", entry, name)
			}
		}
	})
}
