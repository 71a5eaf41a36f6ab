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

// Phases measures the consecutive parts of one operation. Create one with Start. It is safe for concurrent use,
// though the phases then follow the order of the calls.
type Phases struct {
	mu    sync.Mutex
	began time.Time
	last  time.Time
	list  []Phase
}

// Start starts a measurement.
func Start() *Phases {
	now := time.Now()
	return &Phases{began: now, last: now}
}

// Done ends the phase that began with the previous call, under the given name.
func (p *Phases) Done(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.list = append(p.list, Phase{name, now.Sub(p.last)})
	p.last = now
}

// List returns the phases so far, in order.
func (p *Phases) List() []Phase {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Phase(nil), p.list...)
}

// Total returns the time since Start.
func (p *Phases) Total() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.began)
}

// Attr returns the phases as one group for a log line.
func (p *Phases) Attr() slog.Attr {
	list := p.List()
	args := make([]any, 0, len(list))
	for _, ph := range list {
		args = append(args, slog.Duration(ph.Name, ph.Took))
	}
	return slog.Group("phases", args...)
}
