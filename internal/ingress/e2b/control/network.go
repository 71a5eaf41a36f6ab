package control

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// agentPort is the port of the agent, which speaks no TLS inside.
const agentPort = 49983

// What stands for every address in lists of this protocol. Sandboxes reach nothing over IPv6 in any case.
const (
	everything   = "0.0.0.0/0"
	everythingV6 = "::/0"
)

// rules are what may be reached, as a create and a change of a network name it.
type rules struct {
	AllowOut    []string        `json:"allowOut"`
	DenyOut     []string        `json:"denyOut"`
	EgressProxy json.RawMessage `json:"egressProxy"`
	// Rules change requests on their way out. They allow nothing; one that changes nothing is taken.
	Rules map[string][]struct {
		Transform *struct {
			Headers map[string]string `json:"headers"`
		} `json:"transform"`
	} `json:"rules"`
}

// networkUpdate replace all that was said before.
type networkUpdate struct {
	rules
	Internet *bool `json:"allow_internet_access"`
}

// networkResponse is the network of a sandbox as it is read.
type networkResponse struct {
	AllowOut []string `json:"allowOut,omitempty"`
	DenyOut  []string `json:"denyOut,omitempty"`

	PublicTraffic *bool  `json:"allowPublicTraffic,omitempty"` // nil: true
	MaskHost      string `json:"maskRequestHost,omitempty"`
	HTTPSPorts    []int  `json:"httpsPorts,omitempty"`
}

// policy translates the rules. Fields are named with prefix in front. internet false denies all that no
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
	if len(n.AllowOut) > 0 && len(n.DenyOut) == 0 && !n.DenyOthers {
		return n, api.Errorf(api.Invalid, "%sallowOut: closes nothing by itself; put %q into denyOut to block all other traffic", prefix, everything).
			With("field", prefix+"allowOut")
	}
	return n, translateField(n.Validate(), prefix)
}

// checkSupported is an error for what would have to read or carry the guest's encrypted connections: this server passes
// them on as they are.
func (r rules) checkSupported(prefix string) error {
	if !isEmptyJSON(r.EgressProxy) {
		return api.Errorf(api.Unsupported, "%segressProxy: connections leave from this host; leave it away, or set the proxy in the environment of the sandbox", prefix).
			With("field", prefix+"egressProxy")
	}
	for domain, list := range r.Rules {
		for _, rule := range list {
			if rule.Transform != nil && len(rule.Transform.Headers) > 0 {
				return api.Errorf(api.Unsupported, "%srules: headers for %.80q cannot be set here: the way out is not opened to change requests", prefix, domain).
					With("field", prefix+"rules")
			}
		}
	}
	return nil
}

// translateField gives an error about a field the name that the field has in this protocol.
func translateField(err error, prefix string) error {
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		return err
	}
	for ours, theirs := range map[string]string{"allow_out": "allowOut", "deny_out": "denyOut", "port_host": "maskRequestHost", "tls_ports": "httpsPorts"} {
		if text, ok := strings.CutPrefix(e.Message, ours+": "); ok {
			return api.Errorf(e.Code, "%s%s: %s", prefix, theirs, text).With("field", prefix+theirs)
		}
	}
	return err
}

// policy gives what a new sandbox may reach, nil for everything.
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
	if err := decode(r, &in); err != nil {
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
	if old := b.Network; old != nil { // what concerns the ports is settled when a sandbox is made
		n.PrivatePorts, n.PortHost, n.TLSPorts = old.PrivatePorts, old.PortHost, old.TLSPorts
	}
	_, err = s.sandboxes.SetNetwork(r.Context(), p, sandboxID(r), n)
	return http.StatusNoContent, nil, err
}

func newNetworkResponse(n *api.Network) *networkResponse {
	if n == nil {
		return nil
	}
	out := &networkResponse{AllowOut: n.AllowOut, DenyOut: slices.Clone(n.DenyOut), MaskHost: n.PortHost, HTTPSPorts: n.TLSPorts}
	if n.DenyOthers {
		out.DenyOut = append(out.DenyOut, everything)
	}
	if n.PrivatePorts {
		out.PublicTraffic = new(bool)
	}
	return out
}

func isPrivate(b api.Sandbox) bool { return b.Network != nil && b.Network.PrivatePorts }
