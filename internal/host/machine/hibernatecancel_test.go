package machine_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// TestHibernateCanceled cancels a hibernation after each of its steps. Until the image is committed the machine
// continues; afterwards it is hibernated, and holds nothing that it does not need.
func TestHibernateCanceled(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	var steps []string
	w.onStep(func(op, step string) error {
		if op == "hibernate" {
			steps = append(steps, step)
		}
		return nil
	})
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	if _, err := w.mgr.Wake(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	committed := slices.Index(steps, "commit")
	if committed < 0 {
		t.Fatalf("steps %v", steps)
	}
	enough := errors.New("a request has come")
	for i, at := range steps {
		w.onStep(nil)
		w.count("a", uint64(i+1))
		ctx, cancel := context.WithCancelCause(t.Context())
		w.onStep(func(op, step string) error {
			if op == "hibernate" && step == at {
				cancel(enough)
			}
			return nil
		})
		err := w.mgr.Hibernate(ctx, "a")
		cancel(nil)
		view, found := w.mgr.Get("a")
		switch {
		case found != nil:
			t.Fatal(found)
		case i < committed && (!errors.Is(err, enough) || view.State != hostapi.Running):
			t.Errorf("canceled after %s: %v, and the machine is %v", at, err, view.State)
		case i >= committed && (err != nil || view.State != hostapi.Hibernated):
			t.Errorf("canceled after %s: %v, and the machine is %v", at, err, view.State)
		}
		w.checkNoLeftovers()
		if view.State == hostapi.Hibernated {
			if _, err := w.mgr.Wake(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.destroy("a")
	w.checkEmpty()
}
