package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
	"github.com/pandastack/pandastack/internal/control/sandbox/guesterror"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/sandbox/usage"
	"github.com/pandastack/pandastack/internal/control/store"
)

// acquireReady takes the lock of a sandbox that runs or, with paused, is paused; a hibernated one is woken
// first. On success release must be called and op used for what is done under the lock.
func (s *Service) acquireReady(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
	doing string,
	paused bool,
) (r record, op context.Context, release func(), err error) {
	r, op, release, err = s.lock(ctx, p, id)
	if err != nil {
		return r, nil, nil, err
	}
	s.activity.Touch(string(r.ID))
	if r.State == api.Hibernated {
		err = s.runTransition(op, &r, wake)
	}
	if err == nil && r.State != api.Running && (r.State != api.Paused || !paused) {
		err = wrongState(&r, doing)
	}
	if err != nil {
		release()
		return r, nil, nil, err
	}
	return r, op, release, nil
}

// OpenForIngress is Guest for a caller without a key, such as one who knows the host name of a port.
//
// admit is called before anything happens, with the principal to act for and the sandbox; its error, an *api.Error,
// refuses the caller. The sandbox is returned with the guest. not_found for a sandbox that does not live, or that is
// not a user's own.
func (s *Service) OpenForIngress(
	ctx context.Context,
	id api.SandboxID,
	admit func(auth.Principal, api.Sandbox) error,
) (_ guestapi.Guest, _ api.Sandbox, err error) {
	defer s.finishVerb("guest", time.Now(), &err)
	r, err := s.load(ctx, id)
	if errors.Is(err, store.ErrNotFound) || err == nil && !r.Owner.IsZero() {
		return nil, api.Sandbox{}, api.Errorf(api.NotFound, "sandbox %.60q not found", id)
	}
	if err != nil {
		return nil, api.Sandbox{}, api.AsError(err)
	}
	if err := s.quotas.CheckActive(ctx, r.Workspace); err != nil {
		return nil, api.Sandbox{}, err
	}
	p := auth.Principal{Workspace: r.Workspace}
	if err := admit(p, s.view(&r)); err != nil {
		return nil, api.Sandbox{}, err
	}
	g, r, err := s.openGuest(ctx, p, r)
	if err != nil {
		return nil, api.Sandbox{}, err
	}
	return g, s.view(&r), nil
}

// Guest returns access to the inside of a sandbox.
//
// A hibernated sandbox is woken first, an operation under way is waited for, a paused or failed sandbox is wrong_state.
// What is done through the guest counts as use; open processes, readers, watchers and connections keep the sandbox
// from being idle until they are closed. Errors of the guest are guestapi's, to be compared with its sentinels; after
// guestapi.ErrLost call Guest again.
func (s *Service) Guest(ctx context.Context, p auth.Principal, id api.SandboxID) (_ guestapi.Guest, err error) {
	g, _, err := s.guestAndRecord(ctx, p, id)
	return g, err
}

// GuestAndSandbox is Guest and Get in one read of the store.
func (s *Service) GuestAndSandbox(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
) (guestapi.Guest, api.Sandbox, error) {
	g, r, err := s.guestAndRecord(ctx, p, id)
	if err != nil {
		return nil, api.Sandbox{}, err
	}
	return g, s.view(&r), nil
}

func (s *Service) guestAndRecord(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
) (_ guestapi.Guest, r record, err error) {
	defer s.finishVerb("guest", time.Now(), &err)
	if r, err = s.findOwn(ctx, p, id); err != nil {
		return nil, r, err
	}
	return s.openGuest(ctx, p, r)
}

// openGuest opens the guest of a sandbox that was just read.
func (s *Service) openGuest(ctx context.Context, p auth.Principal, r record) (guestapi.Guest, record, error) {
	s.activity.Touch(string(r.ID))
	if r.State == api.Running { // the common case needs no lock
		g, err := s.guests.Guest(ctx, r.machineID())
		if err == nil {
			return s.wrapGuest(g, &r), r, nil
		}
		if !errors.Is(err, hostapi.ErrWrongState) && !errors.Is(err, hostapi.ErrNotFound) {
			return nil, r, hosterror.Wrap(err, "reach", string(r.ID))
		}
	}
	id := r.ID
	r, op, release, err := s.acquireReady(ctx, p, id, "use", false)
	if errors.Is(err, errDeleted) {
		return nil, r, s.explainGuestError(ctx, p, id, err)
	}
	if err != nil {
		return nil, r, err
	}
	defer release()
	ctx = op
	g, err := s.guests.Guest(ctx, r.machineID())
	if err != nil {
		return nil, r, s.operationFailed(ctx, &r, err, "reach")
	}
	return s.wrapGuest(g, &r), r, nil
}

// wrapGuest makes a guest use the sandbox's user and directory, and count as use. Its errors say what happened to the
// sandbox.
func (s *Service) wrapGuest(g guestapi.Guest, r *record) guestapi.Guest {
	p, id := auth.Principal{Workspace: r.Workspace}, r.ID
	g = guesterror.Guest(g, func(ctx context.Context, err error) error { return s.explainGuestError(ctx, p, id, err) })
	defaults := activity.WithDefaults(g, r.User, r.Workdir)
	return s.activity.Guest(string(r.Workspace), string(r.ID), defaults, s.budgets)
}

// explainTimeout limits the wait for an operation that may be why a guest failed.
const explainTimeout = 10 * time.Second

// explainGuestError returns the error of a sandbox that ended, or of one that does not run until its user acts, if that
// is why its guest refused a request or was lost; else the error itself. What is returned wraps it.
func (s *Service) explainGuestError(ctx context.Context, p auth.Principal, id api.SandboxID, lost error) error {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	_, release, idle := s.locks.TryAcquire(ctx, string(id))
	if !idle { // the operation in progress is probably why
		var err error
		if release, err = s.acquireAfterInterrupts(ctx, id); err != nil {
			return lost
		}
	}
	release()
	r, err := s.find(ctx, p, id)
	if err == nil {
		switch r.State {
		case api.Paused, api.Stopping, api.Failed:
			err = wrongState(&r, "use")
		case api.Running:
			if idle || !errors.Is(lost, guestapi.ErrBusy) {
				return lost
			}
			err = api.Errorf(api.Unavailable, "sandbox %s was stopped for a moment by another operation: try again", id)
		case api.Creating, api.Hibernating, api.Hibernated, api.Waking, api.Deleted: // the next request wakes it
			return lost
		}
	}
	switch e := api.AsError(err); e.Code { //nolint:exhaustive // other errors are about finding out
	case api.NotFound, api.WrongState, api.NoSpace, api.Unavailable, api.WorkspaceSuspended:
		why := api.Wrap(e.Code, lost, e.Message)
		why.Details = e.Details
		return why
	}
	return lost
}

// guestTimeout limits the wait for a guest's reply that the result can do without.
const guestTimeout = 2 * time.Second

// errGuestSilent is the cause with which such a wait ends.
var errGuestSilent = errors.New("the guest did not reply in time")

// Usage returns what a sandbox takes now. It does not count as use and wakes nothing.
func (s *Service) Usage(ctx context.Context, p auth.Principal, id api.SandboxID) (_ api.Usage, err error) {
	defer s.finishVerb("usage", time.Now(), &err)
	r, err := s.find(ctx, p, id)
	if err != nil {
		return api.Usage{}, err
	}
	switch r.State {
	case api.Running, api.Paused:
	case api.Creating, api.Hibernating, api.Hibernated, api.Waking, api.Stopping, api.Deleted, api.Failed:
		return api.Usage{}, nil // without a process it takes only disk space
	}
	u, err := s.host.Usage(ctx, r.machineID())
	if err != nil {
		return api.Usage{}, hosterror.Wrap(err, "measure", string(r.ID))
	}
	out := usage.Host(u)
	if r.State == api.Running {
		out.Guest = s.guestStats(ctx, r.machineID(), guestTimeout)
	}
	return out, nil
}

// guestStats asks a guest for its statistics. It returns nil if the guest does not reply in time.
func (s *Service) guestStats(ctx context.Context, id hostapi.MachineID, limit time.Duration) *api.GuestStats {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errGuestSilent)
	defer cancel()
	g, err := s.guests.Guest(ctx, id)
	if err != nil {
		return nil
	}
	st, err := g.Stats(ctx)
	if err != nil {
		return nil
	}
	return usage.Guest(st)
}
