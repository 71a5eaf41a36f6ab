package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/volume/lease"
)

// statusOf returns the state of a sandbox whose machine is in state.
func statusOf(state hostapi.State) api.Status {
	switch state {
	case hostapi.Creating:
		return api.Creating
	case hostapi.Running:
		return api.Running
	case hostapi.Paused:
		return api.Paused
	case hostapi.Hibernated:
		return api.Hibernated
	case hostapi.Failed:
		return api.Failed
	}
	return api.Failed
}

// machine asks the host for the machine of a sandbox. missing is true only if the host that had the machine
// says that it does not exist; a host that cannot tell is an error.
func (s *Service) machine(ctx context.Context, r *record) (m hostapi.Machine, missing bool, err error) {
	m, err = s.host.Get(ctx, r.machineID())
	if !errors.Is(err, hostapi.ErrNotFound) {
		return m, false, hosterror.Wrap(err, "look at", string(r.ID))
	}
	c, err := s.host.Capacity(ctx)
	if err != nil {
		return m, false, hosterror.Wrap(err, "ask the host of", string(r.ID))
	}
	if r.Host != "" && c.Host != "" && r.Host != c.Host {
		err := fmt.Errorf("it is on host %s, which is not host %s: %w", r.Host, c.Host, hostapi.ErrUnavailable)
		return m, false, hosterror.Wrap(err, "look at", string(r.ID))
	}
	return m, true, nil
}

// followMachine brings a sandbox to the state of its machine. said is the event with which the host reported
// a change, if it did. The lock is held.
func (s *Service) followMachine(ctx context.Context, r *record, said hostapi.Event) error {
	if r.State == api.Stopping {
		return s.finishDelete(ctx, r, r.Reason, nil)
	}
	m, missing, err := s.machine(ctx, r)
	if err != nil {
		return err
	}
	if r.State == api.Creating {
		return s.finishInterruptedCreate(ctx, r, m, missing)
	}
	if said.Reason == "" {
		said.Reason = m.Reason
	}
	if missing || m.State == hostapi.Failed && !r.Persistent {
		return s.endDead(ctx, r, said)
	}
	if err := s.applySettings(ctx, r, m); err != nil {
		return err
	}
	if err := s.followSilence(ctx, r, m.Unresponsive); err != nil {
		return err
	}
	to := statusOf(m.State)
	if to == api.Creating || to == r.State && m.PauseReason == r.PauseReason && lease.Same(r.Volumes, m.Volumes) {
		return nil
	}
	from, why := r.State, r.PauseReason
	r.applyMachine(m)
	if err := s.applyVolumes(ctx, r, m); err != nil {
		return err
	}
	if to == from && why == r.PauseReason {
		return s.setState(ctx, "settle", r, to)
	}
	var events []newEvent
	switch to {
	case api.Failed:
		if r.Reason = said.Reason; r.Reason == "" {
			r.Reason = "its monitor died"
		}
		events = []newEvent{
			{api.EventMachineDied, map[string]any{"reason": said.Reason}},
			{api.EventFailed, map[string]any{"reason": r.Reason}},
		}
	case api.Hibernated:
		events = []newEvent{{api.EventHibernated, nil}}
	case api.Paused:
		events = []newEvent{{api.EventPaused, reasonPayload(m.PauseReason)}}
	case api.Running:
		r.Reason = ""
		switch from {
		case api.Waking, api.Hibernated:
			events = []newEvent{{api.EventWoken, nil}}
		case api.Paused:
			events = []newEvent{{api.EventResumed, reasonPayload(why)}}
		case api.Creating, api.Running, api.Hibernating, api.Stopping, api.Deleted, api.Failed:
			events = []newEvent{{api.EventRunning, nil}}
		}
	case api.Creating, api.Hibernating, api.Waking, api.Stopping, api.Deleted:
	}
	return s.setState(ctx, "settle", r, to, events...)
}

// followSilence writes an event when the guest of a sandbox stops to reply, and when it replies again.
func (s *Service) followSilence(ctx context.Context, r *record, since time.Time) error {
	if s.silent.Since(r.ID).Equal(since) {
		return nil
	}
	event := newEvent{api.EventResponsive, nil}
	if !since.IsZero() {
		event = newEvent{api.EventUnresponsive, map[string]any{"since": since.UTC().Format(time.RFC3339)}}
	}
	err := s.db.Write(ctx, "silence", func(ctx context.Context, tx *store.Tx) error {
		return s.appendEvents(ctx, tx, r, event)
	})
	if err != nil {
		return err
	}
	s.silent.Set(r.ID, since)
	s.events.Notify(r.ID)
	return nil
}

// reasonPayload returns the payload of an event that the host caused; nil if a user did.
func reasonPayload(why hostapi.PauseReason) map[string]any {
	if why == "" {
		return nil
	}
	return map[string]any{"reason": string(why)}
}

// differs reports whether a sandbox and its machine disagree about the state or the settings.
func differs(r *record, m hostapi.Machine) bool {
	return r.State != statusOf(m.State) || r.PauseReason != m.PauseReason ||
		r.Persistent != m.Persistent || !lease.Same(r.Volumes, m.Volumes) || !m.Egress.Equal(r.egress())
}

// applySettings puts the settings of the record in force on its machine, where they differ.
func (s *Service) applySettings(ctx context.Context, r *record, m hostapi.Machine) error {
	if m.Persistent != r.Persistent {
		if err := s.host.SetPersistent(ctx, m.ID, r.Persistent); err != nil {
			return hosterror.Wrap(err, "change the lifecycle of", string(r.ID))
		}
	}
	if policy := r.egress(); !m.Egress.Equal(policy) {
		if err := s.host.SetEgress(ctx, m.ID, policy); err != nil {
			return hosterror.Wrap(err, "change the network of", string(r.ID))
		}
	}
	return nil
}

// finishInterruptedCreate finishes a create whose process has ended. Only a caller with an idempotency key can
// ask for the sandbox again; any other has lost its id, and the machine with it.
func (s *Service) finishInterruptedCreate(ctx context.Context, r *record, m hostapi.Machine, missing bool) error {
	if !missing && m.State == hostapi.Running && r.IdempotencyKey != "" && r.EndReason == "" {
		return s.markRunning(ctx, r, m)
	}
	r.EndReason = EndedCreateFailed
	return s.finishDelete(ctx, r, "its creation was interrupted", nil)
}

// endDead ends a sandbox whose machine does not exist any more.
func (s *Service) endDead(ctx context.Context, r *record, said hostapi.Event) error {
	err := s.db.Write(ctx, "died", func(ctx context.Context, tx *store.Tx) error {
		return s.appendEvents(ctx, tx, r, newEvent{api.EventMachineDied, map[string]any{"reason": said.Reason}})
	})
	if err != nil {
		return err
	}
	return s.endLocked(ctx, r, causeOfDeath(said))
}

// ReconcileSandbox implements reconcile.Records.
func (s reconcilable) ReconcileSandbox(ctx context.Context, id api.SandboxID) error {
	return s.ifIdle(ctx, id, func(ctx context.Context, r *record) error {
		if s.ownedElsewhere(r) {
			return nil
		}
		return s.followMachine(ctx, r, hostapi.Event{})
	})
}

// ownedElsewhere reports whether another process on a shared store may have an operation under way on a
// sandbox.
func (s *Service) ownedElsewhere(r *record) bool {
	switch r.State {
	case api.Creating, api.Hibernating, api.Waking, api.Stopping:
		return s.db.Shared() && r.Instance != s.instance && time.Since(r.Changed) < s.cfg.ForeignOwnerGrace
	case api.Running, api.Paused, api.Hibernated, api.Failed, api.Deleted:
	}
	return false
}
