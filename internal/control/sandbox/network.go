package sandbox

import (
	"context"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// Network returns what a sandbox may reach.
func (s *Service) Network(ctx context.Context, p auth.Principal, id api.SandboxID) (_ api.Network, err error) {
	defer s.finishVerb("network", time.Now(), &err)
	r, err := s.find(ctx, p, id)
	if err != nil {
		return api.Network{}, err
	}
	return r.Network, nil
}

// SetNetwork replaces what a sandbox may reach, in any state between its creation and its end. When it
// returns, the new policy is in force and connections that it does not allow have ended. It counts as use.
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
	r, ctx, release, err := s.lock(ctx, p, id)
	if err != nil {
		return api.Network{}, err
	}
	defer release()
	if r.State == api.Stopping || r.State == api.Creating {
		return api.Network{}, wrongState(&r, "change the network of")
	}
	s.activity.Touch(string(r.ID))
	next := r
	next.Network = n
	if err := s.host.SetEgress(ctx, r.machineID(), next.egress()); err != nil {
		return api.Network{}, s.operationFailed(ctx, &r, err, "change the network of")
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	// If this fails, the reconciler puts the policy of the record back in force.
	event := newEvent{api.EventNetwork, map[string]any{"network": n}}
	if err := s.setState(ctx, "network", &next, r.State, event); err != nil {
		return api.Network{}, err
	}
	return n, nil
}
