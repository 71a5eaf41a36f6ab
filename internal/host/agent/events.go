package agent

import (
	"context"
	"errors"
	"sync"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// behind is how many events may wait for a follower before it is given up.
const behind = 1024

// errBehind ends a follower that does not keep up: it has to look at everything again.
var errBehind = errors.New("events were not taken fast enough; list the machines again")

// hub tells events to all who follow. Its zero value is ready.
type hub struct {
	mu        sync.Mutex
	followers map[chan hostapi.Event]struct{}
}

// emit tells an event to all followers and waits for none.
func (h *hub) emit(e hostapi.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ch := range h.followers {
		select {
		case ch <- e:
		default:
			delete(h.followers, ch)
			close(ch)
		}
	}
}

// Events implements hostapi.Host.
func (h *Host) Events(ctx context.Context, yield func(hostapi.Event) error) error {
	ch := make(chan hostapi.Event, behind)
	h.hub.add(ch)
	defer h.hub.remove(ch)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e, ok := <-ch:
			if !ok {
				return errBehind
			}
			if err := yield(e); err != nil {
				return err
			}
		}
	}
}

func (h *hub) add(ch chan hostapi.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.followers == nil {
		h.followers = map[chan hostapi.Event]struct{}{}
	}
	h.followers[ch] = struct{}{}
}

func (h *hub) remove(ch chan hostapi.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.followers, ch)
}
