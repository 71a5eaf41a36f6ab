package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/volume/lease"
)

// Delete ends a sandbox in any state and interrupts an operation on it. Deleting a sandbox that has ended is
// no error. Run finishes a deletion that could not be finished.
func (s *Service) Delete(ctx context.Context, p auth.Principal, id api.SandboxID) (err error) {
	defer s.finishVerb("delete", time.Now(), &err)
	if _, err := s.findOwn(ctx, p, id); err != nil {
		if t, missing := s.db.Read().Tombstone(ctx, string(id)); missing == nil && t.Workspace == string(p.Workspace) {
			return nil
		}
		return err
	}
	return s.endSandbox(ctx, id,
		endCause{reason: EndedByUser, by: p.KeyPrefix, message: "it was deleted by its user"})
}

// endCause is why a sandbox ends.
type endCause struct {
	reason  Reason
	by      string
	message string
	console []byte // the last output of a machine that can no longer be asked
}

// deleteGrace is how long an operation that a deletion interrupts may take before its machine is destroyed under it.
const deleteGrace = 500 * time.Millisecond

// acquireToEnd interrupts the operation in progress on a sandbox and those that wait, and takes its lock.
func (s *Service) acquireToEnd(ctx context.Context, id api.SandboxID, why endCause) (release func(), err error) {
	if s.locks.Interrupt(string(id), errDeleted) {
		wait, cancel := context.WithTimeout(ctx, deleteGrace)
		defer cancel()
		release, err := s.acquireAfterInterrupts(wait, id)
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return release, err
		}
		if err := s.host.Destroy(ctx, hostapi.MachineID(id), string(why.reason)); err != nil {
			return nil, hosterror.Wrap(err, "delete", string(id))
		}
	}
	return s.acquireAfterInterrupts(ctx, id)
}

// acquireAfterInterrupts takes a sandbox's lock, even if others delete it at the same time.
func (s *Service) acquireAfterInterrupts(ctx context.Context, id api.SandboxID) (release func(), err error) {
	for {
		_, release, err := s.locks.Acquire(ctx, string(id))
		if !errors.Is(err, errDeleted) {
			return release, err
		}
	}
}

// endSandbox interrupts operations on a sandbox, takes its lock and ends it. A sandbox that has ended is no error.
func (s *Service) endSandbox(ctx context.Context, id api.SandboxID, why endCause) error {
	release, err := s.acquireToEnd(ctx, id, why)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := detached(ctx)
	defer cancel()
	r, err := s.load(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.endLocked(ctx, &r, why)
}

// endLocked ends a sandbox whose lock is held. It writes the intent first, so that the sandbox also ends if
// this process is killed on the way.
func (s *Service) endLocked(ctx context.Context, r *record, why endCause) error {
	if r.State != api.Stopping {
		r.EndReason, r.EndBy, r.Reason = why.reason, why.by, why.message
		if err := s.setState(ctx, "delete begin", r, api.Stopping); err != nil {
			return err
		}
	}
	return s.finishDelete(ctx, r, r.Reason, why.console)
}

// finishDelete destroys the machine of a sandbox, then removes its row and leaves the tombstone. console is
// the output that the host sent with the news of the end, if any. The lock is held.
func (s *Service) finishDelete(ctx context.Context, r *record, message string, console []byte) error {
	t := s.newTombstone(ctx, r, message, console)
	if err := s.host.Destroy(ctx, r.machineID(), string(r.EndReason)); err != nil {
		return hosterror.Wrap(err, "delete", string(r.ID))
	}
	err := s.db.Write(ctx, "delete end", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.DeleteSandbox(ctx, string(r.ID)); err != nil {
			return err
		}
		if err := lease.Release(ctx, tx, r.ID); err != nil {
			return err
		}
		if r.EndReason == EndedCreateFailed && r.IdempotencyKey != "" { // the next call with the key tries again
			if err := tx.DeleteIdempotency(ctx, string(r.Workspace), r.IdempotencyKey, string(r.ID)); err != nil {
				return err
			}
		}
		if err := tx.PutTombstone(ctx, t); err != nil {
			return err
		}
		return s.appendEvents(ctx, tx, r, newEvent{api.EventDeleted,
			map[string]any{"reason": string(r.EndReason), "by": r.EndBy, "message": message}})
	})
	if err != nil {
		return err
	}
	r.State = api.Deleted
	s.activity.Forget(string(r.ID))
	s.silent.Set(r.ID, time.Time{})
	s.events.Notify(r.ID)
	return nil
}
