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

// relinkTimeout is how long a guest may take to reply on a channel that is opened again.
const relinkTimeout = 15 * time.Second

// Guest returns the guest of a running machine, for one generation of it.
func (m *Manager) Guest(ctx context.Context, id hostapi.MachineID) (guestapi.Guest, error) {
	end := m.watchdog.Ask(id)
	g, err := m.guest(ctx, id)
	end(false) // that its channel is open says nothing of a guest
	if err != nil {
		return nil, err
	}
	return m.watchdog.Guest(id, g), nil
}

func (m *Manager) guest(ctx context.Context, id hostapi.MachineID) (guestapi.Guest, error) {
	mc := m.find(id)
	if mc == nil {
		return nil, notFound(id)
	}
	mc.mu.Lock()
	link, in, waits := mc.link, mc.rec, mc.waitingLocked() != nil
	mc.mu.Unlock()
	if waits {
		return nil, errWaitsForSpace("enter", id)
	}
	if in.State == running && linkOpen(link) {
		return link, nil
	}
	mc, err := m.lock(ctx, id) // the operation in progress ends first
	if err != nil {
		return nil, err
	}
	defer mc.unlock()
	ctx, release := mc.untilDoomed(ctx)
	defer release()
	if err := mc.requireState("enter", running); err != nil {
		return nil, err
	}
	return m.ensureLink(ctx, mc)
}

func linkOpen(link Link) bool {
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

// ensureLink returns a machine's link, opened again if it was lost. The caller owns the machine.
func (m *Manager) ensureLink(ctx context.Context, mc *machine) (Link, error) {
	if linkOpen(mc.link) {
		return mc.link, nil
	}
	return m.reopenLink(ctx, mc)
}

// reopenLink opens a machine's guest channel whatever state it is in. The caller owns the machine.
func (m *Manager) reopenLink(ctx context.Context, mc *machine) (Link, error) {
	return m.redial(ctx, mc, Handshake{Generation: mc.rec.Generation, Resync: true}, relinkTimeout)
}

func (m *Manager) redial(ctx context.Context, mc *machine, g Handshake, limit time.Duration) (_ Link, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("reach the guest of machine %s: %w", mc.id, err)
		}
	}()
	if mc.vm == nil {
		return nil, guestapi.ErrLost
	}
	m.closeLink(mc)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errNoReply)
	defer cancel()
	conn, err := mc.vm.Dial(ctx)
	if err != nil {
		return nil, err
	}
	link, err := m.deps.Link(context.WithoutCancel(ctx), conn, g)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if err := waitReady(ctx, mc.vm, link); err != nil {
		return nil, errors.Join(err, link.Close())
	}
	mc.set(func() { mc.link = link })
	return link, nil
}

// closeLink closes a machine's link, if it has one. An error is only logged: the link is closed either way.
func (m *Manager) closeLink(mc *machine) {
	if mc.link == nil {
		return
	}
	if err := mc.link.Close(); err != nil {
		m.log.Debug("guest link closed", "machine", mc.id, "err", err)
	}
	mc.set(func() { mc.link = nil })
}

// cpuSample is a machine's processor time at the last call of Usage.
type cpuSample struct {
	cpu time.Duration
	at  time.Time
}

// Usage returns the resources that the monitor of a running or paused machine uses on the host.
func (m *Manager) Usage(_ context.Context, id hostapi.MachineID) (Usage, error) {
	mc := m.find(id)
	if mc == nil {
		return Usage{}, notFound(id)
	}
	mc.mu.Lock()
	vm := mc.vm
	mc.mu.Unlock()
	if vm == nil {
		return Usage{}, fmt.Errorf("usage of machine %s: it has no monitor: %w", id, hostapi.ErrWrongState)
	}
	u, err := vm.Usage()
	if err != nil {
		return Usage{}, fmt.Errorf("usage of machine %s: %w", id, err)
	}
	now := cpuSample{cpu: u.CPU, at: time.Now()}
	out := Usage{
		PID: vm.PID(), Uptime: now.at.Sub(u.Started), CPU: u.CPU, RSSBytes: u.RSSBytes, PSSBytes: u.PSSBytes,
		VSZBytes: u.VSZBytes, Threads: u.Threads, ReadBytes: u.ReadBytes, WrittenBytes: u.WrittenBytes,
	}
	mc.set(func() {
		out.DiskBytes = mc.diskBytes
		last := mc.cpuSample
		if last.at.IsZero() || last.cpu > now.cpu {
			last = cpuSample{at: u.Started}
		}
		if wall := now.at.Sub(last.at); wall > 0 {
			out.CPUPercent = 100 * float64(now.cpu-last.cpu) / float64(wall)
		}
		mc.cpuSample = now
	})
	m.ledger.setUsed(id, u.PSSBytes)
	return out, nil
}

// consoleFile is the file in the monitor's directory where a driver leaves what the guest printed.
const consoleFile = "console.log"

// consoleBytes bounds the result of Console.
const consoleBytes = 64 << 10

// console is a vmm.Machine whose monitor keeps what the guest's kernel prints. Console returns what was printed since
// the last call.
type console interface {
	Console(ctx context.Context) ([]byte, error)
}

// Console returns the end of what the guest's kernel printed, at most 64 KiB.
func (m *Manager) Console(ctx context.Context, id hostapi.MachineID) ([]byte, error) {
	mc, err := m.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer mc.unlock()
	return m.console(ctx, mc)
}

// console is Console of a machine that the caller owns.
func (m *Manager) console(ctx context.Context, mc *machine) ([]byte, error) {
	if vm, ok := mc.vm.(console); ok {
		more, err := vm.Console(ctx)
		if err != nil {
			return slices.Clone(mc.consoleTail), fmt.Errorf("console of machine %s: %w", mc.id, err)
		}
		mc.consoleTail = append(mc.consoleTail, more...)
		mc.consoleTail = mc.consoleTail[max(0, len(mc.consoleTail)-consoleBytes):]
		return slices.Clone(mc.consoleTail), nil
	}
	data, err := os.ReadFile(filepath.Join(mc.dir, monitorDir, consoleFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("console of machine %s: %w", mc.id, err)
	}
	return data[max(0, len(data)-consoleBytes):], nil
}
