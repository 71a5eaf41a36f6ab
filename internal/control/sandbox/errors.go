package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// notFound is the error for a sandbox that does not exist or belongs to another workspace.
func notFound(id api.SandboxID) error {
	return api.Errorf(api.NotFound, "sandbox %s not found: list yours at /v1/sandboxes", id)
}

func snapshotNotFound(id api.SnapshotID) error {
	return api.Errorf(api.NotFound, "snapshot %s not found: list yours at /v1/snapshots", id)
}

// endedError is the error for a sandbox that has no row. If a tombstone is kept, it says when and why the
// sandbox ended, how its processes did, and its last usage.
func (s *Service) endedError(ctx context.Context, p auth.Principal, id api.SandboxID) error {
	t, err := s.db.Read().Tombstone(ctx, string(id))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return notFound(id)
	case err != nil:
		return err
	case t.Workspace != string(p.Workspace):
		return notFound(id)
	}
	at := store.Time(t.Ended)
	e := api.Errorf(api.NotFound, "sandbox %s not found: it ended at %s: %s", id, at.Format(time.RFC3339), t.Message).
		With("ended_at", at.Format(time.RFC3339Nano)).
		With("reason", t.Reason).
		With("by", t.By).
		With("message", t.Message)
	end, err := viewTombstone(&t)
	if err != nil {
		return err
	}
	for i := range end.Processes { // their output is in the logs
		end.Processes[i].Stdout, end.Processes[i].Stderr = "", ""
	}
	if e = e.With("processes", end.Processes); end.Usage != nil {
		e = e.With("metrics", end.Usage)
	}
	return e
}

// remedies say what to do about a state that an operation cannot work with.
var remedies = map[api.Status]string{
	api.Creating:    "wait until it runs",
	api.Paused:      "resume it first",
	api.Hibernating: "wait until it is hibernated",
	api.Hibernated:  "wake it first",
	api.Waking:      "wait until it runs",
	api.Stopping:    "it is being deleted",
	api.Failed:      "wake boots it from its disk, delete ends it",
	api.Running:     "it runs already",
}

// wrongState is the error for a verb that is not possible in the state of a sandbox. It is no_space for one that waits
// for disk space.
func wrongState(r *record, verb string) error {
	if r.State == api.Paused && r.PauseReason == hostapi.PausedNoSpace {
		return api.Errorf(api.NoSpace, "cannot %s sandbox %s: it is paused until there is disk space for it "+
			"on its host, and continues by itself then: delete snapshots or sandboxes", verb, r.ID).
			With("status", string(r.State)).With("pause_reason", string(r.PauseReason))
	}
	e := api.Errorf(api.WrongState, "cannot %s sandbox %s: it is %s: %s", verb, r.ID, r.State, remedies[r.State])
	if r.State == api.Failed && r.Reason != "" {
		e.Message += " (it failed because " + r.Reason + ")"
	}
	return e.With("status", string(r.State))
}

// errDeleted is the cause with which an operation ends if its sandbox is deleted meanwhile.
var errDeleted = api.Errorf(api.Conflict, "the sandbox was deleted in the meantime")
