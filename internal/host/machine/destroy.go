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

// Destroy brings a machine to its end, whatever state it is in. A machine that is not there is fine.
// When it fails, asking again goes on where it stopped. cause is for the log.
func (m *Manager) Destroy(ctx context.Context, id hostapi.MachineID, cause string) (err error) {
	op := m.begin("destroy")
	defer func() { err = op.end(ctx, err) }()
	mc, err := op.lock(ctx, id)
	if errors.Is(err, hostapi.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := m.remove(ctx, op, mc); err != nil {
		return fmt.Errorf("destroy machine %s: %w", id, err)
	}
	m.log.Info("machine destroyed", "machine", id, "took", op.phases.Total(), "cause", cause, op.phases.Attr())
	return nil
}

// remove removes all that belongs to a machine that the caller owns.
func (m *Manager) remove(ctx context.Context, op *operation, mc *machine) error {
	ctx, cancel := context.WithTimeoutCause(
		context.WithoutCancel(ctx),
		cleanupTimeout,
		errors.New("the machine did not end in time"),
	)
	defer cancel()
	if err := m.update(mc, surviveProcess, func(in *record) { in.State = destroying }); err != nil {
		// Even a full disk must not keep a machine alive: what the record would have told the next
		// process it finds out by itself.
		m.log.Warn("end of machine not recorded", "machine", mc.id, "err", err)
	}
	if err := op.done("intent"); err != nil {
		return err
	}
	if err := m.releaseResources(ctx, op, mc); err != nil {
		return err
	}
	if err := m.removeDir(mc); err != nil {
		return err
	}
	if base := mc.rec.Base; base != "" {
		if err := m.deps.Store.Release(base); err != nil {
			m.log.Warn("image not released", "machine", mc.id, "snapshot", base, "err", err)
		}
	}
	m.forget(mc)
	return op.done("remove")
}

// removeDir removes a machine's files. A kept machine must not come back after a crash of the host; of
// others a crash leaves nothing that Recover would take for alive.
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

// releaseResources takes a machine's monitor, group and network place from it. It is right when some are gone. What
// it could not give back it still has, so that strip may be called again.
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
			all = errors.Join(all, fmt.Errorf("destroy the group: %w", err))
		} else {
			mc.set(func() { mc.cgroup = nil })
			all = errors.Join(all, op.done("group"))
		}
	}
	if slot := mc.slot; slot != nil && !op.abandoned {
		if err := slot.Release(ctx); err != nil {
			all = errors.Join(all, fmt.Errorf("give the network slot back: %w", err))
		} else {
			mc.set(func() { mc.slot = nil })
			all = errors.Join(all, op.done("slot"))
		}
	}
	return all
}

// releaseLeftovers takes from a machine at rest what an earlier strip could not.
func (m *Manager) releaseLeftovers(ctx context.Context, op *operation, mc *machine) error {
	if mc.vm == nil && mc.cgroup == nil && mc.slot == nil {
		return nil
	}
	return m.releaseResources(ctx, op, mc)
}
