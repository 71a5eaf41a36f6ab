package agent

import (
	"context"
	"sync"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// deferredRoot is the backend of a machine that has booted but has not mounted a root file system. The machine is
// captured in that state, and each machine made from the capture mounts the root on its own disk.
//
// A Restore before the first Freeze concerns the waiting machine itself and changes nothing. A Restore after it
// concerns a copy: it mounts the root, and from then on the machine's own backend handles every request. Until then
// every request except Freeze, Thaw and Restore fails, since there is no file system to serve it from.
type deferredRoot struct {
	guestapi.Backend // nil until the machine has its root; set by Restore, while no other request runs
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
