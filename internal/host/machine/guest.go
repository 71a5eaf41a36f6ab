package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// relinkTimeout is how long a guest may take to answer on a channel that is opened anew.
const relinkTimeout = 15 * time.Second

// Guest answers the inside of a running machine, for one generation of it.
func (m *Manager) Guest(ctx context.Context, id hostapi.MachineID) (guestapi.Guest, error) {
	mc := m.find(id)
	if mc == nil {
		return nil, notFound(id)
	}
	mc.mu.Lock()
	link, in := mc.link, mc.in
	mc.mu.Unlock()
	if in.State == running && alive(link) {
		return link, nil
	}
	mc, err := m.enter(ctx, id) // whatever is under way ends first
	if err != nil {
		return nil, err
	}
	defer func() { <-mc.busy }()
	if err := mc.need("enter", running); err != nil {
		return nil, err
	}
	return m.relink(ctx, mc)
}

func alive(link Link) bool {
	if link == nil {
		return false
	}
	select {
	case <-link.Done():
		return false
	default:
		return true
	}
}

// relink answers a machine's link, opened anew when it was lost. The caller owns the machine.
func (m *Manager) relink(ctx context.Context, mc *machine) (Link, error) {
	if alive(mc.link) {
		return mc.link, nil
	}
	return m.resync(ctx, mc)
}

// resync opens a machine's guest channel whatever state it is in. The caller owns the machine.
func (m *Manager) resync(ctx context.Context, mc *machine) (Link, error) {
	return m.regreet(ctx, mc, Greeting{Generation: mc.in.Generation, Resync: true}, relinkTimeout)
}

func (m *Manager) regreet(ctx context.Context, mc *machine, g Greeting, limit time.Duration) (_ Link, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("reach the guest of machine %s: %w", mc.id, err)
		}
	}()
	if mc.vm == nil {
		return nil, guestapi.ErrLost
	}
	m.unlink(mc)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.New("the guest did not answer in time"))
	defer cancel()
	conn, err := mc.vm.Dial(ctx)
	if err != nil {
		return nil, err
	}
	link, err := m.deps.Link(context.WithoutCancel(ctx), conn, g)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if err := ready(ctx, mc.vm, link); err != nil {
		return nil, errors.Join(err, link.Close())
	}
	mc.set(func() { mc.link = link })
	return link, nil
}

// unlink closes a machine's link if there is one. An error of closing says nothing that matters: the
// link is gone either way.
func (m *Manager) unlink(mc *machine) {
	if mc.link == nil {
		return
	}
	if err := mc.link.Close(); err != nil {
		m.log.Debug("guest link closed", "machine", mc.id, "err", err)
	}
	mc.set(func() { mc.link = nil })
}

// used is a machine's processor time when it was last asked for.
type used struct {
	cpu time.Duration
	at  time.Time
}

// Usage answers what a running or paused machine's monitor takes of the host.
func (m *Manager) Usage(_ context.Context, id hostapi.MachineID) (hostapi.Usage, error) {
	mc := m.find(id)
	if mc == nil {
		return hostapi.Usage{}, notFound(id)
	}
	mc.mu.Lock()
	vm := mc.vm
	mc.mu.Unlock()
	if vm == nil {
		return hostapi.Usage{}, fmt.Errorf("usage of machine %s: it has no monitor: %w", id, hostapi.ErrWrongState)
	}
	u, err := vm.Usage()
	if err != nil {
		return hostapi.Usage{}, fmt.Errorf("usage of machine %s: %w", id, err)
	}
	now := used{cpu: u.CPU, at: time.Now()}
	out := hostapi.Usage{
		PID: vm.PID(), Uptime: now.at.Sub(u.Started), CPU: u.CPU, RSSBytes: u.RSSBytes, PSSBytes: u.PSSBytes,
		VSZBytes: u.VSZBytes, Threads: u.Threads,
	}
	mc.set(func() {
		last := mc.used
		if last.at.IsZero() || last.cpu > now.cpu {
			last = used{at: u.Started}
		}
		if wall := now.at.Sub(last.at); wall > 0 {
			out.CPUPercent = 100 * float64(now.cpu-last.cpu) / float64(wall)
		}
		mc.used = now
	})
	m.ledger.measured(id, u.PSSBytes)
	return out, nil
}

// consoleFile is where a driver leaves what the guest of a dead monitor printed, in the monitor's
// directory.
const consoleFile = "console.log"

// consoleBytes is how much of its end Console answers.
const consoleBytes = 64 << 10

// console is what drivers can do whose monitors keep what the guest's kernel prints: it answers what was
// printed since it was asked last.
type console interface {
	Console(ctx context.Context) ([]byte, error)
}

// Console answers the end of what the guest's kernel printed, at most 64 KiB.
func (m *Manager) Console(ctx context.Context, id hostapi.MachineID) ([]byte, error) {
	mc, err := m.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	defer func() { <-mc.busy }()
	return m.console(ctx, mc)
}

// console answers for a machine that was entered.
func (m *Manager) console(ctx context.Context, mc *machine) ([]byte, error) {
	if vm, ok := mc.vm.(console); ok {
		more, err := vm.Console(ctx)
		if err != nil {
			return slices.Clone(mc.printed), fmt.Errorf("console of machine %s: %w", mc.id, err)
		}
		mc.printed = append(mc.printed, more...)
		mc.printed = mc.printed[max(0, len(mc.printed)-consoleBytes):]
		return slices.Clone(mc.printed), nil
	}
	data, err := os.ReadFile(filepath.Join(mc.dir, monitorDir, consoleFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("console of machine %s: %w", mc.id, err)
	}
	return data[max(0, len(data)-consoleBytes):], nil
}
