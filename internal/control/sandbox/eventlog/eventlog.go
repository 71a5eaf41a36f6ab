// Package eventlog keeps what happened to sandboxes.
package eventlog

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/sandbox/keyed"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Event is one thing that happened to a sandbox. Seq counts from 1 within the sandbox.
type Event struct {
	Seq int64
	api.Event
}

// Query selects events of a sandbox, oldest first. Its zero value selects all that are kept.
type Query struct {
	Tail  int   // the last so many; 0: no limit
	After int64 // only events with a greater Seq
}

// Log is the log of the events of all sandboxes.
type Log struct {
	DB *store.DB
	// Keep is how many events are kept of one sandbox.
	Keep    int
	changes keyed.Hub // by sandbox
}

// Append writes an event of a sandbox. Call Notify once tx is committed.
func (l *Log) Append(
	ctx context.Context,
	tx *store.Tx,
	id api.SandboxID,
	workspace api.Workspace,
	kind string,
	payload map[string]any,
) error {
	text := "{}"
	if len(payload) > 0 {
		data, err := json.Marshal(payload)
		if err != nil {
			return fmt.Errorf("event %s: %w", kind, err)
		}
		text = string(data)
	}
	e := &store.Event{Sandbox: string(id), Workspace: string(workspace), At: store.Micros(time.Now()),
		Type: kind, Payload: text}
	if err := tx.AppendEvent(ctx, e); err != nil {
		return err
	}
	if keep := int64(l.Keep); e.Seq > keep && e.Seq%100 == 0 {
		return tx.TrimEvents(ctx, e.Sandbox, e.Seq, keep)
	}
	return nil
}

// Notify wakes those who follow the events of a sandbox.
func (l *Log) Notify(id api.SandboxID) { l.changes.Notify(string(id)) }

// List returns the events of a sandbox that q selects.
func (l *Log) List(ctx context.Context, id api.SandboxID, q Query) ([]Event, error) {
	rows, err := l.DB.Read().Events(ctx, string(id), q.After, max(q.Tail, 0))
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

// pollInterval is how often a follower reads a store that other processes write to.
const pollInterval = 2 * time.Second

// Follow calls yield for the events that q selects and then for each as it happens.
//
// alive is asked before each look at the log. Follow leaves no gap: it returns when ctx ends, when alive or yield
// returns an error, or with nil after the last event of a sandbox that is not alive.
func (l *Log) Follow(
	ctx context.Context,
	id api.SandboxID,
	q Query,
	alive func() (bool, error),
	yield func(Event) error,
) error {
	changed, unsubscribe := l.changes.Subscribe(string(id))
	defer unsubscribe()
	var poll <-chan time.Time
	if l.DB.Shared() {
		t := time.NewTicker(pollInterval)
		defer t.Stop()
		poll = t.C
	}
	for {
		// The state is read before the events: if the sandbox ends in between, the next round has the rest.
		alive, err := alive()
		if err != nil {
			return api.AsError(err)
		}
		list, err := l.List(ctx, id, q)
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
