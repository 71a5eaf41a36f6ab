package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Delete ends a sandbox in any state, and interrupts what is being done to it. It is right twice: one
// that ended already answers nil. A deletion that could not be finished is finished by Run.
func (s *Service) Delete(ctx context.Context, p auth.Principal, id api.SandboxID) (err error) {
	defer s.finishVerb("delete", time.Now(), &err)
	if _, err := s.row(ctx, p, id); err != nil {
		if t, missing := s.db.Read().Tombstone(ctx, string(id)); missing == nil && t.Workspace == string(p.Workspace) {
			return nil
		}
		return err
	}
	s.locks.interrupt(string(id), errDeleted)
	return s.endSandbox(
		ctx,
		string(id),
		endCause{reason: EndedByUser, by: p.KeyPrefix, message: "it was deleted by its user"},
		nil,
	)
}

// endCause is why a sandbox ends.
type endCause struct {
	reason  Reason
	by      string
	message string
	console []byte // the last of it, of a machine that cannot be asked any more
}

// endSandbox takes the lock of a sandbox and ends it, if still says so. One that is gone is fine.
func (s *Service) endSandbox(ctx context.Context, id string, why endCause, still func(*store.Sandbox) bool) error {
	ctx, release, err := s.locks.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := detached(ctx)
	defer cancel()
	r, err := s.db.Read().Sandbox(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if still != nil && !still(&r) {
		return nil
	}
	return s.endLocked(ctx, &r, why)
}

// endLocked ends a sandbox whose lock is held. The intent is written first, so that a crash in the middle
// ends it all the same.
func (s *Service) endLocked(ctx context.Context, r *store.Sandbox, why endCause) error {
	if api.Status(r.State) != api.Stopping {
		r.EndReason, r.EndBy, r.Reason = string(why.reason), why.by, why.message
		if err := s.setState(ctx, "delete begin", r, api.Stopping); err != nil {
			return err
		}
	}
	return s.finishDelete(ctx, r, r.Reason, why.console)
}

// finishDelete destroys the machine of a sandbox, then its row, and leaves the tombstone. printed is what the
// host told of the console, if it did. The lock is held.
func (s *Service) finishDelete(ctx context.Context, r *store.Sandbox, message string, printed []byte) error {
	t := s.tombstone(ctx, r, message, printed)
	if err := s.host.Destroy(ctx, machineID(r), r.EndReason); err != nil {
		return hostError(err, "delete", r.ID)
	}
	never := r.EndReason == string(EndedCreateFailed)
	err := s.db.Write(ctx, "delete end", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.DeleteSandbox(ctx, r.ID); err != nil {
			return err
		}
		if never && r.Idempotency != "" { // the next call with the key tries anew
			if err := tx.DeleteIdempotency(ctx, r.Workspace, r.Idempotency, r.ID); err != nil {
				return err
			}
		}
		if err := tx.PutTombstone(ctx, t); err != nil {
			return err
		}
		return s.appendEvents(
			ctx,
			tx,
			r,
			newEvent{api.EventDeleted, map[string]any{"reason": r.EndReason, "by": r.EndBy, "message": message}},
		)
	})
	if err != nil {
		return err
	}
	r.State = string(api.Deleted)
	s.activity.Forget(r.ID)
	s.changes.notify(r.ID)
	return nil
}

// Explain says why a sandbox ended; not_found if it lives or nobody knows it.
func (s *Service) Explain(ctx context.Context, p auth.Principal, id api.SandboxID) (_ Tombstone, err error) {
	defer s.finishVerb("explain", time.Now(), &err)
	t, err := s.db.Read().Tombstone(ctx, string(id))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return Tombstone{}, err
	}
	if err != nil || p.Workspace == "" || t.Workspace != string(p.Workspace) {
		return Tombstone{}, api.Errorf(api.NotFound, "no end of a sandbox %s is known", id)
	}
	return viewTombstone(&t)
}

// viewTombstone gives a tombstone as users see it.
func viewTombstone(t *store.Tombstone) (Tombstone, error) {
	e := Tombstone{
		Sandbox:  api.SandboxID(t.Sandbox),
		Template: t.Template,
		Reason:   Reason(t.Reason),
		By:       t.By,
		Message:  t.Message,
		Created:  store.Time(t.Created),
		Ended:    store.Time(t.Ended),
		Metadata: visibleMetadata(t.Metadata),
		Console:  t.Console,
	}
	if err := json.Unmarshal([]byte(t.Processes), &e.Processes); err != nil {
		return Tombstone{}, err
	}
	if t.Usage != "" {
		e.Usage = &api.Usage{}
		if err := json.Unmarshal([]byte(t.Usage), e.Usage); err != nil {
			return Tombstone{}, err
		}
	}
	return e, nil
}

// Logs is what a sandbox printed, alive or after its end. It wakes nothing.
func (s *Service) Logs(ctx context.Context, p auth.Principal, id api.SandboxID) (_ Logs, err error) {
	defer s.finishVerb("logs", time.Now(), &err)
	r, err := s.row(ctx, p, id)
	if err == nil {
		text, err := s.host.Console(ctx, machineID(&r))
		if err != nil && !errors.Is(err, hostapi.ErrNotFound) && !errors.Is(err, hostapi.ErrWrongState) {
			return Logs{}, hostError(err, "read the console of", r.ID)
		}
		return Logs{Console: activity.Printable(text), Processes: s.activity.Processes(r.ID)}, nil
	}
	e, unknown := s.Explain(ctx, p, id)
	if unknown != nil {
		return Logs{}, err
	}
	return Logs{Console: e.Console, Processes: e.Processes, Tombstone: &e}, nil
}
