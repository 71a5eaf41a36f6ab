package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// Code is a stable word for what went wrong. Programs compare codes, never messages.
type Code string

// The codes. Codes returns the HTTP status and exit code of each, and whether to retry.
const (
	Invalid         Code = "invalid"         // the request is wrong and will not succeed later
	Unauthenticated Code = "unauthenticated" // no key, or an invalid one
	Forbidden       Code = "forbidden"       // the key is valid but may not do this
	// WorkspaceSuspended is for every request of a workspace that the operator has suspended.
	WorkspaceSuspended Code = "workspace_suspended"
	PermissionDenied   Code = "permission_denied"  // the user in the sandbox may not do this
	NotFound           Code = "not_found"          // does not exist, or belongs to another workspace
	NotAllowed         Code = "method_not_allowed" // the path exists, the method does not
	Conflict           Code = "conflict"           // exists already, or in use
	VolumeInUse        Code = "volume.in_use"      // another sandbox writes to the volume
	WrongState         Code = "wrong_state"        // not possible in the sandbox's state
	Gone               Code = "gone"               // existed and has ended
	// PreconditionFailed is for what would lose something, or lacks what it needs.
	PreconditionFailed Code = "precondition_failed"
	TooLarge           Code = "too_large" // over a bound that the message names
	// RangeNotSatisfiable is for a Range header beyond the end of a file.
	RangeNotSatisfiable Code = "range_not_satisfiable"
	QuotaExceeded       Code = "quota_exceeded" // over what the workspace may have
	RateLimited         Code = "rate_limited"   // too many requests, or failed authentications, in a short time
	Unsupported         Code = "unsupported"    // this server cannot do it
	Timeout             Code = "timeout"        // a deadline of the caller has passed
	// RequestTimeout is for a body that makes no progress.
	RequestTimeout Code = "request_timeout"
	Canceled       Code = "canceled"    // the caller closed the request
	NoCapacity     Code = "no_capacity" // no host has room now
	NoSpace        Code = "no_space"    // not enough disk space
	Unreachable    Code = "unreachable" // nothing listens on that port of the sandbox
	Unavailable    Code = "unavailable" // not now: starting, stopping, or a host is unreachable
	Internal       Code = "internal"    // a fault of the server; the request id finds it in the log
)

// CodeInfo is what a code means to clients.
type CodeInfo struct {
	Code      Code
	Status    int    // HTTP
	Exit      int    // exit code of the command line
	Retryable bool   // the same request may succeed later
	Summary   string // for the reference page
}

// codeTable is the single definition of what codes mean. It must contain every code once.
var codeTable = []CodeInfo{
	{Invalid, http.StatusBadRequest, 2, false, "The request is wrong; the message names the field and the remedy."},
	{Unauthenticated, http.StatusUnauthorized, 3, false, "No key was sent, or an invalid one."},
	{Forbidden, http.StatusForbidden, 4, false, "The key may not do this."},
	{WorkspaceSuspended, http.StatusForbidden, 4, false, "The operator has suspended the workspace of the key."},
	{PermissionDenied, http.StatusBadRequest, 4, false, "The user inside the sandbox may not do this; the key may."},
	{NotFound, http.StatusNotFound, 5, false, "It does not exist, or belongs to another workspace."},
	{NotAllowed, http.StatusMethodNotAllowed, 2, false, "The path exists, the method does not."},
	{Conflict, http.StatusConflict, 6, false, "It exists already or is in use."},
	{VolumeInUse, http.StatusConflict, 6, true, "Another sandbox writes to the volume; details.sandbox_id says which."},
	{WrongState, http.StatusConflict, 7, false, "Not possible in the state the sandbox is in."},
	{Gone, http.StatusGone, 5, false, "It existed and has ended."},
	{PreconditionFailed, http.StatusPreconditionFailed, 7, false, "It lacks what it needs, or would lose something."},
	{TooLarge, http.StatusRequestEntityTooLarge, 2, false, "Larger than the bound in the message."},
	{
		RangeNotSatisfiable,
		http.StatusRequestedRangeNotSatisfiable,
		2,
		false,
		"The range begins beyond the end of the file.",
	},
	{QuotaExceeded, http.StatusTooManyRequests, 8, true, "More than the workspace may have at once."},
	{RateLimited, http.StatusTooManyRequests, 8, true, "Too many requests; Retry-After says when to retry."},
	{Unsupported, http.StatusNotImplemented, 9, false, "This server cannot do it."},
	{Timeout, http.StatusGatewayTimeout, 124, false, "A deadline of the caller has passed."},
	{RequestTimeout, http.StatusRequestTimeout, 12, true, "The body of the request came too slowly."},
	{Canceled, 499, 130, false, "The caller closed the request before the response."},
	{NoCapacity, http.StatusServiceUnavailable, 10, true, "No host has room for it now."},
	{NoSpace, http.StatusInsufficientStorage, 10, false, "There is not enough disk space."},
	{Unreachable, http.StatusBadGateway, 11, true, "Nothing listens on that port of the sandbox."},
	{Unavailable, http.StatusServiceUnavailable, 12, true, "Not possible now; retry."},
	{Internal, http.StatusInternalServerError, 1, false, "A fault of the server; the log has it under the request id."},
}

// Codes returns all codes and what they mean, in the order of the reference page.
func Codes() []CodeInfo { return append([]CodeInfo(nil), codeTable...) }

// Info returns what a code means. An unknown code means what Internal means.
func (c Code) Info() CodeInfo {
	for _, m := range codeTable {
		if m.Code == c {
			return m
		}
	}
	return c.internal()
}

func (Code) internal() CodeInfo { return codeTable[len(codeTable)-1] }

// CodeOfStatus returns the code of an HTTP status, for responses whose body has none.
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

// Error is an error that crosses a process boundary or reaches a user.
//
// It is the body of every response that is not 2xx. Message is one line for people. The wrapped cause is never sent.
type Error struct {
	Message   string         `json:"error" doc:"What went wrong and how to fix it, for people."`
	Code      Code           `json:"code" doc:"A stable word for programs."`
	RequestID RequestID      `json:"request_id,omitempty" doc:"Finds the request in the server's log."`
	Retryable bool           `json:"retryable" doc:"The same request may succeed later."`
	Details   map[string]any `json:"details,omitempty" doc:"Facts beside the message, such as partial output."`

	beside map[string]any // members of the JSON beside those above
	cause  error
}

// Errorf returns an error. The cause of a %w in the format is shown and can be unwrapped.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Message: err.Error(), Code: code, Retryable: code.Info().Retryable, cause: errors.Unwrap(err)}
}

// Wrap returns an error with a message for the user and a cause for the log.
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

// WithBeside is With that sends the fact beside the message, too, where published clients look for it.
func (e *Error) WithBeside(key string, value any) *Error {
	if e.beside == nil {
		e.beside = map[string]any{}
	}
	e.beside[key] = value
	return e.With(key, value)
}

// MarshalJSON implements json.Marshaler.
func (e Error) MarshalJSON() ([]byte, error) {
	type plain Error
	data, err := json.Marshal(plain(e))
	if err != nil || len(e.beside) == 0 {
		return data, err
	}
	more, err := json.Marshal(e.beside)
	if err != nil {
		return nil, err
	}
	return append(append(data[:len(data)-1], ','), more[1:]...), nil
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause, nil if there is none or the error was received from a server.
func (e *Error) Unwrap() error { return e.cause }

// AsError returns the *Error in err, or a new one, and nil for nil.
//
// The end of a context becomes timeout or canceled. Everything else becomes internal, with a message that reveals
// nothing.
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

// CodeOf returns the code of an error, "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return AsError(err).Code
}
