package guestapi

import (
	"context"
	"errors"
)

// errorCodes is the order of errors on the wire; code 0 is success.
var errorCodes = []error{nil, ErrInternal, ErrInvalid, ErrNotFound, ErrExists, ErrPermission, ErrNotDir, ErrIsDir,
	ErrNoSpace, ErrBusy, ErrRefused, ErrLost, context.Canceled, context.DeadlineExceeded, ErrInUse, ErrDamaged}

// Error is an error that a guest returned: one of the errors of this package, and the guest's text.
type Error struct {
	Kind error
	Text string
}

// Error returns the guest's text, or the text of Kind if there is none.
func (e *Error) Error() string {
	if e.Text == "" {
		return e.Kind.Error()
	}
	return e.Text
}

// Unwrap returns Kind.
func (e *Error) Unwrap() error { return e.Kind }

// ErrorCode returns the number of err on the wire: 0 for nil, 1 (ErrInternal) for an unknown error.
func ErrorCode(err error) uint8 {
	if err == nil {
		return 0
	}
	for i, kind := range errorCodes {
		if i > 0 && errors.Is(err, kind) {
			return uint8(i)
		}
	}
	return 1
}

// CodeError returns the error of a number and a text from the wire; nil for 0.
func CodeError(code uint8, text string) error {
	if code == 0 {
		return nil
	}
	if int(code) >= len(errorCodes) {
		code = 1
	}
	return &Error{errorCodes[code], Printable(text)}
}

// AppendStatus encodes the beginning of a response: success, or an error.
func AppendStatus(b []byte, err error) []byte {
	w := buffer(b)
	w.u8(ErrorCode(err))
	if err != nil {
		text := err.Error()
		w.str(text[:min(len(text), MaxText)])
	}
	return w
}

// ParseStatus splits a response into its body and its error.
func ParseStatus(b []byte) (body []byte, err error) {
	p := parser{b: b}
	code := p.u8()
	if p.bad {
		return nil, ErrFormat
	}
	if code == 0 {
		return p.b, nil
	}
	text := p.str(MaxText)
	if err := p.end(); err != nil {
		return nil, err
	}
	return nil, CodeError(code, text)
}
