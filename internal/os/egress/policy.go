package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Policy describes which destinations a guest may reach.
//
// Destinations that Allow names are allowed, whatever Deny contains; of the rest, those that Deny names are denied;
// and those that neither names are denied if DenyOthers, otherwise allowed. An entry is an IPv4 address
// ("198.51.100.7"), a network ("198.51.100.0/24"), a domain ("example.com"), or all domains below one
// ("*.example.com", which does not include example.com itself). The zero Policy allows all. Reserved ranges, IPv6 and
// mail stay closed under every policy.
type Policy struct {
	Allow      []string `json:"allow,omitempty"`
	Deny       []string `json:"deny,omitempty"`
	DenyOthers bool     `json:"deny_others,omitempty"`
}

// maxEntries limits each list of a policy; a guest's rules are a few sets in the kernel.
const maxEntries = 1024

// Rules is a compiled policy. It is immutable and safe for concurrent use.
type Rules struct {
	allowNets, denyNets   []netip.Prefix
	allowNames, denyNames nameSet
	denyOthers            bool
}

// Compile validates and compiles a policy. The error lists every invalid entry.
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

// parseEntry parses one entry: a network, or a name with or without "*.".
func parseEntry(e string) (netip.Prefix, string, error) {
	if a, err := netip.ParseAddr(e); err == nil {
		if !a.Is4() {
			return netip.Prefix{}, "", errors.New("IPv6 is not supported: use an IPv4 address")
		}
		return netip.PrefixFrom(a, 32), "", nil
	}
	if strings.Contains(e, "/") {
		p, err := netip.ParsePrefix(e)
		if err != nil {
			return netip.Prefix{}, "", errors.New("not an address, a network or a domain")
		}
		if !p.Addr().Is4() {
			return netip.Prefix{}, "", errors.New("IPv6 is not supported: use an IPv4 network")
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

// validName reports whether name is a host name of RFC 1123 in lower case and not an address. Underscores are
// allowed, as they are in use.
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

// nameSet is a set of names and suffixes of names.
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

// match returns the entry that matches a name, "" if none.
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

// Verdict is a decision of the rules.
type Verdict struct {
	Allowed bool
	Rule    string // the entry that decided; "": the default for other destinations
}

// Name decides on a name, in lower case and without a trailing dot.
func (r *Rules) Name(name string) Verdict {
	if e := r.allowNames.match(name); e != "" {
		return Verdict{true, e}
	}
	if e := r.denyNames.match(name); e != "" {
		return Verdict{false, e}
	}
	return Verdict{Allowed: !r.denyOthers}
}

// Address decides on an address without a known name.
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

// AllowsAll reports whether everything is allowed.
func (r *Rules) AllowsAll() bool {
	return !r.denyOthers && len(r.denyNets) == 0 && r.denyNames.empty()
}

// DeniesAll reports whether nothing is allowed.
func (r *Rules) DeniesAll() bool {
	return r.denyOthers && len(r.allowNets) == 0 && r.allowNames.empty()
}

// ByName reports whether the rules contain names: then connections must be inspected.
func (r *Rules) ByName() bool { return !r.allowNames.empty() || !r.denyNames.empty() }

// AllowsNames reports whether an entry allows a name.
func (r *Rules) AllowsNames() bool { return !r.allowNames.empty() }

// DeniesNames reports whether an entry denies a name.
func (r *Rules) DeniesNames() bool { return !r.denyNames.empty() }

// DeniesOthers reports whether destinations without an entry are denied.
func (r *Rules) DeniesOthers() bool { return r.denyOthers }

// Networks returns the networks that entries allow and deny.
func (r *Rules) Networks() (allow, deny []netip.Prefix) {
	return slices.Clone(r.allowNets), slices.Clone(r.denyNets)
}
