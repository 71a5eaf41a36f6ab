package sandbox

import (
	"context"
	"encoding/json"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

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
	return s.events(ctx, id, q)
}

func (s *Service) events(ctx context.Context, id api.SandboxID, q EventQuery) ([]Event, error) {
	rows, err := s.db.Read().Events(ctx, string(id), q.After, max(q.Tail, 0))
	if err != nil {
		return nil, err
	}
	out := make([]Event, 0, len(rows))
	for _, r := range rows {
		var payload map[string]any
		if err := json.Unmarshal([]byte(r.Payload), &payload); err != nil {
			return nil, err
		}
		out = append(out, Event{Seq: r.Seq, Event: api.NewEvent(id, r.Type, store.Time(r.At), payload)})
	}
	return out, nil
}

// pollEvents is how often a follower reads a store that other processes write to.
const pollEvents = 2 * time.Second

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
) (err error) {
	changed, unsubscribe := s.changes.Subscribe(string(id))
	defer unsubscribe()
	var poll <-chan time.Time
	if s.db.Shared() {
		t := time.NewTicker(pollEvents)
		defer t.Stop()
		poll = t.C
	}
	for {
		// The state is read before the events: if the sandbox ends in between, the next round has the rest.
		alive, err := s.visible(ctx, p, id)
		if err != nil {
			return api.AsError(err)
		}
		list, err := s.events(ctx, id, q)
		if err != nil {
			return api.AsError(err)
		}
		for _, e := range list {
			if err := yield(e); err != nil {
				return err
			}
			q.After = e.Seq
		}
		if !alive {
			return nil
		}
		q.Tail = 0
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		case <-poll:
		}
	}
}
