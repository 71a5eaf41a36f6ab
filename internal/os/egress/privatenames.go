package egress

import (
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// privateZones are the top-level names that networks use for themselves: those reserved for it (RFC 6761, RFC 6762 with
// its appendix G, RFC 8375, and "internal"), and "localdomain".
var privateZones = []string{
	"corp", "home", "home.arpa", "internal", "intranet", "lan", "local", "localdomain", "localhost", "private",
}

// isPrivateName reports whether a name is one of the network that the host is in, whatever it resolves to.
func isPrivateName(name string) bool {
	name = plainName(name)
	return slices.ContainsFunc(privateZones, func(zone string) bool {
		rest, ok := strings.CutSuffix(name, zone)
		return ok && (rest == "" || strings.HasSuffix(rest, "."))
	})
}

// namesPrivate reports whether a record is of a private name, or names one as its target.
func namesPrivate(rr dns.RR) bool {
	names := []string{rr.Header().Name}
	switch v := rr.(type) {
	case *dns.CNAME:
		names = append(names, v.Target)
	case *dns.DNAME:
		names = append(names, v.Target)
	case *dns.MX:
		names = append(names, v.Mx)
	case *dns.NAPTR:
		names = append(names, v.Replacement)
	case *dns.NS:
		names = append(names, v.Ns)
	case *dns.PTR:
		names = append(names, v.Ptr)
	case *dns.SOA:
		names = append(names, v.Ns, v.Mbox)
	case *dns.SRV:
		names = append(names, v.Target)
	case *dns.HTTPS:
		names = append(names, v.Target)
	case *dns.SVCB:
		names = append(names, v.Target)
	}
	return slices.ContainsFunc(names, isPrivateName)
}

// authority returns the records of the authority section that a guest gets: those by which it caches that a name does
// not exist. Other ones name servers of the host's network.
func (r *Resolver) authority(records []dns.RR) []dns.RR {
	return slices.DeleteFunc(records, func(rr dns.RR) bool {
		return rr.Header().Rrtype != dns.TypeSOA || r.HidePrivateNames && namesPrivate(rr)
	})
}
