package keyed_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/pandastack/pandastack/internal/control/sandbox/keyed"
)

// TestInterrupt checks that an interrupt ends the work of the holder and the wait of the callers that wait, and not
// that of later callers.
func TestInterrupt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var locks keyed.Locks
		cause := errors.New("deleted")
		if locks.Interrupt("a", cause) {
			t.Error("Interrupt() = true for a lock that is not held")
		}
		held, release, err := locks.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		waited := make(chan error, 1)
		go func() {
			_, _, err := locks.Acquire(t.Context(), "a")
			waited <- err
		}()
		synctest.Wait()
		if !locks.Interrupt("a", cause) || context.Cause(held) != cause {
			t.Errorf("the context of the holder ended with %v, want the cause of the interrupt", context.Cause(held))
		}
		later := make(chan error, 1)
		go func() {
			_, release, err := locks.Acquire(t.Context(), "a")
			if err == nil {
				release()
			}
			later <- err
		}()
		synctest.Wait()
		release()
		if err := <-waited; err != cause {
			t.Errorf("a caller that waited got %v, want the cause of the interrupt", err)
		}
		if err := <-later; err != nil {
			t.Errorf("a caller that came later got %v, want the lock", err)
		}
	})
}
