package vmmproc

import (
	"errors"
	"sync"
)

// RefCount counts what is done with a capture, whose memory stays while something is done. The zero Uses needs
// OnFree before it is used.
type RefCount struct {
	mu    sync.Mutex
	free  func() error // nil once called
	users int          // operations under way; Close waits for nobody, the last one frees
	ended bool
}

// OnFree sets what frees the capture.
func (u *RefCount) OnFree(free func() error) { u.free = free }

// Acquire keeps the capture for one operation, which ends with Let. It fails after Close.
func (u *RefCount) Acquire() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return errors.New("capture was closed")
	}
	u.users++
	return nil
}

// Release ends an operation.
func (u *RefCount) Release() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.users--
	return u.freeLocked()
}

// Close frees the capture, at once or when the last operation under way has ended. Twice is fine.
func (u *RefCount) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = true
	return u.freeLocked()
}

func (u *RefCount) freeLocked() error {
	if !u.ended || u.users > 0 || u.free == nil {
		return nil
	}
	free := u.free
	u.free = nil
	return free()
}
