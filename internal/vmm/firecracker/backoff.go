package firecracker

import (
	"context"
	"path/filepath"
	"time"

	"github.com/pandastack/pandastack/internal/vmm"
)

func (m *machine) inDir(name string) string { return filepath.Join(m.spec.Dir, name) }

// Maximum delays between attempts to connect to the API of a starting monitor, and to a guest.
const (
	apiRetryMax   = 5 * time.Millisecond
	guestRetryMax = 50 * time.Millisecond
)

// backoff doubles the delay between attempts up to a maximum.
type backoff struct{ now, max time.Duration }

func newBackoff(most time.Duration) *backoff { return &backoff{500 * time.Microsecond, most} }

// next waits before the next attempt. It returns an error if there should be none.
func (b *backoff) next(ctx, lifetime context.Context) error {
	t := time.NewTimer(b.now)
	defer t.Stop()
	b.now = min(2*b.now, b.max)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-lifetime.Done():
		return vmm.ErrGone
	case <-t.C:
		return nil
	}
}
