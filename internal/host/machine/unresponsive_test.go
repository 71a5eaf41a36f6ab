package machine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
)

// stoppable are the operations that stop a running machine.
var stoppable = map[string]func(ctx context.Context, w *fixture) error{
	"pause":     func(ctx context.Context, w *fixture) error { return w.mgr.Pause(ctx, "a") },
	"hibernate": func(ctx context.Context, w *fixture) error { return w.mgr.Hibernate(ctx, "a") },
	"stop":      func(ctx context.Context, w *fixture) error { return w.mgr.Stop(ctx, "a") },
	"snapshot": func(ctx context.Context, w *fixture) error {
		_, err := w.mgr.TakeSnapshot(ctx, "a", "snapshots/s", nil, nil)
		return err
	},
	"fork": func(ctx context.Context, w *fixture) error {
		_, err := w.mgr.Fork(ctx, machine.ForkRequest{Parent: "a", Children: []machine.ChildRequest{{ID: "b"}}})
		return err
	},
}

// setStopped makes all monitors and guests do not reply, or reply again.
func (w *fixture) setStopped(stopped bool) {
	w.host.mu.Lock()
	defer w.host.mu.Unlock()
	w.host.stopped = stopped
}

// TestStoppedMonitor checks that operations on a machine that does not reply end by themselves, and say that they may
// be tried again.
func TestStoppedMonitor(t *testing.T) {
	for name, do := range stoppable {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.stop()
			w.freeze = 20 * time.Millisecond
			w.boot()
			w.create("a", true)
			w.count("a", 1)
			w.setStopped(true)
			if err := do(t.Context(), w); !errors.Is(err, guestapi.ErrLost) {
				t.Errorf("on a machine that does not reply: %v, want ErrLost", err)
			}
			w.setStopped(false)
			w.must(w.mgr.Pause(t.Context(), "a"))
			w.must(w.mgr.Resume(t.Context(), "a"))
			w.count("a", 2)
			w.destroyAll(name)
		})
	}
}

// TestDestroyInterruptsOperations destroys a machine whose monitor does not reply, in the middle of every operation.
// No limit of time helps: the operations would wait for an hour.
func TestDestroyInterruptsOperations(t *testing.T) {
	for name, do := range stoppable {
		for _, step := range []string{"", "freeze", "capture"} {
			if step == "capture" && (name == "pause" || name == "stop") {
				continue
			}
			t.Run(name+" "+step, func(t *testing.T) {
				w := newFixture(t)
				w.stop()
				w.freeze = time.Hour
				w.boot()
				w.create("a", true)
				w.create("other", false)
				begun := make(chan struct{}, 64)
				w.onStep(func(_, done string) error {
					if done == step {
						w.setStopped(true)
						begun <- struct{}{}
					}
					return nil
				})
				if step == "" {
					w.setStopped(true)
					begun <- struct{}{}
				}
				result := make(chan error, 1)
				go func() { result <- do(context.WithoutCancel(t.Context()), w) }()
				<-begun
				w.eventually("the machine is destroyed", func() bool {
					w.must(w.mgr.Destroy(t.Context(), "a", "test"))
					select {
					case err := <-result:
						if err != nil && !errors.Is(err, hostapi.ErrNotFound) {
							t.Errorf("the operation that was interrupted: %v, want ErrNotFound", err)
						}
						return true
					default:
						return false
					}
				})
				w.onStep(nil)
				w.setStopped(false)
				w.must(w.mgr.Destroy(t.Context(), "a", "test"))
				w.destroyAll("the operation")
			})
		}
	}
}

// TestProbe asks the guests of machines that reply, that do not, and that cannot.
func TestProbe(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.must(w.mgr.Probe(t.Context(), "a"))
	w.setStopped(true)
	ctx, cancel := deadline(t, 20*time.Millisecond)
	defer cancel()
	if err := w.mgr.Probe(ctx, "a"); err == nil || errors.Is(err, hostapi.ErrWrongState) {
		t.Errorf("probe of a guest that does not reply: %v, want that it did not", err)
	}
	w.setStopped(false)
	w.must(w.mgr.Probe(t.Context(), "a"))
	w.must(w.mgr.Pause(t.Context(), "a"))
	if err := w.mgr.Probe(t.Context(), "a"); !errors.Is(err, hostapi.ErrWrongState) {
		t.Errorf("probe of a paused machine: %v, want ErrWrongState", err)
	}
	if err := w.mgr.Probe(t.Context(), "b"); !errors.Is(err, hostapi.ErrNotFound) {
		t.Errorf("probe of no machine: %v, want ErrNotFound", err)
	}
}
