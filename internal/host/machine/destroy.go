package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

// Destroy ends a machine, whatever state it is in. A machine that does not exist is no error.
// It waits for no operation on the machine: one in progress is interrupted and fails with ErrNotFound.
// If it fails, another call continues where it stopped. cause is for the log.
func (m *Manager) Destroy(ctx context.Context, id hostapi.MachineID, cause string) (err error) {
	op := m.begin("destroy")
	defer func() { err = op.end(ctx, err) }()
	err = m.interrupt(ctx, id)
	var mc *machine
	if err == nil {
		mc, err = m.lock(ctx, id)
	}
	if errors.Is(err, hostapi.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	op.owned = append(op.owned, mc)
	m.unmountVolumes(ctx, mc)
	if err := m.remove(ctx, op, mc); err != nil {
		return fmt.Errorf("destroy machine %s: %w", id, err)
	}
	m.log.Info("machine destroyed", "machine", id, "took", op.phases.Total(), "cause", cause, op.phases.Attr())
	return nil
}

// errDoomed is why an operation on a machine ends when the machine is to be destroyed.
var errDoomed = fmt.Errorf("the machine was destroyed in the meantime: %w", hostapi.ErrNotFound)

// interrupt ends the operation in progress on a machine, if any. The monitor is ended with it: it may be what does not
// answer the operation.
func (m *Manager) interrupt(ctx context.Context, id hostapi.MachineID) error {
	mc := m.find(id)
	if mc == nil {
		return notFound(id)
	}
	if len(mc.busy) == 0 {
		return nil
	}
	mc.doom()
	mc.mu.Lock()
	vm := mc.vm
	mc.mu.Unlock()
	if vm == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cleanupTimeout, errors.New("the monitor did not end in time"))
	defer cancel()
	if err := vm.Kill(ctx); err != nil {
		return fmt.Errorf("destroy machine %s: kill the monitor: %w", id, err)
	}
	return nil
}

// doom ends the operations on a machine, which will be destroyed.
func (mc *machine) doom() { mc.doomOnce.Do(func() { close(mc.doomed) }) }

func (mc *machine) isDoomed() bool {
	select {
	case <-mc.doomed:
		return true
	default:
		return false
	}
}

// wrapDoomed returns err as the error of an operation on a machine that is to be destroyed, if it is.
func (mc *machine) wrapDoomed(err error) error {
	if err == nil || !mc.isDoomed() || errors.Is(err, errDoomed) {
		return err
	}
	return fmt.Errorf("%w (%w)", errDoomed, err)
}

// untilDoomed returns a context that ends with ctx, or with errDoomed. release must be called once.
func (mc *machine) untilDoomed(ctx context.Context) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-mc.doomed:
			cancel(errDoomed)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}

// remove removes everything that belongs to a machine that the caller owns.
func (m *Manager) remove(ctx context.Context, op *operation, mc *machine) error {
	ctx, cancel := context.WithTimeoutCause(
		context.WithoutCancel(ctx),
		cleanupTimeout,
		errors.New("the machine did not end in time"),
	)
	defer cancel()
	if err := m.update(mc, surviveProcess, func(in *record) { in.State = destroying }); err != nil {
		// Even a full disk must not keep a machine alive: the next process finds out without the record.
		m.log.Warn("end of machine not recorded", "machine", mc.id, "err", err)
	}
	if err := op.done("intent"); err != nil {
		return err
	}
	if err := m.releaseResources(ctx, op, mc); err != nil {
		return err
	}
	if err := m.detachVolumes(op, mc); err != nil {
		return err
	}
	if err := m.removeDir(mc); err != nil {
		return err
	}
	if base := mc.rec.Base; base != "" {
		if err := m.deps.Store.Release(base); err != nil {
			m.log.Warn("snapshot not released", "machine", mc.id, "snapshot", base, "err", err)
		}
	}
	m.forget(mc)
	return op.done("remove")
}

// removeDir removes a machine's files. A persistent machine must not come back after a crash of the host; of
// others a crash leaves nothing that Recover would take over.
func (m *Manager) removeDir(mc *machine) error {
	if mc.rec.Persistent {
		return durable.RemoveAll(mc.dir)
	}
	gone := filepath.Join(m.cfg.Dir, ".new-gone-"+string(mc.id))
	if err := os.Rename(mc.dir, gone); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.RemoveAll(gone)
}

// releaseResources releases a machine's monitor, stream, cgroup and network slot, as far as it has them. The machine
// keeps what could not be released, so that releaseResources may be called again.
func (m *Manager) releaseResources(ctx context.Context, op *operation, mc *machine) error {
	m.closeLink(mc)
	if vm := mc.vm; vm != nil {
		if err := vm.Kill(ctx); err != nil {
			return fmt.Errorf("kill the monitor: %w", err)
		}
		mc.set(func() { mc.vm = nil })
	}
	all := op.done("kill")
	if !op.abandoned {
		all = errors.Join(all, m.closeLazy(ctx, mc))
	}
	if group := mc.cgroup; group != nil && !op.abandoned {
		if err := group.Destroy(ctx); err != nil {
			all = errors.Join(all, fmt.Errorf("destroy the cgroup: %w", err))
		} else {
			mc.set(func() { mc.cgroup = nil })
			all = errors.Join(all, op.done("cgroup"))
		}
	}
	if slot := mc.slot; slot != nil && !op.abandoned {
		if err := slot.Release(ctx); err != nil {
			all = errors.Join(all, fmt.Errorf("release the network slot: %w", err))
		} else {
			mc.set(func() { mc.slot = nil })
			all = errors.Join(all, op.done("slot"))
		}
	}
	return all
}

// releaseLeftovers releases what an earlier stop of a machine at rest could not.
func (m *Manager) releaseLeftovers(ctx context.Context, op *operation, mc *machine) error {
	if mc.vm == nil && mc.cgroup == nil && mc.slot == nil {
		return nil
	}
	return m.releaseResources(ctx, op, mc)
}
