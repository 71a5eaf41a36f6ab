package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Policy says what a guest may reach. What Allow names is allowed, whatever Deny says; of the rest, what Deny
// names is denied; and what neither names is denied if DenyOthers, otherwise allowed. An entry is an IPv4
// address ("198.51.100.7"), a network ("198.51.100.0/24"), a domain ("example.com"), or all domains below
// one ("*.example.com", which is not example.com itself). The zero Policy allows all. Reserved ranges,
// IPv6 and mail stay closed under every policy.
type Policy struct {
	Allow      []string `json:"allow,omitempty"`
	Deny       []string `json:"deny,omitempty"`
	DenyOthers bool     `json:"deny_others,omitempty"`
}

// maxEntries bounds each list of a policy; a guest's rules are a few sets in the kernel.
const maxEntries = 1024

// Rules is a policy, checked and made ready for questions. It does not change, and may be used at once.
type Rules struct {
	allowNets, denyNets   []netip.Prefix
	allowNames, denyNames nameSet
	denyOthers            bool
}

// Compile checks a policy. The error lists every entry that is not possible.
func Compile(p Policy) (*Rules, error) {
	r := &Rules{denyOthers: p.DenyOthers, allowNames: newNameSet(), denyNames: newNameSet()}
	var all error
	for _, l := range []struct {
		word  string
		list  []string
		nets  *[]netip.Prefix
		names nameSet
	}{{"allow", p.Allow, &r.allowNets, r.allowNames}, {"deny", p.Deny, &r.denyNets, r.denyNames}} {
		if len(l.list) > maxEntries {
			all = errors.Join(
				all,
				fmt.Errorf("%s has %d entries, at most %d are possible", l.word, len(l.list), maxEntries),
			)
			continue
		}
		for _, e := range l.list {
			net, name, err := parseEntry(e)
			switch {
			case err != nil:
				all = errors.Join(all, fmt.Errorf("%s %q: %w", l.word, e, err))
			case net.IsValid():
				*l.nets = append(*l.nets, net)
			default:
				l.names.add(name)
			}
		}
	}
	if all != nil {
		return nil, fmt.Errorf("egress policy: %w", all)
	}
	return r, nil
}

// parseEntry reads one entry: a network, or a name with or without "*.".
func parseEntry(e string) (netip.Prefix, string, error) {
	if a, err := netip.ParseAddr(e); err == nil {
		if !a.Is4() {
			return netip.Prefix{}, "", errors.New("only IPv4 can be reached")
		}
		return netip.PrefixFrom(a, 32), "", nil
	}
	if strings.Contains(e, "/") {
		p, err := netip.ParsePrefix(e)
		if err != nil {
			return netip.Prefix{}, "", errors.New("not an address, a network or a domain")
		}
		if !p.Addr().Is4() {
			return netip.Prefix{}, "", errors.New("only IPv4 can be reached")
		}
		return p.Masked(), "", nil
	}
	name := strings.ToLower(strings.TrimSuffix(e, "."))
	if !validName(strings.TrimPrefix(name, "*.")) {
		return netip.Prefix{}, "", errors.New(
			"not an address, a network or a domain (other scripts than Latin in punycode)",
		)
	}
	return netip.Prefix{}, name, nil
}

// validName tells whether name is a host name of RFC 1123, in lower case, with underscores let through, as
// they are in use, and not an address.
func validName(name string) bool {
	if len(name) == 0 || len(name) > 253 {
		return false
	}
	labels := strings.Split(name, ".")
	for _, l := range labels {
		if len(l) == 0 || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' {
			return false
		}
		for _, c := range []byte(l) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return false
			}
		}
	}
	last := labels[len(labels)-1]
	return strings.ContainsFunc(
		last,
		func(c rune) bool { return c < '0' || c > '9' },
	) // no top-level domain is a number
}

// nameSet is names and endings of names.
type nameSet struct {
	exact map[string]bool
	below map[string]bool // without the "*."
}

func newNameSet() nameSet { return nameSet{exact: map[string]bool{}, below: map[string]bool{}} }

func (s nameSet) add(name string) {
	if end, ok := strings.CutPrefix(name, "*."); ok {
		s.below[end] = true
		return
	}
	s.exact[name] = true
}

// match gives the entry that a name falls under, "" for none.
func (s nameSet) match(name string) string {
	if s.exact[name] {
		return name
	}
	for rest := name; ; {
		_, end, ok := strings.Cut(rest, ".")
		if !ok {
			return ""
		}
		if s.below[end] {
			return "*." + end
		}
		rest = end
	}
}

func (s nameSet) empty() bool { return len(s.exact) == 0 && len(s.below) == 0 }

// Verdict is the answer of the rules.
type Verdict struct {
	Allowed bool
	Rule    string // the entry that decided; "": what holds for the others
}

// Name decides on a name, in lower case and without a dot at its end.
func (r *Rules) Name(name string) Verdict {
	if e := r.allowNames.match(name); e != "" {
		return Verdict{true, e}
	}
	if e := r.denyNames.match(name); e != "" {
		return Verdict{false, e}
	}
	return Verdict{Allowed: !r.denyOthers}
}

// Address decides on an address that no name is known for.
func (r *Rules) Address(a netip.Addr) Verdict {
	for _, l := range []struct {
		nets    []netip.Prefix
		allowed bool
	}{{r.allowNets, true}, {r.denyNets, false}} {
		if i := slices.IndexFunc(l.nets, func(p netip.Prefix) bool { return p.Contains(a) }); i >= 0 {
			return Verdict{l.allowed, l.nets[i].String()}
		}
	}
	return Verdict{Allowed: !r.denyOthers}
}

// AllowsAll tells whether everything is allowed.
func (r *Rules) AllowsAll() bool {
	return !r.denyOthers && len(r.denyNets) == 0 && r.denyNames.empty()
}

// DeniesAll tells whether nothing is allowed.
func (r *Rules) DeniesAll() bool {
	return r.denyOthers && len(r.allowNets) == 0 && r.allowNames.empty()
}

// ByName tells whether names decide anything: then connections must be looked into.
func (r *Rules) ByName() bool { return !r.allowNames.empty() || !r.denyNames.empty() }

// AllowsNames tells whether some names are allowed by an entry.
func (r *Rules) AllowsNames() bool { return !r.allowNames.empty() }

// DeniesNames tells whether some names are denied by an entry.
func (r *Rules) DeniesNames() bool { return !r.denyNames.empty() }

// DeniesOthers tells what holds for what no entry names.
func (r *Rules) DeniesOthers() bool { return r.denyOthers }

// Networks gives the networks that entries allow and deny.
func (r *Rules) Networks() (allow, deny []netip.Prefix) {
	return slices.Clone(r.allowNets), slices.Clone(r.denyNets)
}
