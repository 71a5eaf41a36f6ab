package hostapi

import (
	"context"
	"errors"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// Code names an error of a host on the wire.
type Code string

// codes are the errors that callers tell apart, with their codes. An error is encoded by the first that it is.
var codes = []struct {
	code Code
	err  error
}{
	{"guest_lost", guestapi.ErrLost},
	{"not_found", ErrNotFound},
	{"exists", ErrExists},
	{"wrong_state", ErrWrongState},
	{"no_capacity", ErrNoCapacity},
	{"no_space", ErrNoSpace},
	{"unsupported", ErrUnsupported},
	{"in_use", ErrInUse},
	{"unavailable", ErrUnavailable},
	{"invalid", ErrInvalid},
	{"deadline_exceeded", context.DeadlineExceeded},
	{"canceled", context.Canceled},
}

// Error is an error of a host that can be sent over a wire. It works with errors.Is and errors.AsType like the error
// that was encoded.
type Error struct {
	Code    Code        `json:"code"` // "": none of those that callers tell apart
	Message string      `json:"message"`
	Step    string      `json:"step,omitempty"`  // of a PublishError
	Limit   *LimitError `json:"limit,omitempty"` // if it is one
}

// EncodeError returns err in the form for the wire; nil for nil.
func EncodeError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return &Error{Code: e.Code, Message: err.Error(), Step: e.Step, Limit: e.Limit}
	}
	out := &Error{Message: err.Error()}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			out.Code = c.code
			break
		}
	}
	if p, ok := errors.AsType[*PublishError](err); ok {
		out.Step = p.Step
	}
	if l, ok := errors.AsType[*LimitError](err); ok {
		out.Limit = l
	}
	return out
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the error that Code stands for, and those of Step and Limit.
func (e *Error) Unwrap() []error {
	var all []error
	for _, c := range codes {
		if c.code == e.Code {
			all = append(all, c.err)
		}
	}
	if e.Limit != nil {
		all = append(all, e.Limit)
	}
	if e.Step != "" {
		all = append(all, &PublishError{Step: e.Step, Err: errors.New(e.Message)})
	}
	return all
}
