package sandbox

import (
	"cmp"
	"context"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/volume/lease"
)

// applyVolumes copies which volumes the machine has.
func (s *Service) applyVolumes(ctx context.Context, r *record, m hostapi.Machine) (err error) {
	r.Volumes, err = lease.Names(ctx, s.db.Read(), m.Volumes, r.Volumes)
	return err
}

// ChangeVolumes makes a change under the lock of a sandbox and writes what its machine has then.
//
// Nothing else happens to the machine meanwhile.
func (s *Service) ChangeVolumes(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
	change lease.Change,
) (_ api.Sandbox, err error) {
	defer s.finishVerb(change.Doing, time.Now(), &err)
	take := s.lock
	if change.Running {
		take = func(ctx context.Context, p auth.Principal, id api.SandboxID) (record, context.Context, func(), error) {
			return s.acquireReady(ctx, p, id, change.Doing, false)
		}
	}
	r, ctx, release, err := take(ctx, p, id)
	if err != nil {
		return api.Sandbox{}, err
	}
	defer release()
	if r.State == api.Creating || r.State == api.Stopping {
		return api.Sandbox{}, wrongState(&r, change.Doing)
	}
	m, known, err := change.Do(ctx, s.view(&r))
	if err != nil {
		return api.Sandbox{}, cmp.Or(hosterror.Interruption(ctx), hosterror.Wrap(err, change.Doing, string(id)))
	}
	s.activity.Touch(string(r.ID))
	ctx, cancel := detached(ctx)
	defer cancel()
	// If this fails, the reconciler writes what the machine has.
	r.applyMachine(m)
	r.Volumes = append(r.Volumes, known...)
	if err := s.applyVolumes(ctx, &r, m); err != nil {
		return api.Sandbox{}, err
	}
	event := newEvent{change.Event, map[string]any{"volumes": r.Volumes}}
	if err := s.setState(ctx, change.Doing, &r, statusOf(m.State), event); err != nil {
		return api.Sandbox{}, err
	}
	return s.view(&r), nil
}
