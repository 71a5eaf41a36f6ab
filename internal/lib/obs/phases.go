package obs

import (
	"log/slog"
	"sync"
	"time"
)

// Phase is one named part of an operation.
type Phase struct {
	Name string
	Took time.Duration
}

// Phases measures the parts of one operation, one after the other. Make one with Start. It may be used
// from many goroutines, though the phases then follow the order of the calls.
type Phases struct {
	mu    sync.Mutex
	began time.Time
	last  time.Time
	list  []Phase
}

// Start begins to measure.
func Start() *Phases {
	now := time.Now()
	return &Phases{began: now, last: now}
}

// Done ends the phase that began with the call before, under the given name.
func (p *Phases) Done(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.list = append(p.list, Phase{name, now.Sub(p.last)})
	p.last = now
}

// List gives the phases so far, in order.
func (p *Phases) List() []Phase {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Phase(nil), p.list...)
}

// Total is the time since Start.
func (p *Phases) Total() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.began)
}

// Attr gives the phases as one group for a log line.
func (p *Phases) Attr() slog.Attr {
	list := p.List()
	args := make([]any, 0, len(list))
	for _, ph := range list {
		args = append(args, slog.Duration(ph.Name, ph.Took))
	}
	return slog.Group("phases", args...)
}
