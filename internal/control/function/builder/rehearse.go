package builder

import (
	"context"
	"errors"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/function/program"
)

// capture takes the snapshot of the version.
func (m *machine) capture(ctx context.Context) (api.SnapshotID, error) {
	snap, err := m.boxes.TakeSnapshot(ctx, m.Principal, m.id, api.SnapshotRequest{Metadata: m.metadata(RoleCaptured)})
	if err != nil {
		return "", err
	}
	if err := m.did("snapshot"); err != nil {
		end, cancel := detached(ctx)
		defer cancel()
		return "", errors.Join(err, m.boxes.DeleteSnapshot(end, m.Principal, snap.ID))
	}
	return snap.ID, nil
}

// rehearse restores the captured machine as an invocation does, lets it respond to requests, and captures what was
// restored. A monitor that translates code has then translated what every machine of the capture runs first. The first
// capture is removed, whatever becomes of the second.
func (m *machine) rehearse(ctx context.Context, first api.SnapshotID) (api.SnapshotID, error) {
	defer func() {
		end, cancel := detached(ctx)
		defer cancel()
		// The machine first: while it is there, what it was made from is in use.
		e := m.clean(end)
		if e == nil {
			e = m.boxes.DeleteSnapshot(end, m.Principal, first)
		}
		if e != nil { // the sweep of the function's leftovers does it
			m.log.Warn("removing the first capture of a build failed", "function", m.Principal.Owner.ID, "err", e)
		}
	}()
	if err := m.boxes.Delete(ctx, m.Principal, m.id); err != nil { // there is no use for two machines at once
		return "", err
	}
	restored, err := m.start(ctx, first, m.Network)
	if err != nil {
		return "", err
	}
	if err := restored.respond(ctx); err != nil {
		return "", err
	}
	snap, err := restored.capture(ctx)
	if err == nil {
		m.Log.Append("info", "capture", "a machine of the first capture was restored and asked, and is captured")
	}
	return snap, err
}

// rehearsals is how often a machine responds before it is captured: later rounds run code that runs only the second
// time.
const rehearsals = 3

// respond lets a machine do what it does for an invocation. The handler is called only if the version has a warm-up.
func (m *machine) respond(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, m.cfg.LoadTimeout, api.Errorf(api.Invalid,
		"the machine did not respond within %s after it was restored", m.cfg.LoadTimeout))
	defer cancel()
	call := program.Open(m.guest)
	defer call.Close()
	err := call.Restored(ctx, m.Env)
	if failed, ok := errors.AsType[*program.Failed](err); ok {
		return m.failure(failed)
	}
	if err == nil {
		err = m.did("restored")
	}
	for n := 0; n < rehearsals && err == nil; n++ {
		if m.WarmUp != nil {
			err = m.warm(ctx, call)
			continue
		}
		var res program.Result
		res, err = call.Rehearse(ctx, m.call())
		if err == nil && res.Failure != nil {
			err = api.Errorf(api.Invalid, "the process of the handler failed after its machine was restored: %s: %s",
				res.Failure.Type, res.Failure.Message)
		}
		if err == nil {
			err = m.did("rehearse")
		}
	}
	if because := context.Cause(ctx); err != nil && because != nil {
		err = because
	}
	return err
}

// call is an invocation that is not a user's.
func (m *machine) call() program.Call {
	return program.Call{Run: api.NewInvocationID(), Attempt: 1, Name: m.Name, Version: m.Version,
		Deadline: time.Now().Add(m.Timeout), MaxResult: api.MaxFunctionPayload}
}

// detached returns a context to remove things with although the build has ended.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
}
