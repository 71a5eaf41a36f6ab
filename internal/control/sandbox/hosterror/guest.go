package hosterror

import (
	"errors"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// guestCodes maps the errors of a guest to codes and hints for clients.
var guestCodes = []struct {
	err  error
	code api.Code
	hint string
}{
	{guestapi.ErrInvalid, api.Invalid, ""},
	{guestapi.ErrNotFound, api.NotFound, ""},
	{guestapi.ErrExists, api.Conflict, ""},
	{guestapi.ErrPermission, api.PermissionDenied, "; name another user with user="},
	{guestapi.ErrNotDir, api.Invalid, ""},
	{guestapi.ErrIsDir, api.Invalid, ""},
	{guestapi.ErrNoSpace, api.NoSpace, "; delete files, or create a sandbox with a larger disk_mb"},
	{guestapi.ErrBusy, api.QuotaExceeded, "; wait for some to end"},
	{guestapi.ErrTooLarge, api.TooLarge, ""},
	{guestapi.ErrRefused, api.Unreachable, ""},
	{guestexec.ErrNotStarted, api.Unavailable, "; the sandbox does not respond: try again, or delete it"},
	{guestapi.ErrInternal, api.Internal, ""},
	{guestapi.ErrLost, api.Unavailable, "; the sandbox ended or was restored meanwhile"},
}

// OfGuest turns an error of a guest about subject, such as a path, into an *api.Error.
//
// It returns nil for nil, and an *api.Error unchanged.
func OfGuest(err error, subject string) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	if over, ok := errors.AsType[*budget.Error](err); ok {
		return overBudget(over, err, subject)
	}
	for _, c := range guestCodes {
		if errors.Is(err, c.err) {
			return api.Wrap(c.code, err, subject+": "+err.Error()+c.hint)
		}
	}
	return api.AsError(err)
}

// overBudget returns the error of a request that exceeds a budget: too_large if it always will, else quota_exceeded.
func overBudget(over *budget.Error, cause error, subject string) error {
	code := api.QuotaExceeded
	if over.Never {
		code = api.TooLarge
	}
	return api.Wrap(code, cause, subject+": "+over.Error()).
		With("budget", over.Pool).
		With("level", over.Level).
		With("used", over.Used).
		With("allowed", over.Allowed).
		With("wanted", over.Wanted)
}
