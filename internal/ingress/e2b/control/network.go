package control

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// agentPort is the port of the agent, which speaks no TLS inside.
const agentPort = 49983

// Entries that mean every address in lists of this protocol. Sandboxes never reach anything over IPv6.
const (
	everything   = "0.0.0.0/0"
	everythingV6 = "::/0"
)

// rules are what may be reached, in a create and in a change of the network.
type rules struct {
	AllowOut    []string        `json:"allowOut"`
	DenyOut     []string        `json:"denyOut"`
	EgressProxy json.RawMessage `json:"egressProxy"`
	// Rules change outbound requests. They allow nothing; a rule that changes nothing is accepted.
	Rules map[string][]struct {
		Transform *struct {
			Headers map[string]string `json:"headers"`
		} `json:"transform"`
	} `json:"rules"`
}

// DecidesAccess implements lenient.Strict.
func (rules) DecidesAccess() {}

// networkUpdate replaces all earlier rules.
type networkUpdate struct {
	rules
	Internet *bool `json:"allow_internet_access"`
}

// networkResponse is the network of a sandbox in responses.
type networkResponse struct {
	AllowOut []string `json:"allowOut,omitempty"`
	DenyOut  []string `json:"denyOut,omitempty"`

	PublicTraffic *bool  `json:"allowPublicTraffic,omitempty"` // nil: true
	MaskHost      string `json:"maskRequestHost,omitempty"`
	HTTPSPorts    []int  `json:"httpsPorts,omitempty"`
}

// policy translates the rules. Errors name fields with prefix before them. internet false denies everything that no
// entry allows.
func (r rules) policy(prefix string, internet *bool) (api.Network, error) {
	var n api.Network
	if err := r.checkSupported(prefix); err != nil {
		return n, err
	}
	n.AllowOut = r.AllowOut
	n.DenyOthers = internet != nil && !*internet || slices.Contains(r.DenyOut, everything)
	for _, e := range r.DenyOut {
		if e != everything && e != everythingV6 {
			n.DenyOut = append(n.DenyOut, e)
		}
	}
	for _, e := range n.DenyOut {
		if !isAddress(e) {
			return n, api.Errorf(api.Invalid, "%sdenyOut: %.80q is no IPv4 address or network", prefix, e).
				With("field", prefix+"denyOut")
		}
	}
	if len(n.AllowOut) > 0 && len(n.DenyOut) == 0 && !n.DenyOthers {
		if i := slices.IndexFunc(n.AllowOut, func(e string) bool { return !isAddress(e) }); i >= 0 {
			return n, api.Errorf(api.Invalid,
				"%sallowOut: %.80q closes nothing by itself; put %q into denyOut to block all other traffic",
				prefix, n.AllowOut[i], everything).With("field", prefix+"allowOut")
		}
		n.AllowOut = nil // everything is allowed
	}
	return n, translateField(n.Validate(), prefix)
}

// isAddress reports whether an entry is an IPv4 address or network, and not a domain.
func isAddress(entry string) bool {
	if p, err := netip.ParsePrefix(entry); err == nil {
		return p.Addr().Is4()
	}
	a, err := netip.ParseAddr(entry)
	return err == nil && a.Is4()
}

// checkSupported returns an error for rules that would need to read the guest's encrypted connections: this server
// forwards them as they are.
func (r rules) checkSupported(prefix string) error {
	if !isEmptyJSON(r.EgressProxy) {
		return api.Errorf(api.Unsupported, "%segressProxy: connections leave from this host; "+
			"leave it out, or set the proxy in the environment of the sandbox", prefix).
			With("field", prefix+"egressProxy")
	}
	for domain, list := range r.Rules {
		for _, rule := range list {
			if rule.Transform != nil && len(rule.Transform.Headers) > 0 {
				return api.Errorf(api.Unsupported, "%srules: headers for %.80q cannot be set: "+
					"outbound connections are not opened to change requests", prefix, domain).
					With("field", prefix+"rules")
			}
		}
	}
	return nil
}

// translateField gives the field that an error names the name that it has in this protocol.
func translateField(err error, prefix string) error {
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		return err
	}
	for ours, theirs := range map[string]string{
		"allow_out": "allowOut", "deny_out": "denyOut", "port_host": "maskRequestHost", "tls_ports": "httpsPorts",
	} {
		if text, ok := strings.CutPrefix(e.Message, ours+": "); ok {
			return api.Errorf(e.Code, "%s%s: %s", prefix, theirs, text).With("field", prefix+theirs)
		}
	}
	return err
}

// policy returns what a new sandbox may reach, nil for everything.
func (n *newSandbox) policy() (*api.Network, error) {
	var r rules
	if n.Network != nil {
		r = n.Network.rules
	}
	p, err := r.policy("network.", n.Internet)
	if err != nil {
		return nil, err
	}
	if in := n.Network; in != nil {
		if slices.Contains(in.HTTPSPorts, agentPort) {
			return nil, api.Errorf(api.Invalid, "network.httpsPorts: %d is the port of the agent", agentPort)
		}
		p.PrivatePorts = in.AllowPublicTraffic != nil && !*in.AllowPublicTraffic
		p.PortHost, p.TLSPorts = in.MaskRequestHost, in.HTTPSPorts
	}
	if p.IsDefault() {
		return nil, nil
	}
	return &p, translateField(p.Validate(), "network.")
}

func (s *Server) setNetwork(r *http.Request, p auth.Principal) (int, any, error) {
	var in networkUpdate
	if err := s.decode(r, &in); err != nil {
		return 0, nil, err
	}
	n, err := in.policy("", in.Internet)
	if err != nil {
		return 0, nil, err
	}
	b, err := s.sandboxes.Get(r.Context(), p, sandboxID(r))
	if err != nil {
		return 0, nil, err
	}
	if old := b.Network; old != nil { // settings of the ports are fixed when a sandbox is made
		n.PrivatePorts, n.PortHost, n.TLSPorts = old.PrivatePorts, old.PortHost, old.TLSPorts
	}
	_, err = s.sandboxes.SetNetwork(r.Context(), p, sandboxID(r), n)
	return http.StatusNoContent, nil, err
}

func newNetworkResponse(n *api.Network) *networkResponse {
	if n == nil {
		return nil
	}
	out := &networkResponse{
		AllowOut: n.AllowOut, DenyOut: slices.Clone(n.DenyOut), MaskHost: n.PortHost, HTTPSPorts: n.TLSPorts,
	}
	if n.DenyOthers {
		out.DenyOut = append(out.DenyOut, everything)
	}
	if n.PrivatePorts {
		out.PublicTraffic = new(bool)
	}
	return out
}

func isPrivate(b api.Sandbox) bool { return b.Network != nil && b.Network.PrivatePorts }
