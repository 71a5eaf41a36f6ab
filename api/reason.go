package api

import "strings"

// Reason returns why something failed as a store keeps it: a line for users, and one for operators.
//
// The second is missing if it has not more. Texts of errors of a host may have its paths and addresses.
func Reason(doing string, err error) string {
	whole := oneLine(doing + AsError(err).Message)
	users := oneLine(doing + ForUsers(err).Message)
	if whole == users {
		return users
	}
	return users + "\n" + whole
}

// ShownReason returns what an operator, or another caller, may see of a reason that a store keeps.
func ShownReason(text string, operator bool) string {
	users, whole, more := strings.Cut(text, "\n")
	if operator && more {
		return whole
	}
	return users
}

// ForUsers returns an error without the text of its cause, if that is one of the host.
//
// Errors that what was asked for has caused are returned as they are.
func ForUsers(err error) *Error {
	e := AsError(err)
	if e == nil {
		return nil
	}
	switch e.Code {
	case Unavailable, Internal, Timeout:
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
