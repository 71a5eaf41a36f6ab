package sandbox

import (
	"cmp"
	"context"
	"maps"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// flush writes last uses to the store.
func (s *Service) flush(ctx context.Context) error {
	taken := s.activity.DrainDirty()
	if len(taken) == 0 {
		return nil
	}
	all := make([]store.LastUse, 0, len(taken))
	for id, at := range taken {
		all = append(all, store.LastUse{ID: id, Active: store.Micros(at)})
	}
	seen := s.sample(ctx, maps.Keys(taken), false)
	err := s.db.Write(ctx, "flush", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.PutLastUses(ctx, all); err != nil {
			return err
		}
		return tx.PutLastSeen(ctx, seen)
	})
	if err != nil {
		s.activity.MarkDirty(taken)
	}
	return err
}

func (s *Service) active(r *store.Sandbox) int64 {
	return max(r.Active, store.Micros(s.activity.Last(r.ID)))
}

func (s *Service) idle(r *store.Sandbox) time.Duration {
	return max(0, time.Since(store.Time(s.active(r))))
}

// due is when the reaper must look at a sandbox, in microseconds; 0 is never.
func (s *Service) due(r *store.Sandbox) int64 {
	when := int64(0)
	at := func(t int64) {
		if when == 0 || t < when {
			when = t
		}
	}
	status := api.Status(r.State)
	switch status {
	case api.Running, api.Paused, api.Failed:
		if r.TTLSeconds > 0 && !r.Persistent {
			at(s.active(r) + r.TTLSeconds*1e6)
		}
		if status == api.Running && r.Persistent && s.cfg.IdleHibernate > 0 {
			at(s.active(r) + s.cfg.IdleHibernate.Microseconds())
		}
		if r.Ends > 0 {
			at(r.Ends)
		}
	case api.Hibernated:
		if !r.Persistent && s.cfg.HibernatedTTL > 0 {
			at(r.Changed + s.cfg.HibernatedTTL.Microseconds())
		}
		if r.Ends > 0 && !api.OnTimeout(r.OnEnd).KeepsSandbox() {
			at(r.Ends)
		}
	case api.Creating, api.Hibernating, api.Waking, api.Stopping, api.Deleted:
	}
	return when
}

// Touch counts as use of the sandbox.
func (s *Service) Touch(ctx context.Context, p auth.Principal, id api.SandboxID) (err error) {
	defer s.finishVerb("touch", time.Now(), &err)
	if _, err := s.row(ctx, p, id); err != nil {
		return err
	}
	s.activity.Touch(string(id))
	return nil
}

// Lifecycle tells when a sandbox ends by itself.
func (s *Service) Lifecycle(ctx context.Context, p auth.Principal, id api.SandboxID) (_ api.Lifecycle, err error) {
	defer s.finishVerb("lifecycle", time.Now(), &err)
	r, err := s.row(ctx, p, id)
	if err != nil {
		return api.Lifecycle{}, err
	}
	return s.lifecycle(&r), nil
}

func (s *Service) lifecycle(r *store.Sandbox) api.Lifecycle {
	v := s.view(r)
	return api.Lifecycle{
		TTLSeconds:  v.TTLSeconds,
		Persistent:  v.Persistent,
		IdleSeconds: v.IdleSeconds,
		ExpiresAt:   v.ExpiresAt,
		OnTimeout:   api.OnTimeout(r.OnEnd),
	}
}

// SetLifecycle changes what the patch names. It counts as use, so a shorter TTL begins now.
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
	if _, err := s.row(ctx, p, id); err != nil {
		return api.Lifecycle{}, err
	}
	ctx, release, err := s.locks.acquire(ctx, string(id))
	if err != nil {
		return api.Lifecycle{}, err
	}
	defer release()
	r, err := s.row(ctx, p, id)
	if err != nil {
		return api.Lifecycle{}, err
	}
	if api.Status(r.State) == api.Stopping {
		return api.Lifecycle{}, wrongState(&r, "change the lifecycle of")
	}
	if patch.Persistent != nil && *patch.Persistent != r.Persistent {
		if err := s.host.SetPersistent(ctx, machineID(&r), *patch.Persistent); err != nil {
			return api.Lifecycle{}, s.operationFailed(ctx, &r, err, "change the lifecycle of")
		}
		r.Persistent = *patch.Persistent
	}
	if patch.TTLSeconds != nil {
		r.TTLSeconds = *patch.TTLSeconds
	}
	if patch.TimeoutSeconds != nil {
		r.Ends = endsAt(*patch.TimeoutSeconds)
	}
	if patch.OnTimeout != nil {
		r.OnEnd = string(cmp.Or(*patch.OnTimeout, api.TimeoutDelete))
	}
	s.activity.Touch(r.ID)
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := s.setState(ctx, "lifecycle", &r, api.Status(r.State)); err != nil {
		return api.Lifecycle{}, err
	}
	return s.lifecycle(&r), nil
}

// endsAt gives a fixed end so many seconds from now, 0 for none.
func endsAt(seconds int64) int64 {
	if seconds == 0 {
		return 0
	}
	return store.Micros(time.Now()) + seconds*1e6
}
