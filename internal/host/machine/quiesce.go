package machine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/internal/vmm"
)

// captureRequest is what is taken of a machine that stands still.
type captureRequest struct {
	memory func(context.Context) (vmm.Capture, error)
	disk   func() error // at the same time
	step   string       // that disk is
}

// captureStopped takes a moment of a machine, which stands still for it. Afterwards the machine goes on in the state it was in, whatever
// failed. The caller closes the capture.
func (m *Manager) captureStopped(ctx context.Context, p *operation, mc *machine, what captureRequest) (capture vmm.Capture, err error) {
	if a, ok := mc.vm.(vmm.PreCapturer); ok && mc.rec.State != paused {
		if err := a.PreCapture(ctx); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	if mc.rec.State != paused {
		if err := m.quiesce(ctx, p, mc, false); err != nil {
			return nil, err
		}
		defer func() {
			if p.abandoned {
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
			p.phases.Done("resume")
		}()
	}
	disk := make(chan error, 1)
	go func() { disk <- what.disk() }()
	taken, err := what.memory(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("capture: %w", err), <-disk)
	}
	err = errors.Join(p.done("capture"), <-disk)
	if err == nil {
		err = p.done(what.step)
	}
	if err != nil && !p.abandoned {
		return nil, errors.Join(err, taken.Close())
	}
	return taken, err
}

// quiesce stops a running machine: first what its user runs, so that no request is half done, then its
// processors. Nothing needs to be written to its disk, since its memory is of the same moment. When that
// fails the machine goes on.
func (m *Manager) quiesce(ctx context.Context, p *operation, mc *machine, sync bool) error {
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
		err = p.done("freeze")
	}
	if err == nil {
		if err = mc.vm.Pause(ctx); err == nil {
			err = p.done("pause")
		}
	}
	if err == nil || p.abandoned {
		return err
	}
	return errors.Join(fmt.Errorf("stop machine %s: %w", mc.id, err), m.resume(ctx, mc))
}

// resume lets a machine that was halted, wholly or in part, go on. It does so when ctx has ended, too.
func (m *Manager) resume(ctx context.Context, mc *machine) error {
	ctx, cancel := context.WithTimeoutCause(
		context.WithoutCancel(ctx),
		cleanupTimeout,
		errors.New("the machine did not go on in time"),
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
		// The channel may be what failed: greet anew, and ask again.
		if link, err = m.reopenLink(ctx, mc); err == nil {
			err = link.Thaw(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("thaw machine %s: %w", mc.id, err)
	}
	return nil
}
