package agent

import (
	"context"
	"sync"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// deferredRoot is the backend of a machine that has booted and has no root yet. It is captured so, and each machine
// made of that capture takes the root that its own disk holds.
//
// A Restore before the first Freeze is of the machine that waits, and changes nothing. One after it is of a copy:
// it gives the machine its root, and everything else from then on is the machine's own. Until then all but
// Freeze, Thaw and Restore fails, since there is nothing to answer from.
type deferredRoot struct {
	guestapi.Backend // nil until the machine has its root; set by the Restore that nothing else runs beside
	begin            func(id guestapi.Identity) (guestapi.Backend, error)

	mu     sync.Mutex
	frozen bool // guarded by mu
}

var _ guestapi.Backend = (*deferredRoot)(nil)

// Freeze implements guestapi.Guest.
func (w *deferredRoot) Freeze(ctx context.Context, sync bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.Backend != nil {
		return w.Backend.Freeze(ctx, sync)
	}
	w.frozen = true
	return nil
}

// Thaw implements guestapi.Guest.
func (w *deferredRoot) Thaw(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.Backend != nil {
		return w.Backend.Thaw(ctx)
	}
	w.frozen = false
	return nil
}

// Restore implements guestapi.Backend.
func (w *deferredRoot) Restore(ctx context.Context, id guestapi.Identity) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.Backend == nil {
		if !w.frozen {
			return nil
		}
		b, err := w.begin(id)
		if err != nil {
			return err
		}
		w.Backend = b
	}
	return w.Backend.Restore(ctx, id)
}
