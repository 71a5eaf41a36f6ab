package e2bapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/auth"
)

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
	Rules       json.RawMessage `json:"rules"`
}

// newRules replace all that was said before.
type newRules struct {
	rules
	Internet *bool `json:"allow_internet_access"`
}

// shown is the network of a sandbox as it is read.
type shown struct {
	AllowOut []string `json:"allowOut,omitempty"`
	DenyOut  []string `json:"denyOut,omitempty"`

	PublicTraffic *bool `json:"allowPublicTraffic,omitempty"` // nil: true
}

// policy translates the rules. Fields are named with prefix in front. internet false denies all that no
// entry allows.
func (r rules) policy(prefix string, internet *bool) (api.Network, error) {
	var n api.Network
	for _, f := range []struct {
		name  string
		value json.RawMessage
	}{{"egressProxy", r.EgressProxy}, {"rules", r.Rules}} {
		if text := strings.TrimSpace(string(f.value)); text != "" && text != "null" && text != "{}" {
			return n, api.Errorf(api.Unsupported, "%s%s: is not supported by this server; leave it away", prefix, f.name).With("field", prefix+f.name)
		}
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
	return n, renamed(n.Validate(), prefix)
}

// renamed gives an error about a field the name that the field has in this protocol.
func renamed(err error, prefix string) error {
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		return err
	}
	for ours, theirs := range map[string]string{"allow_out": "allowOut", "deny_out": "denyOut"} {
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
	p.PrivatePorts = n.Network != nil && n.Network.AllowPublicTraffic != nil && !*n.Network.AllowPublicTraffic
	if err != nil || p.Open() && !p.PrivatePorts {
		return nil, err
	}
	return &p, nil
}

func (s *Server) setNetwork(r *http.Request, p auth.Principal) (int, any, error) {
	var in newRules
	if err := decode(r, &in); err != nil {
		return 0, nil, err
	}
	n, err := in.policy("", in.Internet)
	if err != nil {
		return 0, nil, err
	}
	b, err := s.sandboxes.Get(r.Context(), p, idOf(r))
	if err != nil {
		return 0, nil, err
	}
	n.PrivatePorts = isPrivate(b) // who reaches the ports is settled when a sandbox is made
	_, err = s.sandboxes.SetNetwork(r.Context(), p, idOf(r), n)
	return http.StatusNoContent, nil, err
}

func networkShown(n *api.Network) *shown {
	if n == nil {
		return nil
	}
	out := &shown{AllowOut: n.AllowOut, DenyOut: slices.Clone(n.DenyOut)}
	if n.DenyOthers {
		out.DenyOut = append(out.DenyOut, everything)
	}
	if n.PrivatePorts {
		out.PublicTraffic = new(bool)
	}
	return out
}

func isPrivate(b api.Sandbox) bool { return b.Network != nil && b.Network.PrivatePorts }
