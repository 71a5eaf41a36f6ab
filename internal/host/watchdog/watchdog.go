// Package watchdog finds machines whose guests do not answer: their monitor is stopped, or their kernel or agent hangs.
//
// It watches the requests that are made anyway. One without an answer makes a guest suspect, and a single question with
// a deadline decides. A guest that is asked nothing by others is asked rarely, so that an idle machine sleeps.
package watchdog

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// Machine is a running machine.
type Machine struct {
	ID         hostapi.MachineID
	Generation uint64
}

// Machines are the machines of a host.
type Machines interface {
	// Running returns the machines whose guests should answer.
	Running() []Machine
	// Probe asks the guest of a machine for as little as possible. hostapi.ErrWrongState and hostapi.ErrNotFound: it
	// cannot be expected to answer now.
	Probe(ctx context.Context, id hostapi.MachineID) error
}

// Config has the times of a Watchdog. Zero fields have defaults.
type Config struct {
	// Suspect is how long a request may wait for its answer before the guest is asked; default 5 s. As often, guests
	// that do not answer are asked again.
	Suspect time.Duration
	// Deadline is how long the guest may take for that answer; default 10 s.
	Deadline time.Duration
	// Idle is the time, more or less, after which a guest is asked that has answered nothing; default 2 min.
	Idle time.Duration
}

// parallel bounds the guests that are asked at once.
const parallel = 16

// Watchdog watches the guests of a host. Make one with New, and keep Run running.
type Watchdog struct {
	cfg      Config
	machines Machines
	report   func(id hostapi.MachineID, since time.Time)
	log      *slog.Logger

	mu     sync.Mutex
	guests map[hostapi.MachineID]*guest
}

// guest is what is known of one generation of a machine's guest.
type guest struct {
	generation uint64
	questions  map[*question]struct{} // that have no answer yet
	unanswered time.Time              // of the first question since the last answer that was given up; zero: none
	due        time.Time              // when it is asked although no question waits
	since      time.Time              // since when it does not answer; zero: it does
	probed     bool                   // it is being asked
}

// patience is how long a request must have waited for its end without an answer to say something of the guest.
const patience = time.Second

// question is a request to a guest.
type question struct{ at time.Time }

// New returns a watchdog. report is called when a guest stops to reply, and with a zero time when it replies again.
func New(cfg Config, machines Machines, report func(hostapi.MachineID, time.Time), log *slog.Logger) *Watchdog {
	if cfg.Suspect <= 0 {
		cfg.Suspect = 5 * time.Second
	}
	if cfg.Deadline <= 0 {
		cfg.Deadline = 10 * time.Second
	}
	if cfg.Idle <= 0 {
		cfg.Idle = 2 * time.Minute
	}
	return &Watchdog{cfg: cfg, machines: machines, report: report, log: log,
		guests: map[hostapi.MachineID]*guest{}}
}

// Unresponsive returns since when the guest of a machine does not answer; zero: it does, as far as is known.
func (w *Watchdog) Unresponsive(id hostapi.MachineID) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if g := w.guests[id]; g != nil {
		return g.since
	}
	return time.Time{}
}

// Ask notes a request to the guest of a machine. The returned function notes its end, and whether it was answered.
func (w *Watchdog) Ask(id hostapi.MachineID) func(answered bool) {
	q := &question{at: time.Now()}
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.guests[id]
	if g == nil {
		g = w.newGuest(0)
		w.guests[id] = g
	}
	g.questions[q] = struct{}{}
	return func(answered bool) {
		w.mu.Lock()
		delete(g.questions, q)
		recovered := answered && w.answered(g)
		if !answered && g.unanswered.IsZero() && time.Since(q.at) >= patience {
			g.unanswered = q.at
		}
		w.mu.Unlock()
		if recovered {
			w.report(id, time.Time{})
		}
	}
}

func (w *Watchdog) newGuest(generation uint64) *guest {
	return &guest{generation: generation, questions: map[*question]struct{}{}, due: w.nextIdle()}
}

// nextIdle returns when a guest that replies now is asked again: not all at once.
func (w *Watchdog) nextIdle() time.Time {
	return time.Now().Add(w.cfg.Idle*3/4 + rand.N(w.cfg.Idle/2))
}

// answered notes that a guest lives, and reports whether that is news. The caller holds mu.
func (w *Watchdog) answered(g *guest) (recovered bool) {
	recovered = !g.since.IsZero()
	g.since, g.unanswered, g.due = time.Time{}, time.Time{}, w.nextIdle()
	return recovered
}

// Run watches until ctx ends, and waits for the questions that are open then.
func (w *Watchdog) Run(ctx context.Context) error {
	tick := time.NewTicker(w.cfg.Suspect)
	defer tick.Stop()
	var probes sync.WaitGroup
	defer probes.Wait()
	places := make(chan struct{}, parallel)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, s := range w.suspects() {
			select {
			case places <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			probes.Go(func() {
				defer func() { <-places }()
				w.probe(ctx, s)
			})
		}
	}
}

// suspects returns the guests to ask, with the time since when they are suspect, and forgets those that do not run.
func (w *Watchdog) suspects() []suspect {
	running := map[hostapi.MachineID]uint64{}
	for _, m := range w.machines.Running() {
		running[m.ID] = m.Generation
	}
	now := time.Now()
	var out []suspect
	var gone []hostapi.MachineID
	w.mu.Lock()
	for id, generation := range running {
		g := w.guests[id]
		if g == nil {
			g = w.newGuest(generation)
			w.guests[id] = g
		}
		if g.generation != generation && g.generation != 0 { // another guest, which answered when it started
			if w.answered(g) {
				gone = append(gone, id)
			}
		}
		g.generation = generation
		if since, ok := g.suspect(now, w.cfg.Suspect); ok && !g.probed {
			g.probed = true
			out = append(out, suspect{Machine{id, generation}, since})
		}
	}
	for id, g := range w.guests {
		if _, ok := running[id]; !ok && !g.probed && len(g.questions) == 0 {
			delete(w.guests, id)
			if !g.since.IsZero() {
				gone = append(gone, id)
			}
		}
	}
	w.mu.Unlock()
	for _, id := range gone {
		w.report(id, time.Time{})
	}
	return out
}

// suspect reports whether a guest is to be asked now, and since when it may not answer.
func (g *guest) suspect(now time.Time, after time.Duration) (since time.Time, ok bool) {
	if !g.since.IsZero() {
		return g.since, true
	}
	since = now
	if !g.unanswered.IsZero() {
		since = g.unanswered
	}
	for q := range g.questions {
		if now.Sub(q.at) >= after && q.at.Before(since) {
			since = q.at
		}
	}
	return since, since.Before(now) || now.After(g.due)
}

// suspect is a guest that may not answer, and since when.
type suspect struct {
	Machine
	since time.Time
}

// probe asks a guest, which decides.
func (w *Watchdog) probe(ctx context.Context, s suspect) {
	id, generation := s.ID, s.Generation
	limited, cancel := context.WithTimeoutCause(ctx, w.cfg.Deadline, errors.New("the guest did not reply in time"))
	defer cancel()
	err := w.machines.Probe(limited, id)
	w.mu.Lock()
	g := w.guests[id]
	g.probed = false
	was := g.since
	switch {
	case g.generation != generation:
	case err == nil:
		w.answered(g)
		for q := range g.questions { // a request may take long; it is suspect again only if the guest is silent then
			q.at = time.Now()
		}
	case ctx.Err() != nil, errors.Is(err, hostapi.ErrWrongState), errors.Is(err, hostapi.ErrNotFound),
		errors.Is(err, guestapi.ErrLost): // its monitor has ended
	case was.IsZero():
		g.since = s.since
	}
	now := g.since
	w.mu.Unlock()
	switch {
	case was.IsZero() && !now.IsZero():
		w.log.Warn("the guest of a machine does not answer", "machine", id, "since", now, "err", err)
		w.report(id, now)
	case !was.IsZero() && now.IsZero():
		w.log.Info("the guest of a machine replies again", "machine", id)
		w.report(id, time.Time{})
	}
}
