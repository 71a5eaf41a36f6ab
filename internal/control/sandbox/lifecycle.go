package sandbox

import (
	"cmp"
	"context"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// lastUse returns when a sandbox was used last.
func (s *Service) lastUse(r *record) time.Time {
	if at := s.activity.Last(string(r.ID)).Truncate(time.Microsecond).UTC(); at.After(r.Active) {
		return at
	}
	return r.Active
}

func (s *Service) idle(r *record) time.Duration { return max(0, time.Since(s.lastUse(r))) }

// due returns when the reaper must look at a sandbox; zero is never.
func (s *Service) due(r *record) time.Time {
	var when time.Time
	at := func(t time.Time) {
		if when.IsZero() || t.Before(when) {
			when = t
		}
	}
	switch r.State {
	case api.Running, api.Paused, api.Failed:
		if r.TTL > 0 && !r.Persistent {
			at(s.lastUse(r).Add(r.TTL))
		}
		if r.State == api.Running && r.Persistent && s.cfg.IdleHibernate > 0 && r.Owner.IsZero() {
			at(s.lastUse(r).Add(s.cfg.IdleHibernate))
		}
		if !r.Ends.IsZero() {
			at(r.Ends)
		}
	case api.Hibernated:
		if !r.Persistent && s.cfg.HibernatedTTL > 0 {
			at(r.Changed.Add(s.cfg.HibernatedTTL))
		}
		if !r.Ends.IsZero() && !r.OnEnd.KeepsSandbox() {
			at(r.Ends)
		}
	case api.Creating, api.Hibernating, api.Waking, api.Stopping, api.Deleted:
	}
	return when
}

// Touch counts as use of the sandbox.
func (s *Service) Touch(ctx context.Context, p auth.Principal, id api.SandboxID) (err error) {
	defer s.finishVerb("touch", time.Now(), &err)
	if _, err := s.findOwn(ctx, p, id); err != nil {
		return err
	}
	s.activity.Touch(string(id))
	return nil
}

// SetOwner gives a sandbox to another object of a service, such as a fork to that which it is for.
func (s *Service) SetOwner(ctx context.Context, p auth.Principal, id api.SandboxID, to hostapi.Owner) (err error) {
	defer s.finishVerb("owner", time.Now(), &err)
	r, ctx, release, err := s.lock(ctx, p, id)
	if err != nil {
		return err
	}
	defer release()
	r.Owner = to
	return s.setState(ctx, "owner", &r, r.State)
}

// Lifecycle returns when a sandbox ends by itself.
func (s *Service) Lifecycle(ctx context.Context, p auth.Principal, id api.SandboxID) (_ api.Lifecycle, err error) {
	defer s.finishVerb("lifecycle", time.Now(), &err)
	r, err := s.find(ctx, p, id)
	if err != nil {
		return api.Lifecycle{}, err
	}
	return s.viewLifecycle(&r), nil
}

func (s *Service) viewLifecycle(r *record) api.Lifecycle {
	v := s.view(r)
	return api.Lifecycle{
		TTLSeconds:  v.TTLSeconds,
		Persistent:  v.Persistent,
		IdleSeconds: v.IdleSeconds,
		ExpiresAt:   v.ExpiresAt,
		OnTimeout:   r.OnEnd,
	}
}

// SetLifecycle changes what the patch names. It counts as use, so a shorter TTL starts now.
func (s *Service) SetLifecycle(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
	patch api.LifecyclePatch,
) (_ api.Lifecycle, err error) {
	defer s.finishVerb("set lifecycle", time.Now(), &err)
	if err := patch.Validate(); err != nil {
		return api.Lifecycle{}, err
	}
	r, ctx, release, err := s.lock(ctx, p, id)
	if err != nil {
		return api.Lifecycle{}, err
	}
	defer release()
	if r.State == api.Stopping {
		return api.Lifecycle{}, wrongState(&r, "change the lifecycle of")
	}
	if patch.Persistent != nil && *patch.Persistent != r.Persistent {
		if err := s.host.SetPersistent(ctx, r.machineID(), *patch.Persistent); err != nil {
			return api.Lifecycle{}, s.operationFailed(ctx, &r, err, "change the lifecycle of")
		}
		r.Persistent = *patch.Persistent
	}
	if patch.TTLSeconds != nil {
		r.TTL = time.Duration(*patch.TTLSeconds) * time.Second
	}
	if patch.TimeoutSeconds != nil {
		r.Ends = endsAt(*patch.TimeoutSeconds)
	}
	if patch.OnTimeout != nil {
		r.OnEnd = cmp.Or(*patch.OnTimeout, api.TimeoutDelete)
	}
	s.activity.Touch(string(r.ID))
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := s.setState(ctx, "lifecycle", &r, r.State); err != nil {
		return api.Lifecycle{}, err
	}
	return s.viewLifecycle(&r), nil
}

// endsAt returns the time that many seconds from now, zero for 0.
func endsAt(seconds int64) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return now().Add(time.Duration(seconds) * time.Second)
}
