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
	"github.com/pandastack/pandastack/internal/control/store"
)

// acquireReady takes the lock of a sandbox that runs or is paused; a hibernated one is woken first. On success
// release must be called and the context used for what is done under the lock.
func (s *Service) acquireReady(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
	doing string,
	paused bool,
) (r store.Sandbox, op context.Context, release func(), err error) {
	if _, err := s.row(ctx, p, id); err != nil {
		return r, nil, nil, err
	}
	op, free, err := s.locks.acquire(ctx, string(id))
	if err != nil {
		return r, nil, nil, err
	}
	defer func() {
		if err != nil {
			free()
		}
	}()
	if r, err = s.row(op, p, id); err != nil {
		return r, nil, nil, err
	}
	s.activity.Touch(r.ID)
	if api.Status(r.State) == api.Hibernated {
		if err := s.runTransition(op, &r, wake); err != nil {
			return r, nil, nil, err
		}
	}
	status := api.Status(r.State)
	if status != api.Running && (status != api.Paused || !paused) {
		return r, nil, nil, wrongState(&r, doing)
	}
	return r, op, free, nil
}

// OpenForIngress is Guest for a caller who holds no key but something that this installation made for it, such as the host
// name of its port. Admit sees the sandbox as it is, and in whose name to act on it, before anything happens: its
// error, an *api.Error, lets nobody in. not_found for a sandbox that does not live.
func (s *Service) OpenForIngress(
	ctx context.Context,
	id api.SandboxID,
	admit func(auth.Principal, api.Sandbox) error,
) (_ guestapi.Guest, _ api.Sandbox, err error) {
	defer s.finishVerb("guest", time.Now(), &err)
	r, err := s.db.Read().Sandbox(ctx, string(id))
	if errors.Is(err, store.ErrNotFound) {
		return nil, api.Sandbox{}, api.Errorf(api.NotFound, "sandbox %.60q is not there", id)
	}
	if err != nil {
		return nil, api.Sandbox{}, api.AsError(err)
	}
	p := auth.Principal{Workspace: api.Workspace(r.Workspace)}
	if err := admit(p, s.view(&r)); err != nil {
		return nil, api.Sandbox{}, err
	}
	g, r, err := s.openGuestRow(ctx, p, r)
	if err != nil {
		return nil, api.Sandbox{}, err
	}
	return g, s.view(&r), nil
}

// Guest is the inside of a sandbox. A hibernated one is woken first, one under way is waited for, a
// paused or failed one answers wrong_state. What is done through it counts as use, and its open
// processes, readers, watchers and connections keep the sandbox from being idle until they are closed.
// Its errors are the guest's, to be compared with guestapi's sentinels; after ErrLost ask for it again.
func (s *Service) Guest(ctx context.Context, p auth.Principal, id api.SandboxID) (_ guestapi.Guest, err error) {
	defer s.finishVerb("guest", time.Now(), &err)
	g, _, err := s.openGuest(ctx, p, id)
	return g, err
}

// GuestAndSandbox is Guest, and the sandbox as Get shows it, from one look at the store.
func (s *Service) GuestAndSandbox(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
) (_ guestapi.Guest, _ api.Sandbox, err error) {
	defer s.finishVerb("guest", time.Now(), &err)
	g, r, err := s.openGuest(ctx, p, id)
	if err != nil {
		return nil, api.Sandbox{}, err
	}
	return g, s.view(&r), nil
}

func (s *Service) openGuest(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
) (guestapi.Guest, store.Sandbox, error) {
	r, err := s.row(ctx, p, id)
	if err != nil {
		return nil, r, err
	}
	return s.openGuestRow(ctx, p, r)
}

// openGuestRow is enter of a sandbox whose row was just read.
func (s *Service) openGuestRow(
	ctx context.Context,
	p auth.Principal,
	r store.Sandbox,
) (guestapi.Guest, store.Sandbox, error) {
	s.activity.Touch(r.ID)
	if api.Status(r.State) == api.Running { // the common way needs no lock
		g, err := s.host.Guest(ctx, machineID(&r))
		if err == nil {
			return s.wrapGuest(g, &r), r, nil
		}
		if !errors.Is(err, hostapi.ErrWrongState) && !errors.Is(err, hostapi.ErrNotFound) {
			return nil, r, hostError(err, "reach", r.ID)
		}
	}
	r, ctx, release, err := s.acquireReady(ctx, p, api.SandboxID(r.ID), "use", false)
	if err != nil {
		return nil, r, err
	}
	defer release()
	g, err := s.host.Guest(ctx, machineID(&r))
	if err != nil {
		return nil, r, s.operationFailed(ctx, &r, err, "reach")
	}
	return s.wrapGuest(g, &r), r, nil
}

func (s *Service) wrapGuest(g guestapi.Guest, r *store.Sandbox) guestapi.Guest {
	return s.activity.Guest(r.ID, activity.WithDefaults(g, r.User, r.Workdir))
}

// guestTimeout bounds how long a guest is waited for when its answer is a nicety.
const guestTimeout = 2 * time.Second

// Usage is what a sandbox takes now. It does not count as use and wakes nothing.
func (s *Service) Usage(ctx context.Context, p auth.Principal, id api.SandboxID) (_ api.Usage, err error) {
	defer s.finishVerb("usage", time.Now(), &err)
	r, err := s.row(ctx, p, id)
	if err != nil {
		return api.Usage{}, err
	}
	switch api.Status(r.State) {
	case api.Running, api.Paused:
	case api.Creating, api.Hibernating, api.Hibernated, api.Waking, api.Stopping, api.Deleted, api.Failed:
		return api.Usage{}, nil // at rest it takes nothing but disk
	}
	u, err := s.host.Usage(ctx, machineID(&r))
	if err != nil {
		return api.Usage{}, hostError(err, "measure", r.ID)
	}
	out := viewUsage(u)
	if api.Status(r.State) == api.Running {
		out.Guest = s.guestStats(ctx, &r)
	}
	return out, nil
}

func viewUsage(u hostapi.Usage) api.Usage {
	return api.Usage{
		PID:            u.PID,
		UptimeSeconds:  u.Uptime.Seconds(),
		HostCPUPercent: u.CPUPercent,
		HostCPUSeconds: u.CPU.Seconds(),
		HostRSSBytes:   u.RSSBytes,
		HostPSSBytes:   u.PSSBytes,
		HostVSZBytes:   u.VSZBytes,
		Threads:        u.Threads,
	}
}

// guestStats asks a guest about itself, nil if it does not answer soon.
func (s *Service) guestStats(ctx context.Context, r *store.Sandbox) *api.GuestStats {
	ctx, cancel := context.WithTimeoutCause(ctx, guestTimeout, errors.New("the guest did not answer in time"))
	defer cancel()
	g, err := s.host.Guest(ctx, machineID(r))
	if err != nil {
		return nil
	}
	st, err := g.Stats(ctx)
	if err != nil {
		return nil
	}
	return &api.GuestStats{MemTotalBytes: st.MemTotal, MemAvailableBytes: st.MemAvailable, MemCachedBytes: st.MemCached,
		DiskTotalBytes: st.DiskTotal, DiskUsedBytes: st.DiskUsed, CPUs: st.CPUs, CPUBusySeconds: st.CPUBusy.Seconds(),
		Load1: st.Load1, UptimeSeconds: st.Uptime.Seconds(), Processes: st.Processes, NetRxBytes: st.NetRx, NetTxBytes: st.NetTx}
}
