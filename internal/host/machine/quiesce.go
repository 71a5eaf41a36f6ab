package machine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/internal/vmm"
)

// captureRequest says what captureStopped takes of a machine.
type captureRequest struct {
	memory func(context.Context) (vmm.Capture, error)
	disks  func() error // clones the disks, at the same time
}

// captureStopped stops a machine, captures it and lets it continue in the state that it was in, whatever failed.
// The caller closes the capture.
func (m *Manager) captureStopped(
	ctx context.Context,
	op *operation,
	mc *machine,
	what captureRequest,
) (capture vmm.Capture, err error) {
	if vm, ok := mc.vm.(vmm.PreCapturer); ok && mc.rec.State != paused {
		if err := vm.PreCapture(ctx); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	if mc.rec.State != paused {
		if err := m.quiesce(ctx, op, mc, false); err != nil {
			return nil, err
		}
		defer func() {
			if op.abandoned {
				return
			}
			if back := m.resume(ctx, mc); back != nil {
				err = errors.Join(err, back)
				if capture != nil {
					err = errors.Join(err, capture.Close())
					capture = nil
				}
			}
			took := time.Since(began)
			mc.set(func() { mc.pause = took })
			op.phases.Done("resume")
		}()
	}
	cloned := make(chan error, 1)
	go func() { cloned <- what.disks() }()
	taken, err := what.memory(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("capture: %w", err), <-cloned)
	}
	err = errors.Join(op.done("capture"), <-cloned)
	if err == nil {
		err = op.done("clone")
	}
	if err != nil && !op.abandoned {
		return nil, errors.Join(err, taken.Close())
	}
	return taken, err
}

// quiesce stops a running machine: first its workload, so that no request is half done, then its processors.
// Nothing needs to be written to the disks, since the memory is of the same moment; with sync the guest writes its
// file systems out all the same. When quiesce fails the machine continues.
func (m *Manager) quiesce(ctx context.Context, op *operation, mc *machine, sync bool) error {
	link, err := m.ensureLink(ctx, mc)
	if err != nil {
		return err
	}
	limit := m.cfg.FreezeTimeout
	if sync {
		limit += m.cfg.SyncTimeout
	}
	freeze, cancel := context.WithTimeoutCause(ctx, limit, errors.New("the guest did not stop its workload in time"))
	defer cancel()
	err = link.Freeze(freeze, sync)
	if err == nil {
		err = op.done("freeze")
	}
	if err == nil {
		if err = mc.vm.Pause(ctx); err == nil {
			err = op.done("pause")
		}
	}
	if err == nil || op.abandoned {
		return err
	}
	return errors.Join(fmt.Errorf("stop machine %s: %w", mc.id, err), m.resume(ctx, mc))
}

// resume lets a machine that quiesce stopped, wholly or in part, continue. It does so even if ctx has ended.
func (m *Manager) resume(ctx context.Context, mc *machine) error {
	ctx, cancel := context.WithTimeoutCause(
		context.WithoutCancel(ctx),
		cleanupTimeout,
		errors.New("the machine did not continue in time"),
	)
	defer cancel()
	if err := mc.vm.Resume(ctx); err != nil {
		return fmt.Errorf("resume machine %s: %w", mc.id, err)
	}
	link, err := m.ensureLink(ctx, mc)
	if err == nil {
		err = link.Thaw(ctx)
	}
	if err != nil && ctx.Err() == nil {
		// The channel may be what failed: open it again and repeat the request.
		if link, err = m.reopenLink(ctx, mc); err == nil {
			err = link.Thaw(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("thaw machine %s: %w", mc.id, err)
	}
	return nil
}
