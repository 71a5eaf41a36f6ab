package api

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// MaxNetworkEntries bounds each list of a Network.
const MaxNetworkEntries = 1024

// Network is what a sandbox may reach. PUT /v1/sandboxes/{id}/network replaces all of it.
//
// AllowOut is allowed, whatever DenyOut says; then DenyOut is denied; the rest is denied if DenyOthers is set. An
// entry *.example.com does not include example.com itself. The zero value allows everything. Private and reserved
// ranges, IPv6 and mail are always denied.
type Network struct {
	AllowOut   []string `json:"allow_out,omitempty" doc:"Allowed: IPv4 addresses, networks, domains, or *.example.com."`
	DenyOut    []string `json:"deny_out,omitempty" doc:"Denied, in the same forms; allow_out takes precedence."`
	DenyOthers bool     `json:"deny_others,omitempty" doc:"true: destinations in neither list are denied."`
	// PrivatePorts is about the other direction: who reaches the sandbox. If it is set, its id alone opens nothing.
	PrivatePorts bool `json:"private_ports,omitempty" doc:"true: ports need a key, a preview or the traffic token."`
	// PortHost and TLSPorts are about requests to programs inside.
	PortHost string `json:"port_host,omitempty" doc:"Host that programs see in requests; default: localhost:${PORT}."`
	TLSPorts []int  `json:"tls_ports,omitempty" doc:"Ports on which programs speak TLS; certificates are not checked."`
}

// PortVariable stands for the number of the port in PortHost. MaxTLSPorts bounds TLSPorts.
const (
	PortVariable = "${PORT}"
	MaxTLSPorts  = 64
)

// portHost is the form of PortHost after the variable was replaced: a name or address, and a port.
var portHost = regexp.MustCompile(`^[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?$`)

// IsDefault reports whether no field is set.
func (n Network) IsDefault() bool {
	return n.AllowsAll() && !n.PrivatePorts && n.PortHost == "" && len(n.TLSPorts) == 0
}

// AllowsAll reports whether everything may be reached.
func (n Network) AllowsAll() bool {
	return len(n.AllowOut) == 0 && len(n.DenyOut) == 0 && !n.DenyOthers
}

// BlocksAll reports whether nothing may be reached.
func (n Network) BlocksAll() bool { return n.DenyOthers && len(n.AllowOut) == 0 }

// Equal reports whether two policies have the same fields.
func (n Network) Equal(o Network) bool {
	return n.DenyOthers == o.DenyOthers && n.PrivatePorts == o.PrivatePorts && slices.Equal(n.AllowOut, o.AllowOut) &&
		slices.Equal(n.DenyOut, o.DenyOut) &&
		n.PortHost == o.PortHost &&
		slices.Equal(n.TLSPorts, o.TLSPorts)
}

// Validate checks every entry.
//
// An allow_out that changes nothing, because everything is allowed anyway, is an error too: its author meant to close
// the rest.
func (n *Network) Validate() error { return n.validate("") }

func (n *Network) validate(prefix string) error {
	for _, l := range []struct {
		field string
		list  []string
	}{{prefix + "allow_out", n.AllowOut}, {prefix + "deny_out", n.DenyOut}} {
		if len(l.list) > MaxNetworkEntries {
			return invalid(
				l.field,
				"%d entries are too many: use at most %d, networks and *.domains among them",
				len(l.list),
				MaxNetworkEntries,
			)
		}
		for _, e := range l.list {
			if why := entryError(e); why != "" {
				return invalid(l.field, "%s %s", quote(e), why)
			}
		}
	}
	if len(n.AllowOut) > 0 && len(n.DenyOut) == 0 && !n.DenyOthers {
		return invalid(
			prefix+"deny_others",
			"allow_out alone closes nothing: set deny_others to true, or leave allow_out out",
		)
	}
	return n.validatePorts(prefix)
}

func (n *Network) validatePorts(prefix string) error {
	if n.PortHost != "" && !portHost.MatchString(strings.ReplaceAll(n.PortHost, PortVariable, "65535")) {
		return invalid(
			prefix+"port_host",
			"%s is not a host, or a host and a port, such as localhost:%s",
			quote(n.PortHost),
			PortVariable,
		)
	}
	if len(n.TLSPorts) > MaxTLSPorts {
		return invalid(prefix+"tls_ports", "%d ports are too many: use at most %d", len(n.TLSPorts), MaxTLSPorts)
	}
	for _, p := range n.TLSPorts {
		if p < 1 || p > 65535 {
			return invalid(prefix+"tls_ports", "%d is not a port from 1 to 65535", p)
		}
	}
	return nil
}

// hostLabel is one label of a host name in lower case. Underscores are allowed, since they are in use.
var hostLabel = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$`)

// entryError returns what is wrong with an entry, "" for nothing.
func entryError(e string) string {
	const form = "is not an IPv4 address, a network such as 198.51.100.0/24, " +
		"or a domain such as example.com or *.example.com"
	if a, err := netip.ParseAddr(e); err == nil {
		return familyError(a)
	}
	if strings.Contains(e, "/") {
		p, err := netip.ParsePrefix(e)
		if err != nil {
			return form
		}
		return familyError(p.Addr())
	}
	name := strings.TrimPrefix(strings.ToLower(strings.TrimSuffix(e, ".")), "*.")
	labels := strings.Split(name, ".")
	for _, l := range labels {
		if len(name) > 253 || !hostLabel.MatchString(l) {
			return form + "; write other scripts than Latin in punycode, and no scheme, port or path"
		}
	}
	if strings.Trim(labels[len(labels)-1], "0123456789") == "" { // no top-level domain is a number
		return form
	}
	return ""
}

func familyError(a netip.Addr) string {
	if a.Is4() {
		return ""
	}
	return "is of IPv6, which sandboxes cannot reach: name it by IPv4 or by its domain"
}
