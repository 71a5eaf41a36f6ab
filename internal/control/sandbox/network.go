package sandbox

import (
	"context"
	"encoding/json"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// networkOf gives what the sandbox of a row may reach. A row that cannot be read reaches nothing.
func networkOf(r *store.Sandbox) api.Network {
	if r.Network == "" {
		return api.Network{DenyOthers: !r.Egress}
	}
	var n api.Network
	if err := json.Unmarshal([]byte(r.Network), &n); err != nil {
		return api.Network{DenyOthers: true}
	}
	return n
}

// setNetwork puts into a row what its sandbox may reach.
func setNetwork(r *store.Sandbox, n api.Network) error {
	r.Egress, r.Network = !n.BlocksAll(), ""
	if n.IsDefault() {
		return nil
	}
	data, err := json.Marshal(n)
	r.Network = string(data)
	return err
}

// viewNetwork is networkOf for users, nil when everything may be reached.
func viewNetwork(r *store.Sandbox) *api.Network {
	n := networkOf(r)
	if n.IsDefault() {
		return nil
	}
	return &n
}

// policyOf gives the policy of a row's machine.
func policyOf(r *store.Sandbox) hostapi.Egress {
	n := networkOf(r)
	return hostapi.Egress{Allow: n.AllowOut, Deny: n.DenyOut, DenyOthers: n.DenyOthers}
}

// Network tells what a sandbox may reach.
func (s *Service) Network(ctx context.Context, p auth.Principal, id api.SandboxID) (_ api.Network, err error) {
	defer s.finishVerb("network", time.Now(), &err)
	r, err := s.row(ctx, p, id)
	if err != nil {
		return api.Network{}, err
	}
	return networkOf(&r), nil
}

// SetNetwork replaces what a sandbox may reach, in any state in which it is whole. When it answers, the new
// policy is in force, and connections that it does not allow have ended. It counts as use.
func (s *Service) SetNetwork(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
	n api.Network,
) (_ api.Network, err error) {
	defer s.finishVerb("set network", time.Now(), &err)
	if err := n.Validate(); err != nil {
		return api.Network{}, err
	}
	if _, err := s.row(ctx, p, id); err != nil {
		return api.Network{}, err
	}
	ctx, release, err := s.locks.acquire(ctx, string(id))
	if err != nil {
		return api.Network{}, err
	}
	defer release()
	r, err := s.row(ctx, p, id)
	if err != nil {
		return api.Network{}, err
	}
	if status := api.Status(r.State); status == api.Stopping || status == api.Creating {
		return api.Network{}, wrongState(&r, "change the network of")
	}
	s.activity.Touch(r.ID)
	next := r
	if err := setNetwork(&next, n); err != nil {
		return api.Network{}, err
	}
	if err := s.host.SetEgress(ctx, machineID(&r), policyOf(&next)); err != nil {
		return api.Network{}, s.operationFailed(ctx, &r, err, "change the network of")
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	// If this fails, the comparison with the host puts the policy of the row back in force.
	if err := s.setState(ctx, "network", &next, api.Status(r.State), newEvent{api.EventNetwork, map[string]any{"network": n}}); err != nil {
		return api.Network{}, err
	}
	return n, nil
}
