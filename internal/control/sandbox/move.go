package sandbox

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// verb is a move between states in which a sandbox rests.
type verb struct {
	name  string
	from  []api.Status
	via   api.Status // while the host works; "": no state of its own
	to    api.Status
	event string
	do    func(ctx context.Context, h hostapi.Host, r *store.Sandbox) error
}

var (
	pause = verb{"pause", []api.Status{api.Running}, "", api.Paused, api.EventPaused,
		func(ctx context.Context, h hostapi.Host, r *store.Sandbox) error { return h.Pause(ctx, machineID(r)) }}
	resume = verb{"resume", []api.Status{api.Paused}, "", api.Running, api.EventResumed,
		func(ctx context.Context, h hostapi.Host, r *store.Sandbox) error { return h.Resume(ctx, machineID(r)) }}
	hibernate = verb{
		"hibernate",
		[]api.Status{api.Running, api.Paused},
		api.Hibernating,
		api.Hibernated,
		api.EventHibernated,
		func(ctx context.Context, h hostapi.Host, r *store.Sandbox) error {
			if err := h.Hibernate(ctx, machineID(r)); err != nil {
				return err
			}
			r.GuestIP, r.Tap = "", ""
			return nil
		},
	}
	stop = verb{"stop", []api.Status{api.Running}, api.Hibernating, api.Hibernated, api.EventHibernated,
		func(ctx context.Context, h hostapi.Host, r *store.Sandbox) error {
			if err := h.Stop(ctx, machineID(r)); err != nil {
				return err
			}
			r.GuestIP, r.Tap = "", ""
			return nil
		}}
	wake = verb{"wake", []api.Status{api.Hibernated, api.Failed}, api.Waking, api.Running, api.EventWoken,
		func(ctx context.Context, h hostapi.Host, r *store.Sandbox) error {
			m, err := h.Wake(ctx, machineID(r))
			if err != nil {
				return err
			}
			fill(r, m)
			r.Reason = ""
			return nil
		}}
)

// Pause stops a running sandbox in memory. One that is paused already is fine.
func (s *Service) Pause(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return s.perform(ctx, p, id, pause)
}

// Resume lets a paused sandbox go on. One that runs already is fine.
func (s *Service) Resume(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return s.perform(ctx, p, id, resume)
}

// Hibernate puts a running or paused sandbox to rest on disk. One that rests already is fine.
func (s *Service) Hibernate(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return s.perform(ctx, p, id, hibernate)
}

// Stop puts a running sandbox to rest on its disk alone, without its memory: Wake boots it anew. One that rests
// already forgets its memory, and its disk is as after a loss of power.
func (s *Service) Stop(ctx context.Context, p auth.Principal, id api.SandboxID) (_ api.Sandbox, err error) {
	defer s.watch("stop", time.Now(), &err)
	if _, err := s.row(ctx, p, id); err != nil {
		return api.Sandbox{}, err
	}
	ctx, release, err := s.locks.take(ctx, string(id))
	if err != nil {
		return api.Sandbox{}, err
	}
	defer release()
	r, err := s.row(ctx, p, id)
	if err != nil {
		return api.Sandbox{}, err
	}
	s.used.Touch(r.ID)
	if api.Status(r.State) == api.Hibernated {
		if err := s.host.Stop(ctx, machineID(&r)); err != nil {
			return api.Sandbox{}, s.failed(ctx, &r, err, stop.name)
		}
		return s.view(&r), nil
	}
	if err := s.step(ctx, &r, stop); err != nil {
		return api.Sandbox{}, err
	}
	return s.view(&r), nil
}

// Wake brings a hibernated sandbox back, or boots a failed one anew from its disk. One that runs already
// is fine.
func (s *Service) Wake(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return s.perform(ctx, p, id, wake)
}

func (s *Service) perform(ctx context.Context, p auth.Principal, id api.SandboxID, v verb) (_ api.Sandbox, err error) {
	defer s.watch(v.name, time.Now(), &err)
	if _, err := s.row(ctx, p, id); err != nil {
		return api.Sandbox{}, err
	}
	ctx, release, err := s.locks.take(ctx, string(id))
	if err != nil {
		return api.Sandbox{}, err
	}
	defer release()
	r, err := s.row(ctx, p, id)
	if err != nil {
		return api.Sandbox{}, err
	}
	s.used.Touch(r.ID)
	if err := s.step(ctx, &r, v); err != nil {
		return api.Sandbox{}, err
	}
	return s.view(&r), nil
}

// step moves a sandbox whose lock is held.
func (s *Service) step(ctx context.Context, r *store.Sandbox, v verb) error {
	status := api.Status(r.State)
	if status == v.to {
		return nil
	}
	if !slices.Contains(v.from, status) {
		return wrongState(r, v.name)
	}
	if v.via != "" {
		if err := s.become(ctx, v.name+" begin", r, v.via); err != nil {
			return err
		}
	}
	if err := v.do(ctx, s.host, r); err != nil {
		return s.failed(ctx, r, err, v.name)
	}
	ctx, cancel := firm(ctx)
	defer cancel()
	return s.become(ctx, v.name+" end", r, v.to, occurrence{v.event, nil})
}

// failed answers why an operation on a sandbox failed, after its row was brought to what the host says.
// The lock is held.
func (s *Service) failed(ctx context.Context, r *store.Sandbox, err error, doing string) error {
	why := hostError(err, doing, r.ID)
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) {
		why = cause
	}
	ctx, cancel := firm(ctx)
	defer cancel()
	if err := s.settle(ctx, r, hostapi.Event{}); err != nil {
		s.log.Warn("bringing a sandbox to its machine's state failed; it is tried again", "sandbox", r.ID, "err", err)
	}
	if errors.Is(err, hostapi.ErrNotFound) && api.Status(r.State) == api.Deleted {
		return s.gone(ctx, auth.Principal{Workspace: api.Workspace(r.Workspace)}, api.SandboxID(r.ID))
	}
	return why
}
