package firecracker

import (
	"context"
	"path/filepath"
	"time"

	"github.com/pandastack/pandastack/internal/vmm"
)

func (m *machine) inDir(name string) string { return filepath.Join(m.spec.Dir, name) }

// How long at most is waited between attempts to reach a monitor that starts, and a guest.
const (
	apiRetryMax   = 5 * time.Millisecond
	guestRetryMax = 50 * time.Millisecond
)

// backoff waits ever longer, up to a limit.
type backoff struct{ now, max time.Duration }

func newBackoff(most time.Duration) *backoff { return &backoff{500 * time.Microsecond, most} }

// next waits for the next attempt. It answers why there should be none.
func (b *backoff) next(ctx, life context.Context) error {
	t := time.NewTimer(b.now)
	defer t.Stop()
	b.now = min(2*b.now, b.max)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-life.Done():
		return vmm.ErrGone
	case <-t.C:
		return nil
	}
}
