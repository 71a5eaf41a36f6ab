package machine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
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
		// It reads memory of a guest that runs, which takes longer than a reply.
		limited, cancel := context.WithTimeoutCause(ctx, 2*m.cfg.FreezeTimeout, errNoReply)
		err := vm.PreCapture(limited)
		cancel()
		if err != nil {
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
		if err := m.ping(ctx, link); err != nil { // a guest that replies gets the time to write its file systems out
			return fmt.Errorf("stop machine %s: %w", mc.id, err)
		}
		limit += m.cfg.SyncTimeout
	}
	freeze, cancel := context.WithTimeoutCause(ctx, limit, lateError("the guest did not stop its workload in time"))
	defer cancel()
	err = link.Freeze(freeze, sync)
	if err == nil {
		err = op.done("freeze")
	}
	if err == nil {
		if err = m.pauseMonitor(ctx, mc); err == nil {
			err = op.done("pause")
		}
	}
	if err == nil || op.abandoned {
		return err
	}
	return errors.Join(fmt.Errorf("stop machine %s: %w", mc.id, err), m.resume(ctx, mc))
}

// lateError is why a request to a guest or a monitor that does not reply in time ends. It is a guestapi.ErrLost: the
// same request may succeed later.
type lateError string

// Error implements error.
func (e lateError) Error() string { return string(e) }

// Is implements the interface that errors.Is uses.
func (lateError) Is(target error) bool { return target == guestapi.ErrLost }

const errNoReply = lateError("the guest did not reply in time")

// ping returns nil if the guest replies. It asks for as little as possible.
func (m *Manager) ping(ctx context.Context, link Link) error {
	ctx, cancel := context.WithTimeoutCause(ctx, m.cfg.FreezeTimeout, errNoReply)
	defer cancel()
	_, err := link.Processes(ctx)
	return err
}

// pauseMonitor stops a machine's processors.
func (m *Manager) pauseMonitor(ctx context.Context, mc *machine) error {
	ctx, cancel := context.WithTimeoutCause(ctx, m.cfg.FreezeTimeout, lateError("the monitor did not stop in time"))
	defer cancel()
	return mc.vm.Pause(ctx)
}

// resume lets a machine that quiesce stopped, wholly or in part, continue. It does so even if ctx has ended, unless the
// machine is to be destroyed.
func (m *Manager) resume(ctx context.Context, mc *machine) error {
	ctx, cancel := context.WithTimeoutCause(
		context.WithoutCancel(ctx),
		m.cfg.FreezeTimeout,
		lateError("the machine did not continue in time"),
	)
	defer cancel()
	ctx, release := mc.untilDoomed(ctx)
	defer release()
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
