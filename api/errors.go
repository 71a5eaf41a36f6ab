package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// Code is a stable word for what went wrong. Programs compare codes, never messages.
type Code string

// The codes. Table gives each its HTTP status, exit code, and whether to try again.
const (
	Invalid          Code = "invalid"            // the request is wrong and stays wrong
	Unauthenticated  Code = "unauthenticated"    // no key, or one that does not hold
	Forbidden        Code = "forbidden"          // the key holds but may not do this
	PermissionDenied Code = "permission_denied"  // the user in the sandbox may not do this
	NotFound         Code = "not_found"          // not there, or not the caller's
	NotAllowed       Code = "method_not_allowed" // the path is there, the method is not
	Conflict         Code = "conflict"           // exists already, or in use
	WrongState       Code = "wrong_state"        // not possible in the sandbox's state
	Gone             Code = "gone"               // was there and has ended
	TooLarge         Code = "too_large"          // over a bound that the message names
	// RangeNotSatisfiable answers a Range header that lies beyond the end of a file.
	RangeNotSatisfiable Code = "range_not_satisfiable"
	QuotaExceeded       Code = "quota_exceeded" // over what the workspace may have
	Unsupported         Code = "unsupported"    // this server cannot do it
	Timeout             Code = "timeout"        // a deadline of the caller's passed
	Canceled            Code = "canceled"       // the caller went away
	NoCapacity          Code = "no_capacity"    // no host has room now
	NoSpace             Code = "no_space"       // no disk space for it
	Unreachable         Code = "unreachable"    // nothing answers on that port of the sandbox
	Unavailable         Code = "unavailable"    // not now: starting, stopping, or a host is away
	Internal            Code = "internal"       // our fault; the request id finds it in the log
)

// CodeInfo is what a code means to clients.
type CodeInfo struct {
	Code      Code
	Status    int    // HTTP
	Exit      int    // of the command line
	Retryable bool   // the same request may go well later
	Summary   string // for the reference page
}

// codeTable is the one place where codes get their meaning. It must hold every code once.
var codeTable = []CodeInfo{
	{Invalid, http.StatusBadRequest, 2, false, "The request is wrong; the message names the field and the remedy."},
	{Unauthenticated, http.StatusUnauthorized, 3, false, "No key was sent, or one that does not hold."},
	{Forbidden, http.StatusForbidden, 4, false, "The key may not do this."},
	{PermissionDenied, http.StatusBadRequest, 4, false, "The user inside the sandbox may not do this; the key may."},
	{NotFound, http.StatusNotFound, 5, false, "It is not there, or belongs to another workspace."},
	{NotAllowed, http.StatusMethodNotAllowed, 2, false, "The path exists, the method does not."},
	{Conflict, http.StatusConflict, 6, false, "It exists already or is in use."},
	{WrongState, http.StatusConflict, 7, false, "Not possible in the state the sandbox is in."},
	{Gone, http.StatusGone, 5, false, "It was there and has ended."},
	{TooLarge, http.StatusRequestEntityTooLarge, 2, false, "Larger than the bound in the message."},
	{
		RangeNotSatisfiable,
		http.StatusRequestedRangeNotSatisfiable,
		2,
		false,
		"The range begins beyond the end of the file.",
	},
	{QuotaExceeded, http.StatusTooManyRequests, 8, true, "More than the workspace may have at once."},
	{Unsupported, http.StatusNotImplemented, 9, false, "This server cannot do it."},
	{Timeout, http.StatusGatewayTimeout, 124, false, "A deadline the caller set has passed."},
	{Canceled, 499, 130, false, "The caller went away before the answer."},
	{NoCapacity, http.StatusServiceUnavailable, 10, true, "No host has room for it now."},
	{NoSpace, http.StatusInsufficientStorage, 10, false, "There is not enough disk space."},
	{Unreachable, http.StatusBadGateway, 11, true, "Nothing answers on that port of the sandbox."},
	{Unavailable, http.StatusServiceUnavailable, 12, true, "Not possible now; try again."},
	{Internal, http.StatusInternalServerError, 1, false, "A fault of the server; the log has it under the request id."},
}

// Codes lists all codes with their meaning, in the order of the reference page.
func Codes() []CodeInfo { return append([]CodeInfo(nil), codeTable...) }

// Info gives what a code means. A text that is no code means what Internal means.
func (c Code) Info() CodeInfo {
	for _, m := range codeTable {
		if m.Code == c {
			return m
		}
	}
	return c.internal()
}

func (Code) internal() CodeInfo { return codeTable[len(codeTable)-1] }

// CodeOfStatus gives the code that an HTTP status means when the body does not say.
func CodeOfStatus(status int) Code {
	for _, m := range codeTable {
		if m.Status == status {
			return m.Code
		}
	}
	if status >= 400 && status < 500 {
		return Invalid
	}
	return Internal
}

// Error is what crosses a process or reaches a user, and the body of every answer that is not 2xx.
// Message is one line for people. The wrapped cause is never sent.
type Error struct {
	Message   string         `json:"error" doc:"What went wrong and how to mend it, for people."`
	Code      Code           `json:"code" doc:"A stable word for programs."`
	RequestID RequestID      `json:"request_id,omitempty" doc:"Finds the request in the server's log."`
	Retryable bool           `json:"retryable" doc:"The same request may go well later."`
	Details   map[string]any `json:"details,omitempty" doc:"Facts beside the message, such as partial output."`

	cause error
}

// Errorf makes an error. A %w in the format is kept as the cause and shown.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Message: err.Error(), Code: code, Retryable: code.Info().Retryable, cause: errors.Unwrap(err)}
}

// Wrap makes an error with a message for the user and a cause for the log.
func Wrap(code Code, cause error, message string) *Error {
	return &Error{Message: message, Code: code, Retryable: code.Info().Retryable, cause: cause}
}

// With adds a fact to Details and returns the same error.
func (e *Error) With(key string, value any) *Error {
	if e.Details == nil {
		e.Details = map[string]any{}
	}
	e.Details[key] = value
	return e
}

// Error is the message.
func (e *Error) Error() string { return e.Message }

// Unwrap is the cause, nil if there is none or if the error came over the wire.
func (e *Error) Unwrap() error { return e.cause }

// AsError finds the *Error in err or makes one: the end of a context is timeout or canceled, everything
// else internal, with a message that tells nothing. It answers nil for nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return Wrap(Timeout, err, "timeout: the deadline of the request passed")
	case errors.Is(err, context.Canceled):
		return Wrap(Canceled, err, "the request was canceled")
	}
	return Wrap(Internal, err, "internal error; the server's log has it under this request id")
}

// CodeOf gives the code of an error, "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return AsError(err).Code
}
