package sandbox

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
)

// transition is a step between states in which a sandbox can stay.
type transition struct {
	name  string
	from  []api.Status
	via   api.Status // while the host works; "": no state of its own
	to    api.Status
	event string
	do    func(ctx context.Context, h hostapi.Host, r *record) error
}

// withoutMemory is the reason of a hibernated sandbox whose memory was not kept.
const withoutMemory = "its memory was not kept"

var (
	pause = transition{"pause", []api.Status{api.Running}, "", api.Paused, api.EventPaused,
		func(ctx context.Context, h hostapi.Host, r *record) error { return h.Pause(ctx, r.machineID()) }}
	resume = transition{"resume", []api.Status{api.Paused}, "", api.Running, api.EventResumed,
		func(ctx context.Context, h hostapi.Host, r *record) error { return h.Resume(ctx, r.machineID()) }}
	hibernate = transition{"hibernate", []api.Status{api.Running, api.Paused}, api.Hibernating, api.Hibernated,
		api.EventHibernated, func(ctx context.Context, h hostapi.Host, r *record) error {
			err := h.Hibernate(ctx, r.machineID())
			if err == nil {
				r.GuestIP, r.Tap, r.Reason = "", "", ""
			}
			return err
		}}
	stop = transition{"stop", []api.Status{api.Running}, api.Hibernating, api.Hibernated, api.EventHibernated,
		func(ctx context.Context, h hostapi.Host, r *record) error {
			err := h.Stop(ctx, r.machineID())
			if err == nil {
				r.GuestIP, r.Tap, r.Reason = "", "", withoutMemory
			}
			return err
		}}
	wake = transition{"wake", []api.Status{api.Hibernated, api.Failed}, api.Waking, api.Running, api.EventWoken,
		func(ctx context.Context, h hostapi.Host, r *record) error {
			m, err := h.Wake(ctx, r.machineID())
			if err != nil {
				return err
			}
			r.applyMachine(m)
			r.Reason = ""
			return nil
		}}
)

// Pause stops a running sandbox and keeps it in memory. A paused sandbox stays as it is.
func (s *Service) Pause(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return s.perform(ctx, p, id, pause)
}

// Resume continues a paused sandbox. A running sandbox stays as it is.
func (s *Service) Resume(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return s.perform(ctx, p, id, resume)
}

// Hibernate writes a running or paused sandbox to disk and stops it. A hibernated sandbox stays as it is.
func (s *Service) Hibernate(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return s.perform(ctx, p, id, hibernate)
}

// Stop shuts a running sandbox down and keeps its disk, not its memory; Wake boots it. A hibernated sandbox
// loses its memory, and its disk is as after a power failure.
func (s *Service) Stop(ctx context.Context, p auth.Principal, id api.SandboxID) (_ api.Sandbox, err error) {
	defer s.finishVerb("stop", time.Now(), &err)
	r, ctx, release, err := s.lock(ctx, p, id)
	if err != nil {
		return api.Sandbox{}, err
	}
	defer release()
	s.activity.Touch(string(r.ID))
	if r.State == api.Hibernated {
		if err := s.host.Stop(ctx, r.machineID()); err != nil {
			return api.Sandbox{}, s.operationFailed(ctx, &r, err, stop.name)
		}
		r.Reason = withoutMemory
		err := s.setState(ctx, "stop end", &r, api.Hibernated)
		return s.view(&r), err
	}
	if err := s.runTransition(ctx, &r, stop); err != nil {
		return api.Sandbox{}, err
	}
	return s.view(&r), nil
}

// Wake restores a hibernated sandbox, or boots a failed one from its disk. A running sandbox stays as it is.
func (s *Service) Wake(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return s.perform(ctx, p, id, wake)
}

// perform runs a transition for a user.
func (s *Service) perform(
	ctx context.Context, p auth.Principal, id api.SandboxID, t transition,
) (_ api.Sandbox, err error) {
	defer s.finishVerb(t.name, time.Now(), &err)
	r, ctx, release, err := s.lock(ctx, p, id)
	if err != nil {
		return api.Sandbox{}, err
	}
	defer release()
	s.activity.Touch(string(r.ID))
	if err := s.runTransition(ctx, &r, t); err != nil {
		return api.Sandbox{}, err
	}
	return s.view(&r), nil
}

// runTransition moves a sandbox whose lock is held.
func (s *Service) runTransition(ctx context.Context, r *record, t transition) error {
	if r.State == t.to && r.PauseReason == "" { // what its host has paused continues by itself
		return nil
	}
	if !slices.Contains(t.from, r.State) {
		return wrongState(r, t.name)
	}
	if t.via != "" {
		var uses []quota.Amount
		if t.via == api.Waking {
			uses = runningUses(r)
		}
		if err := s.setStateUsing(ctx, t.name+" begin", r, t.via, uses); err != nil {
			return cmp.Or(hosterror.Interruption(ctx), err)
		}
	}
	if err := t.do(ctx, s.host, r); err != nil {
		return s.operationFailed(ctx, r, err, t.name)
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	return s.setState(ctx, t.name+" end", r, t.to, newEvent{t.event, nil})
}

// operationFailed returns why an operation on a sandbox failed, after it brought the record to what the host
// says. The lock is held.
func (s *Service) operationFailed(ctx context.Context, r *record, err error, doing string) error {
	if why := hosterror.Interruption(ctx); why != nil { // by a deletion, which ends the sandbox now
		return why
	}
	why := hosterror.Wrap(err, doing, string(r.ID))
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := s.followMachine(ctx, r, hostapi.Event{}); err != nil {
		s.log.Warn("a sandbox could not be brought to the state of its machine; it is tried again",
			"sandbox", r.ID, "err", err)
	}
	if errors.Is(err, hostapi.ErrNotFound) && r.State == api.Deleted {
		return s.endedError(ctx, auth.Principal{Workspace: r.Workspace}, r.ID)
	}
	return why
}
