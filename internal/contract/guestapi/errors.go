package guestapi

import "errors"

// The errors that a guest may return, to be compared with errors.Is. Their text is the guest's, bounded and
// printable.
var (
	ErrInvalid    = errors.New("invalid request")
	ErrNotFound   = errors.New("not found")
	ErrExists     = errors.New("exists already")
	ErrPermission = errors.New("permission denied")
	ErrNotDir     = errors.New("not a directory")
	ErrIsDir      = errors.New("is a directory")
	ErrNoSpace    = errors.New("no space left in the sandbox")
	ErrBusy       = errors.New("too many at once")
	ErrRefused    = errors.New("connection refused in the sandbox")
	ErrInternal   = errors.New("guest agent failed")
	ErrInUse      = errors.New("programs use it")
	ErrDamaged    = errors.New("file system is damaged")
	// ErrTooLarge means that the host refused a response. Guests do not return it.
	ErrTooLarge = errors.New("response is too large")
	// ErrLost means that the channel ended: the machine died, was hibernated, or was restored.
	ErrLost = errors.New("guest channel was lost")
)
