package sandbox

import (
	"context"
	"errors"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/store"
)

// EnforceQuotas makes Run hibernate sandboxes of suspended workspaces and update the host's bounds.
func (s *Service) EnforceQuotas() { s.suspensions.Trigger() }

// noticeSuspension is called when a sandbox runs whose operation may have begun before its workspace was suspended.
func (s *Service) noticeSuspension(ctx context.Context, workspace api.Workspace) {
	if s.quotas.CheckActive(ctx, workspace) != nil {
		s.suspensions.Trigger()
	}
}

// suspendable implements quota.Running.
type suspendable struct{ *Service }

// Running implements quota.Running.
func (s suspendable) Running(ctx context.Context, workspace api.Workspace) ([]api.SandboxID, error) {
	all, err := s.loadAll(ctx, store.SandboxQuery{Workspace: string(workspace), States: inMemory})
	ids := make([]api.SandboxID, 0, len(all))
	for _, r := range all {
		ids = append(ids, r.ID)
	}
	return ids, err
}

// inMemory are the states in which a sandbox is in memory and no operation is under way.
var inMemory = []string{string(api.Running), string(api.Paused)}

// SetBounds implements quota.Running.
func (s suspendable) SetBounds(ctx context.Context, bounds hostapi.GroupBounds) error {
	return s.host.SetGroupBounds(ctx, bounds)
}

// Hibernate implements quota.Running.
func (s suspendable) Hibernate(ctx context.Context, id api.SandboxID) error {
	op, release, err := s.locks.Acquire(ctx, string(id))
	if err != nil {
		return err
	}
	defer release()
	r, err := s.load(op, id)
	if errors.Is(err, store.ErrNotFound) || err == nil && r.State != api.Running && r.State != api.Paused {
		return nil
	}
	if err != nil {
		return err
	}
	return s.runTransition(op, &r, hibernate)
}
