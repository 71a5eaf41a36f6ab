// Package hosterror translates errors of hosts and guests for users.
package hosterror

import (
	"context"
	"errors"
	"fmt"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// codes are the codes of the API for errors of the host and its guests.
var codes = []struct {
	err  error
	code api.Code
	hint string // "": the host's text
}{
	{hostapi.ErrNoCapacity, api.NoCapacity,
		"no host has memory or a network slot free for it now: delete or hibernate sandboxes, or try again later"},
	{hostapi.ErrNoSpace, api.NoSpace,
		"there is not enough disk space on the host: delete snapshots or sandboxes, or enlarge the data " +
			"directory"},
	{hostapi.ErrInvalid, api.Invalid, ""},
	{hostapi.ErrUnsupported, api.Unsupported, ""},
	{hostapi.ErrInUse, api.Conflict, ""},
	{hostapi.ErrExists, api.Conflict, ""},
	{hostapi.ErrWrongState, api.WrongState, ""},
	{hostapi.ErrNotFound, api.NotFound, ""},
	{hostapi.ErrUnavailable, api.Unavailable, "its host cannot be asked now: try again"},
	{guestapi.ErrLost, api.Unavailable, "its guest does not reply at the moment: try again"},
}

// Wrap says what could not be done and why, in the words of package api. It returns nil for a nil err, and an
// *api.Error as it is.
func Wrap(err error, doing string, id string) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	for _, c := range codes {
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

// Interruption returns why the operation with the context ctx was interrupted, or nil. What the host says of such an
// operation is only that it was canceled, or that the machine is gone.
func Interruption(ctx context.Context) error {
	if e, ok := errors.AsType[*api.Error](context.Cause(ctx)); ok {
		return e
	}
	return nil
}
