package keyed

import "sync"

// Hub wakes subscribers of a name. The zero value is ready for use.
type Hub struct {
	mu sync.Mutex
	m  map[string]map[chan struct{}]bool
}

// Subscribe returns a channel that holds a token after a Notify, and a function that unsubscribes.
func (h *Hub) Subscribe(name string) (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.m == nil {
		h.m = map[string]map[chan struct{}]bool{}
	}
	if h.m[name] == nil {
		h.m[name] = map[chan struct{}]bool{}
	}
	h.m[name][ch] = true
	return ch, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.m[name], ch)
		if len(h.m[name]) == 0 {
			delete(h.m, name)
		}
	}
}

// Notify wakes the subscribers of a name.
func (h *Hub) Notify(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ch := range h.m[name] {
		select {
		case ch <- struct{}{}:
		default: // it has a token already
		}
	}
}
