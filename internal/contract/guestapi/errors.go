package guestapi

import "errors"

// What a guest may answer, to be compared with errors.Is. The text that comes with it is the guest's and
// is bounded and printable.
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
	// ErrLost says that the channel ended: the machine died, was paused for good, or was restored anew.
	ErrLost = errors.New("guest channel was lost")
)
