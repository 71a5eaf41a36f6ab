package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/vmm"
)

const (
	// consoleTimeout bounds the wait for the console of a machine that failed to start.
	consoleTimeout = 5 * time.Second
	// exitTimeout bounds the wait for the end of a monitor whose guest channel broke: the channel ends first.
	exitTimeout = 2 * time.Second
)

// confirm waits until the guest has confirmed its identity. A guest that does not do so in time is not used. The
// error ends with what the guest printed last.
func (l *launch) confirm(ctx context.Context) error {
	limit := l.m.cfg.ReadyTimeout
	if l.plan.method.guestBoots() {
		limit = l.m.cfg.BootTimeout
	}
	if slices.ContainsFunc(l.mount, func(v guestapi.VolumeMount) bool { return v.Check }) {
		limit += l.m.cfg.BootTimeout // for the checks of file systems
	}
	late := fmt.Errorf("the guest did not confirm its identity within %s", limit)
	limited, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	if err := waitReady(limited, l.mc.vm, l.mc.link); err != nil {
		return l.m.withConsole(ctx, l.mc, l.m.noteDamage(l.mc, l.mount, err))
	}
	return l.finishVolumes(ctx)
}

// withConsole adds what the guest printed last to the error of a start, unless the caller has left or the driver put
// it there. Without a console it returns err.
func (m *Manager) withConsole(ctx context.Context, mc *machine, err error) error {
	if ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, consoleTimeout)
	defer cancel()
	printed, _ := m.console(ctx, mc) // a monitor that has ended returns what was read before
	tail := vmm.ConsoleTail(printed)
	if tail == "" || strings.Contains(err.Error(), tail) {
		return err
	}
	return fmt.Errorf("%w; the guest's console ends with: %s", err, tail)
}

// waitReady waits for a link, the end of its monitor, or the end of ctx, whichever is first. If the guest channel
// breaks because the monitor ends, the error is that of the monitor.
func waitReady(ctx context.Context, vm vmm.Machine, link Link) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ready := make(chan error, 1)
	go func() { ready <- link.Ready(ctx) }()
	select {
	case err := <-ready:
		if err != nil && context.Cause(ctx) != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, guestapi.ErrLost) && endsWithin(ctx, vm, exitTimeout) {
			return ended(vm)
		}
		return err
	case <-vm.Done():
		dead := ended(vm)
		cancel(dead)
		<-ready
		return dead
	}
}

// endsWithin reports whether a monitor ends within limit and before ctx does.
func endsWithin(ctx context.Context, vm vmm.Machine, limit time.Duration) bool {
	select {
	case <-vm.Done():
		return true
	case <-time.After(limit):
	case <-ctx.Done():
	}
	return false
}

// ended returns the error of a machine whose monitor has ended.
func ended(vm vmm.Machine) error {
	return fmt.Errorf("the monitor ended: %w", cmp.Or(vm.Err(), vmm.ErrGone))
}
