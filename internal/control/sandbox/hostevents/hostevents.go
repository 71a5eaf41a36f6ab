// Package hostevents hands the events of a host to a handler, machine by machine.
package hostevents

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// retryDelay is the pause before a broken stream of events is opened again.
const retryDelay = time.Second

// maxPending limits the events that wait for their sandboxes. Beyond it events are dropped and the
// reconciler runs instead.
const maxPending = 1024

// Source is a host that reports events. hostapi.Host has it.
type Source interface {
	Events(ctx context.Context) (hostapi.Stream[hostapi.Event], error)
}

// Handler acts on one event. It may take its time: it delays only events of the same machine.
type Handler interface {
	HandleEvent(ctx context.Context, e hostapi.Event) error
}

// Dispatcher hands the events of a host to a handler, so that a slow machine delays no other.
//
// Events of one machine are handled in order, those of different machines concurrently.
type Dispatcher struct {
	source Source
	handle Handler
	missed func() // called when events were missed: the stream broke, or too many are pending
	log    *slog.Logger

	workers sync.WaitGroup
	mu      sync.Mutex
	queues  map[hostapi.MachineID][]hostapi.Event // a worker runs for every entry
	pending int
}

// New returns a dispatcher. missed is called when events were missed: the stream broke, or too many are pending.
func New(source Source, handle Handler, missed func(), log *slog.Logger) *Dispatcher {
	return &Dispatcher{source: source, handle: handle, missed: missed, log: log,
		queues: map[hostapi.MachineID][]hostapi.Event{}}
}

// Run follows the host's events until ctx ends, and waits for the handlers that run then.
func (d *Dispatcher) Run(ctx context.Context) error {
	defer d.workers.Wait()
	for ctx.Err() == nil {
		err := d.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		d.log.Warn("the stream of host events broke; it is opened again", "err", err)
		d.missed()
		select {
		case <-ctx.Done():
		case <-time.After(retryDelay):
		}
	}
	return nil
}

// follow dispatches the events of one stream until it ends.
func (d *Dispatcher) follow(ctx context.Context) error {
	events, err := d.source.Events(ctx)
	if err != nil {
		return err
	}
	defer events.Close()
	for {
		e, err := events.Recv(ctx)
		if err != nil {
			return err
		}
		d.dispatch(ctx, e)
	}
}

// dispatch queues an event for its machine, and starts a worker if the machine has none. It does not wait.
func (d *Dispatcher) dispatch(ctx context.Context, e hostapi.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pending >= maxPending {
		d.missed()
		return
	}
	d.pending++
	queue, running := d.queues[e.Machine]
	d.queues[e.Machine] = append(queue, e)
	if !running {
		d.workers.Go(func() { d.work(ctx, e.Machine) })
	}
}

// work handles the events of one machine, one after the other, until there are none.
func (d *Dispatcher) work(ctx context.Context, id hostapi.MachineID) {
	for {
		e, ok := d.next(id)
		if !ok {
			return
		}
		if ctx.Err() != nil {
			continue // empty the queue
		}
		if err := d.handle.HandleEvent(ctx, e); err != nil && ctx.Err() == nil {
			d.log.Warn("handling a host event failed; the reconciler will look at it", "machine", e.Machine, "err", err)
		}
	}
}

// next takes the next event of a machine. Without one it ends the machine's queue.
func (d *Dispatcher) next(id hostapi.MachineID) (hostapi.Event, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	queue := d.queues[id]
	if len(queue) == 0 {
		delete(d.queues, id)
		return hostapi.Event{}, false
	}
	d.queues[id] = queue[1:]
	d.pending--
	return queue[0], true
}
