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

// transition is a move between states in which a sandbox rests.
type transition struct {
	name  string
	from  []api.Status
	via   api.Status // while the host works; "": no state of its own
	to    api.Status
	event string
	do    func(ctx context.Context, h hostapi.Host, r *store.Sandbox) error
}

var (
	pause = transition{"pause", []api.Status{api.Running}, "", api.Paused, api.EventPaused,
		func(ctx context.Context, h hostapi.Host, r *store.Sandbox) error { return h.Pause(ctx, machineID(r)) }}
	resume = transition{"resume", []api.Status{api.Paused}, "", api.Running, api.EventResumed,
		func(ctx context.Context, h hostapi.Host, r *store.Sandbox) error { return h.Resume(ctx, machineID(r)) }}
	hibernate = transition{
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
	stop = transition{"stop", []api.Status{api.Running}, api.Hibernating, api.Hibernated, api.EventHibernated,
		func(ctx context.Context, h hostapi.Host, r *store.Sandbox) error {
			if err := h.Stop(ctx, machineID(r)); err != nil {
				return err
			}
			r.GuestIP, r.Tap = "", ""
			return nil
		}}
	wake = transition{"wake", []api.Status{api.Hibernated, api.Failed}, api.Waking, api.Running, api.EventWoken,
		func(ctx context.Context, h hostapi.Host, r *store.Sandbox) error {
			m, err := h.Wake(ctx, machineID(r))
			if err != nil {
				return err
			}
			applyMachine(r, m)
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
	defer s.finishVerb("stop", time.Now(), &err)
	if _, err := s.row(ctx, p, id); err != nil {
		return api.Sandbox{}, err
	}
	ctx, release, err := s.locks.acquire(ctx, string(id))
	if err != nil {
		return api.Sandbox{}, err
	}
	defer release()
	r, err := s.row(ctx, p, id)
	if err != nil {
		return api.Sandbox{}, err
	}
	s.activity.Touch(r.ID)
	if api.Status(r.State) == api.Hibernated {
		if err := s.host.Stop(ctx, machineID(&r)); err != nil {
			return api.Sandbox{}, s.operationFailed(ctx, &r, err, stop.name)
		}
		return s.view(&r), nil
	}
	if err := s.runTransition(ctx, &r, stop); err != nil {
		return api.Sandbox{}, err
	}
	return s.view(&r), nil
}

// Wake brings a hibernated sandbox back, or boots a failed one anew from its disk. One that runs already
// is fine.
func (s *Service) Wake(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return s.perform(ctx, p, id, wake)
}

func (s *Service) perform(ctx context.Context, p auth.Principal, id api.SandboxID, v transition) (_ api.Sandbox, err error) {
	defer s.finishVerb(v.name, time.Now(), &err)
	if _, err := s.row(ctx, p, id); err != nil {
		return api.Sandbox{}, err
	}
	ctx, release, err := s.locks.acquire(ctx, string(id))
	if err != nil {
		return api.Sandbox{}, err
	}
	defer release()
	r, err := s.row(ctx, p, id)
	if err != nil {
		return api.Sandbox{}, err
	}
	s.activity.Touch(r.ID)
	if err := s.runTransition(ctx, &r, v); err != nil {
		return api.Sandbox{}, err
	}
	return s.view(&r), nil
}

// runTransition moves a sandbox whose lock is held.
func (s *Service) runTransition(ctx context.Context, r *store.Sandbox, v transition) error {
	status := api.Status(r.State)
	if status == v.to {
		return nil
	}
	if !slices.Contains(v.from, status) {
		return wrongState(r, v.name)
	}
	if v.via != "" {
		if err := s.setState(ctx, v.name+" begin", r, v.via); err != nil {
			return err
		}
	}
	if err := v.do(ctx, s.host, r); err != nil {
		return s.operationFailed(ctx, r, err, v.name)
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	return s.setState(ctx, v.name+" end", r, v.to, newEvent{v.event, nil})
}

// operationFailed answers why an operation on a sandbox failed, after its row was brought to what the host says.
// The lock is held.
func (s *Service) operationFailed(ctx context.Context, r *store.Sandbox, err error, doing string) error {
	why := hostError(err, doing, r.ID)
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) {
		why = cause
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := s.reconcileRow(ctx, r, hostapi.Event{}); err != nil {
		s.log.Warn("bringing a sandbox to its machine's state failed; it is tried again", "sandbox", r.ID, "err", err)
	}
	if errors.Is(err, hostapi.ErrNotFound) && api.Status(r.State) == api.Deleted {
		return s.endedError(ctx, auth.Principal{Workspace: api.Workspace(r.Workspace)}, api.SandboxID(r.ID))
	}
	return why
}
