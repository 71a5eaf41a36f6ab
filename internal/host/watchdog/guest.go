package watchdog

import (
	"context"
	"errors"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// Guest returns a guest whose requests are watched: those that a guest replies to at once.
func (w *Watchdog) Guest(id hostapi.MachineID, g guestapi.Guest) guestapi.Guest {
	return &watchedGuest{g, w, id}
}

type watchedGuest struct {
	guestapi.Guest
	w  *Watchdog
	id hostapi.MachineID
}

// Done is closed when the guest's generation has ended; nil if it does not tell.
func (g *watchedGuest) Done() <-chan struct{} {
	if ending, ok := g.Guest.(interface{ Done() <-chan struct{} }); ok {
		return ending.Done()
	}
	return nil
}

// answered reports whether a request that ended with err was answered.
func answered(ctx context.Context, err error) bool {
	return err == nil || ctx.Err() == nil && !errors.Is(err, guestapi.ErrLost)
}

func (g *watchedGuest) Start(ctx context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	end := g.w.Ask(g.id)
	p, err := g.Guest.Start(ctx, spec)
	end(answered(ctx, err))
	return p, err
}

func (g *watchedGuest) Processes(ctx context.Context) ([]guestapi.ProcessInfo, error) {
	end := g.w.Ask(g.id)
	all, err := g.Guest.Processes(ctx)
	end(answered(ctx, err))
	return all, err
}

func (g *watchedGuest) Stat(ctx context.Context, path, user string) (guestapi.FileInfo, error) {
	end := g.w.Ask(g.id)
	info, err := g.Guest.Stat(ctx, path, user)
	end(answered(ctx, err))
	return info, err
}

func (g *watchedGuest) MakeDir(ctx context.Context, path, user string) (guestapi.FileInfo, error) {
	end := g.w.Ask(g.id)
	info, err := g.Guest.MakeDir(ctx, path, user)
	end(answered(ctx, err))
	return info, err
}

func (g *watchedGuest) Ports(ctx context.Context) ([]guestapi.Port, error) {
	end := g.w.Ask(g.id)
	all, err := g.Guest.Ports(ctx)
	end(answered(ctx, err))
	return all, err
}

func (g *watchedGuest) Stats(ctx context.Context) (guestapi.Stats, error) {
	end := g.w.Ask(g.id)
	st, err := g.Guest.Stats(ctx)
	end(answered(ctx, err))
	return st, err
}
