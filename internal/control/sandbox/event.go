package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// hub tells followers that there is news of a sandbox. The zero value is ready.
type hub struct {
	mu sync.Mutex
	m  map[string]map[chan struct{}]bool
}

// subscribe answers a channel that holds a token when there is news, and the end of it.
func (h *hub) subscribe(id string) (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.m == nil {
		h.m = map[string]map[chan struct{}]bool{}
	}
	if h.m[id] == nil {
		h.m[id] = map[chan struct{}]bool{}
	}
	h.m[id][ch] = true
	return ch, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.m[id], ch)
		if len(h.m[id]) == 0 {
			delete(h.m, id)
		}
	}
}

// notify wakes the followers of a sandbox.
func (h *hub) notify(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ch := range h.m[id] {
		select {
		case ch <- struct{}{}:
		default: // it has a token already
		}
	}
}

// visible tells whether the caller may see what happened to a sandbox, alive or not, and whether it
// lives.
func (s *Service) visible(ctx context.Context, p auth.Principal, id api.SandboxID) (alive bool, err error) {
	if _, err = s.row(ctx, p, id); err == nil {
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

// pollEvents is how often a follower looks at a store that other processes write to.
const pollEvents = 2 * time.Second

// FollowEvents calls yield for the events that q selects and then for each as it happens, without a gap,
// until ctx ends, yield answers an error, or the sandbox has ended and its last event was told (nil).
func (s *Service) FollowEvents(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
	q EventQuery,
	yield func(Event) error,
) (err error) {
	news, leave := s.changes.subscribe(string(id))
	defer leave()
	var poll <-chan time.Time
	if s.db.Shared() {
		t := time.NewTicker(pollEvents)
		defer t.Stop()
		poll = t.C
	}
	for {
		// Asked before the events are read: what ends in between is told by the next round.
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
		case <-news:
		case <-poll:
		}
	}
}

// Ports lists declared ports and, while it runs, those that programs listen on. It wakes nothing and
// does not count as use.
func (s *Service) Ports(ctx context.Context, p auth.Principal, id api.SandboxID) (_ []api.Port, err error) {
	defer s.finishVerb("ports", time.Now(), &err)
	r, err := s.row(ctx, p, id)
	if err != nil {
		return nil, err
	}
	return s.viewPorts(ctx, &r)
}

func proxyURL(id string, port int) string {
	return "/v1/sandboxes/" + id + "/proxy/" + itoa(port) + "/"
}

// DeclarePort gives a port a label; declaring again changes it.
func (s *Service) DeclarePort(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
	req api.PortRequest,
) (_ api.Port, err error) {
	defer s.finishVerb("declare port", time.Now(), &err)
	if err := req.Validate(); err != nil {
		return api.Port{}, err
	}
	r, err := s.row(ctx, p, id)
	if err != nil {
		return api.Port{}, err
	}
	row := &store.Port{Sandbox: r.ID, Port: req.Port, Label: req.Label, Created: store.Micros(time.Now())}
	err = s.db.Write(ctx, "port", func(ctx context.Context, tx *store.Tx) error {
		if _, err := tx.Sandbox(ctx, r.ID); err != nil { // it may have ended since
			return err
		}
		known, err := tx.Ports(ctx, r.ID)
		if err != nil {
			return err
		}
		if len(known) >= maxPorts {
			return api.Errorf(api.QuotaExceeded, "sandbox %s has %d declared ports: remove some first", id, len(known))
		}
		return tx.PutPort(ctx, row)
	})
	if errors.Is(err, store.ErrNotFound) {
		return api.Port{}, s.endedError(ctx, p, id)
	}
	if err != nil {
		return api.Port{}, err
	}
	all, err := s.viewPorts(ctx, &r)
	if err != nil {
		return api.Port{}, err
	}
	for _, port := range all {
		if port.Port == req.Port {
			return port, nil
		}
	}
	return api.Port{}, s.endedError(ctx, p, id)
}

// maxPorts bounds what may be declared per sandbox.
const maxPorts = 256

// RemovePort takes a declaration back; one that is not there is not_found.
func (s *Service) RemovePort(ctx context.Context, p auth.Principal, id api.SandboxID, port int) (err error) {
	defer s.finishVerb("remove port", time.Now(), &err)
	if _, err := s.row(ctx, p, id); err != nil {
		return err
	}
	err = s.db.Write(
		ctx,
		"port",
		func(ctx context.Context, tx *store.Tx) error { return tx.DeletePort(ctx, string(id), port) },
	)
	if errors.Is(err, store.ErrNotFound) {
		return api.Errorf(api.NotFound, "port %d of sandbox %s was not declared", port, id)
	}
	return err
}
