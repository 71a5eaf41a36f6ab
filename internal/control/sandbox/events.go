package sandbox

import (
	"context"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox/eventlog"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Event is one thing that happened to a sandbox. Seq counts from 1 within the sandbox.
type Event = eventlog.Event

// EventQuery selects events of a sandbox, oldest first. Its zero value selects all that are kept.
type EventQuery = eventlog.Query

// newEvent is an event that has not been written yet.
type newEvent struct {
	kind    string
	payload map[string]any
}

// appendEvents writes events of a sandbox.
func (s *Service) appendEvents(ctx context.Context, tx *store.Tx, r *record, all ...newEvent) error {
	for _, e := range all {
		if err := s.events.Append(ctx, tx, r.ID, r.Workspace, e.kind, e.payload); err != nil {
			return err
		}
	}
	return nil
}

// visible reports whether a sandbox lives; an error if the caller may not see what happened to it.
func (s *Service) visible(ctx context.Context, p auth.Principal, id api.SandboxID) (alive bool, err error) {
	if _, err = s.find(ctx, p, id); err == nil {
		return true, nil
	}
	if t, missing := s.db.Read().Tombstone(ctx, string(id)); missing == nil && p.Workspace != "" &&
		t.Workspace == string(p.Workspace) {
		return false, nil
	}
	return false, err
}

// Events lists what happened to a sandbox, alive or after its end, oldest first.
func (s *Service) Events(ctx context.Context, p auth.Principal, id api.SandboxID, q EventQuery) (_ []Event, err error) {
	defer s.finishVerb("events", time.Now(), &err)
	if _, err := s.visible(ctx, p, id); err != nil {
		return nil, err
	}
	return s.events.List(ctx, id, q)
}

// FollowEvents calls yield for the events that q selects and then for each as it happens.
//
// It leaves no gap. It returns when ctx ends, when yield returns an error, or with nil after the last event of a
// sandbox that has ended.
func (s *Service) FollowEvents(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
	q EventQuery,
	yield func(Event) error,
) error {
	return s.events.Follow(ctx, id, q, func() (bool, error) { return s.visible(ctx, p, id) }, yield)
}
