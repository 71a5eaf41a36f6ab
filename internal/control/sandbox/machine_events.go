package sandbox

import (
	"context"
	"errors"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
	"github.com/pandastack/pandastack/internal/control/store"
)

// eventHandler implements hostevents.Handler.
type eventHandler struct{ *Service }

// HandleEvent acts on what the host reports of a machine.
func (s eventHandler) HandleEvent(ctx context.Context, e hostapi.Event) error {
	ctx, release, err := s.locks.Acquire(ctx, string(e.Machine))
	if err != nil {
		return err
	}
	defer release()
	r, err := s.load(ctx, api.SandboxID(e.Machine))
	if errors.Is(err, store.ErrNotFound) {
		return s.amendTombstone(ctx, e)
	}
	if err != nil {
		return err
	}
	if e.Type == "adopted" {
		return s.setState(ctx, "adopted", &r, r.State, newEvent{api.EventMachineAdopted, nil})
	}
	return s.followMachine(ctx, &r, e)
}

// amendTombstone adds what the host says of a death to the tombstone of a sandbox whose machine was found
// missing before the event came.
func (s *Service) amendTombstone(ctx context.Context, said hostapi.Event) error {
	why := causeOfDeath(said)
	if said.Type != "died" || why.reason == EndedHostLost {
		return nil
	}
	t, err := s.db.Read().Tombstone(ctx, string(said.Machine))
	if err == nil && t.Reason == string(EndedHostLost) {
		t.Reason, t.Message = string(why.reason), why.message
		if t.Console == "" {
			t.Console = activity.Printable(why.console)
		}
		err = s.db.Write(ctx, "amend", func(ctx context.Context, tx *store.Tx) error {
			return tx.AmendTombstone(ctx, &t, string(EndedHostLost))
		})
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil // not a sandbox, or amended already
	}
	return err
}

// causeOfDeath returns why a sandbox ended, from what the host said of it, if anything.
func causeOfDeath(said hostapi.Event) endCause {
	switch {
	case said.OutOfMemory:
		return endCause{reason: EndedOutOfMemory, message: "its machine ran out of memory: " + said.Reason,
			console: said.Console}
	case said.Reason != "":
		return endCause{reason: EndedCrash, message: "its machine died: " + said.Reason, console: said.Console}
	}
	return endCause{reason: EndedHostLost, console: said.Console,
		message: "its machine was not on its host any more: the host was restarted or lost it"}
}
