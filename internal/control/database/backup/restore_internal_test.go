package backup

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// healthy is a server that has not ended.
type healthy struct{ looks int }

// Check implements checker.
func (h *healthy) Check(context.Context) error { h.looks++; return nil }

// A server that recovers for a minute is looked at often at first and then rarely, for every look costs it time. That
// it is ready is noticed within a tenth of the time that it took, and a second.
func TestWaitForRecovery(t *testing.T) {
	for _, one := range []struct {
		takes, late time.Duration
		most        int
	}{
		{200 * time.Millisecond, 50 * time.Millisecond, 5},
		{5 * time.Second, 500 * time.Millisecond, 40},
		{time.Minute, time.Second, 100},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, server := time.Now(), &healthy{}
			err := waitFor(t.Context(), server, Primary{}, func(context.Context, Primary) error {
				if time.Since(began) < one.takes {
					return errRecovering
				}
				return nil
			})
			if late := time.Since(began) - one.takes; err != nil || late > one.late || server.looks > one.most {
				t.Errorf("a recovery of %v: %v late, with %d looks, %v; want %v late, with %d looks at most", one.takes,
					late, server.looks, err, one.late, one.most)
			}
		})
	}
}
