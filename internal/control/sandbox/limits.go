package sandbox

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/store"
)

// limitsLabel is under which label a snapshot carries the limits of its sandbox to other hosts.
const limitsLabel = "limits"

// limitsOf gives the limits that are written in a row; a text that cannot be read is none.
func limitsOf(text string) (l hostapi.Limits) {
	if text == "" || json.Unmarshal([]byte(text), &l) != nil {
		return hostapi.Limits{}
	}
	return l
}

// viewLimits are limitsOf for users, nil when there are none.
func viewLimits(text string) *api.Limits {
	l := api.Limits(limitsOf(text))
	if l.IsZero() {
		return nil
	}
	return &l
}

// applyLimits puts into a row the limits that were asked for and, where nothing was, those of what the sandbox is made of.
// Of the latter a host that has become stricter takes its own.
func (s *Service) applyLimits(ctx context.Context, r *store.Sandbox, asked *api.Limits, from hostapi.Limits) error {
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
	own = own.WithDefaults(from.DropAbove(host))
	if own == (hostapi.Limits{}) {
		return nil
	}
	data, err := json.Marshal(own)
	r.Limits = string(data)
	return err
}

func limitError(err error) error {
	e := api.Wrap(api.Invalid, err, err.Error())
	if which, ok := errors.AsType[*hostapi.LimitError](err); ok {
		e = e.With("field", "limits."+which.Field)
	}
	return e
}
