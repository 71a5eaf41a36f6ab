package sandbox

import (
	"context"
	"errors"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// applyLimits sets the limits that were asked for and, where none were, those of what the sandbox is made from.
// Inherited limits that are wider than the host's are dropped, so that the host's apply.
func (s *Service) applyLimits(ctx context.Context, r *record, asked *api.Limits, from hostapi.Limits) error {
	if asked == nil && from == (hostapi.Limits{}) {
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
	r.Limits = own.WithDefaults(from.DropAbove(host))
	return nil
}

func limitError(err error) error {
	e := api.Wrap(api.Invalid, err, err.Error())
	if which, ok := errors.AsType[*hostapi.LimitError](err); ok {
		e = e.With("field", "limits."+which.Field)
	}
	return e
}
