package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
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

// hostCodes translates errors of the host.
var hostCodes = []struct {
	err  error
	code api.Code
	hint string // "": the host's text
}{
	{hostapi.ErrNoCapacity, api.NoCapacity,
		"no host has memory or a network slot free for it now: delete or hibernate sandboxes, or try again later"},
	{hostapi.ErrNoSpace, api.NoSpace,
		"there is not enough disk space on the host: delete snapshots or sandboxes, or enlarge the data directory"},
	{hostapi.ErrInvalid, api.Invalid, ""},
	{hostapi.ErrUnsupported, api.Unsupported, ""},
	{hostapi.ErrInUse, api.Conflict, ""},
	{hostapi.ErrExists, api.Conflict, ""},
	{hostapi.ErrWrongState, api.WrongState, ""},
	{hostapi.ErrNotFound, api.NotFound, ""},
	{hostapi.ErrUnavailable, api.Unavailable, "its host cannot be asked now: try again"},
	{guestapi.ErrLost, api.Unavailable, "its guest does not reply at the moment: try again"},
}

// hostError says what could not be done and why, in the words of package api.
func hostError(err error, doing string, id string) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	for _, c := range hostCodes {
		if !errors.Is(err, c.err) {
			continue
		}
		text := c.hint
		if text == "" {
			text = err.Error()
		}
		return api.Wrap(c.code, err, fmt.Sprintf("%s %s: %s", doing, id, text))
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return api.AsError(err)
	}
	return api.Wrap(
		api.Internal,
		fmt.Errorf("%s %s: %w", doing, id, err),
		doing+" "+id+" failed on its host; the server's log says why",
	)
}

// errDeleted is the cause with which an operation ends if its sandbox is deleted meanwhile.
var errDeleted = api.Errorf(api.Conflict, "the sandbox was deleted in the meantime")
