// Package reason keeps why operations on databases failed: as users may see it, and as those who operate the node do.
//
// The texts of errors of a host may have its paths and the addresses of its object store.
package reason

import (
	"strings"

	"github.com/pandastack/pandastack/api"
)

// Of returns the reason of a failure as the store has it: a line for users, and one for operators if that has more.
func Of(doing string, err error) string {
	whole := oneLine(doing + api.AsError(err).Message)
	users := oneLine(doing + ForUsers(err).Message)
	if whole == users {
		return users
	}
	return users + "\n" + whole
}

// Shown returns a reason as the store has it for an operator or for others.
func Shown(text string, operator bool) string {
	users, whole, more := strings.Cut(text, "\n")
	if operator && more {
		return whole
	}
	return users
}

// ForUsers returns an error without the text of its cause, if it is one of the host and not of what was asked for.
func ForUsers(err error) *api.Error {
	e := api.AsError(err)
	if e == nil {
		return nil
	}
	switch e.Code {
	case api.Unavailable, api.Internal, api.Timeout:
	default:
		return e
	}
	cause := e.Unwrap()
	if cause == nil {
		return e
	}
	text, cut := strings.CutSuffix(e.Message, ": "+cause.Error())
	if !cut {
		return e
	}
	less := *e
	less.Message = text
	return &less
}

func oneLine(text string) string { return strings.ReplaceAll(text, "\n", " ") }
