package sandbox

import (
	"context"
	"errors"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// applyLimits sets the limits that were asked for and, where none were, those of what the sandbox is made from.
// Inherited limits that are wider than the host's or the workspace's are dropped, so that the latter apply.
func (s *Service) applyLimits(ctx context.Context, r *record, asked *api.Limits, from hostapi.Limits) error {
	rates, err := s.quotas.Rates(ctx, r.Workspace)
	if err != nil {
		return err
	}
	workspace := hostapi.Limits{
		NetworkOutMbit: rates.EgressMbit, Connections: rates.Connections, NewConnections: rates.NewConnections,
	}
	if asked == nil && from == (hostapi.Limits{}) && workspace == (hostapi.Limits{}) {
		return nil
	}
	s.refreshCapacity(ctx)
	host := s.hostCapacity().Limits
	var own hostapi.Limits
	if asked != nil {
		own = hostapi.Limits(*asked)
	}
	if err := own.Check(host); err != nil {
		return limitError(err)
	}
	if err := own.Check(workspace); err != nil {
		return workspaceLimitError(err)
	}
	// What the host allows at most need not be said to it.
	r.Limits = own.WithDefaults(from.DropAbove(host).DropAbove(workspace)).WithDefaults(workspace.DropAbove(host))
	return nil
}

func limitError(err error) error {
	e := api.Wrap(api.Invalid, err, err.Error())
	if which, ok := errors.AsType[*hostapi.LimitError](err); ok {
		e = e.With("field", "limits."+which.Field)
	}
	return e
}

// workspaceLimitError is the error for a limit that is wider than the workspace's.
func workspaceLimitError(err error) error {
	which, ok := errors.AsType[*hostapi.LimitError](err)
	if !ok {
		return err
	}
	return api.Errorf(api.Invalid, "limits.%s: %d is more than the %d of a sandbox of this workspace: use up to %d",
		which.Field, which.Asked, which.Host, which.Host).With("field", "limits."+which.Field)
}
