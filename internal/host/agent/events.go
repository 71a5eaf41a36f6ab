package agent

import (
	"context"
	"errors"
	"sync"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// eventBuffer is how many events may wait for a subscriber before its stream ends.
const eventBuffer = 1024

// errSlowSubscriber ends the stream of a subscriber that does not keep up; it has to compare everything.
var errSlowSubscriber = errors.New("events were not taken fast enough; list the machines again")

// hub sends events to all subscribers. The zero value is ready for use.
type hub struct {
	host hostapi.HostID // set before the first event

	mu          sync.Mutex
	subscribers map[chan hostapi.Event]struct{}
}

// emit sends an event to all subscribers and waits for none.
func (h *hub) emit(e hostapi.Event) {
	e.Host = h.host
	h.mu.Lock()
	defer h.mu.Unlock()
	for ch := range h.subscribers {
		select {
		case ch <- e:
		default:
			delete(h.subscribers, ch)
			close(ch)
		}
	}
}

// Events implements hostapi.Host.
func (h *Host) Events(ctx context.Context) (hostapi.Stream[hostapi.Event], error) {
	ch := make(chan hostapi.Event, eventBuffer)
	h.hub.subscribe(ch)
	return hostapi.NewStream(ctx, func(ctx context.Context, send func(hostapi.Event) error) error {
		defer h.hub.unsubscribe(ch)
		for {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case e, ok := <-ch:
				if !ok {
					return errSlowSubscriber
				}
				if err := send(e); err != nil {
					return err
				}
			}
		}
	}), nil
}

func (h *hub) subscribe(ch chan hostapi.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subscribers == nil {
		h.subscribers = map[chan hostapi.Event]struct{}{}
	}
	h.subscribers[ch] = struct{}{}
}

func (h *hub) unsubscribe(ch chan hostapi.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.subscribers, ch)
}
