package netslot

import (
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/netguard"
	"github.com/pandastack/pandastack/internal/os/egress"
	"github.com/pandastack/pandastack/internal/os/nft"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs from the printed rules (check them, then run with -update):\n%s", path, got)
	}
}

func prefixes(list ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

func TestRulesPrinted(t *testing.T) {
	c, err := Config{Range: netip.MustParsePrefix("10.213.0.0/16"), Allow: prefixes("10.8.0.0/16")}.complete()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "host.nft", hostRules(c, []string{"eth0", "wlan0"}, []string{"eth0"}).String())
	host, guest := slotAddresses(c.Range, 5)
	shut := closed(c.Allow, c.Range)
	for name, policy := range map[string]egress.Policy{
		"open": {},
		"shut": {DenyOthers: true},
		"nets": {Deny: []string{"8.8.0.0/16", "8.8.4.4"}, Allow: []string{"8.8.8.8"}},
		"only": {Allow: []string{"example.com", "*.example.com", "9.9.9.0/24"}, DenyOthers: true},
		"but":  {Deny: []string{"example.com", "9.9.9.0/24"}, Allow: []string{"a.example.com"}},
	} {
		rules, err := egress.Compile(policy)
		if err != nil {
			t.Fatal(err)
		}
		table := slotRules(shut, host, guest, rules, learned{}, connections{4096, 200}, 5432, name == "shut")
		golden(t, "slot-"+name+".nft", table.String())
	}
}

func TestClosedRangesCannotAllBeOpened(t *testing.T) {
	slots := netip.MustParsePrefix("10.213.0.0/16")
	list := closed(prefixes("0.0.0.0/0"), slots)
	for addr, want := range map[string]bool{
		"10.213.4.4": true, "169.254.169.254": true, "10.1.1.1": false, "8.8.8.8": false,
		"168.63.129.16": true, "100.100.100.200": true, "192.0.0.192": true, "100.100.100.201": false,
	} {
		got := false
		for _, p := range list {
			got = got || p.Contains(netip.MustParseAddr(addr))
		}
		if got != want {
			t.Errorf("closed(%s) = %v, want %v", addr, got, want)
		}
	}
	if rest := nft.Subtract(netguard.ReservedIPv4(), closed(nil, slots)); len(rest) > 0 {
		t.Errorf("without exceptions reserved ranges are open: %v", rest)
	}
}

func TestPlace(t *testing.T) {
	r := netip.MustParsePrefix("10.213.0.0/16")
	for index, want := range map[int][2]string{
		0: {"10.213.0.1", "10.213.0.2"}, 1: {"10.213.0.5", "10.213.0.6"},
		64: {"10.213.1.1", "10.213.1.2"}, maxSlots - 1: {"10.213.255.253", "10.213.255.254"},
	} {
		host, guest := slotAddresses(r, index)
		if host.String() != want[0] || guest.String() != want[1] {
			t.Errorf("addresses of slot %d: got %s, %s", index, host, guest)
		}
	}
	if capacity(r) != maxSlots || capacity(netip.MustParsePrefix("10.0.0.0/30")) != 1 {
		t.Errorf("got capacities %d and %d", capacity(r), capacity(netip.MustParsePrefix("10.0.0.0/30")))
	}
}

func TestChooseRange(t *testing.T) {
	none := netip.Prefix{}
	second := candidates[1]
	addr := func(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }
	for name, c := range map[string]struct {
		wanted netip.Prefix
		inUse  []netip.Prefix
		left   []netip.Addr
		want   netip.Prefix
	}{
		"a free host":                  {want: candidates[0]},
		"a wide route is no hindrance": {inUse: prefixes("10.0.0.0/8", "0.0.0.0/0"), want: candidates[0]},
		"a narrow route":               {inUse: prefixes("10.213.7.0/24"), want: second},
		"the same route":               {inUse: prefixes("10.213.0.0/16"), want: second},
		"an address":                   {inUse: prefixes("10.213.0.9/32"), want: second},
		"range of slots left is kept": {
			inUse: prefixes("10.213.7.0/24"),
			left:  addr("10.213.0.1"),
			want:  candidates[0],
		},
		"what was left in the second":  {left: addr("10.187.0.1"), want: second},
		"what was left lies elsewhere": {left: addr("10.3.0.1"), want: candidates[0]},
		"wanted": {
			wanted: netip.MustParsePrefix("10.3.0.0/20"),
			want:   netip.MustParsePrefix("10.3.0.0/20"),
		},
		"wanted, other slots left": {
			wanted: netip.MustParsePrefix("10.3.0.0/20"),
			left:   addr("10.213.0.1"),
			want:   netip.MustParsePrefix("10.3.0.0/20"),
		},
		"wanted, in use": {
			wanted: netip.MustParsePrefix("10.3.0.0/20"),
			inUse:  prefixes("10.3.1.1/32"),
			want:   none,
		},
		"all in use": {inUse: candidates, want: none},
	} {
		got, err := chooseRange(c.wanted, c.inUse, c.left)
		var in *RangeError
		if got != c.want || (c.want == none) != errors.As(err, &in) {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
}

func TestInvalidConfigs(t *testing.T) {
	for _, c := range []Config{
		{Prefix: "Panda"}, {Prefix: "nine9nine"}, {Prefix: "a-b"}, {Prefix: "1a"},
		{Range: netip.MustParsePrefix("10.0.0.0/8")},
		{Range: netip.MustParsePrefix("fd00::/20")},
		{Range: netip.MustParsePrefix("10.0.0.1/16")},
		{Slots: -1}, {Slots: maxSlots + 1}, {Ready: -1}, {Allow: prefixes("fd00::/8")},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("New(%+v): got no error", c)
		}
	}
	if _, err := New(Config{}); err != nil {
		t.Error(err)
	}
}
