package vmmproc

import (
	"errors"
	"sync"
)

// RefCount counts the operations that use a capture, and frees it after the last one. Call OnFree
// before using a zero RefCount.
type RefCount struct {
	mu    sync.Mutex
	free  func() error // nil once it was called
	users int          // operations in progress; Close does not wait for them, the last one frees
	ended bool
}

// OnFree sets the function that frees the capture.
func (u *RefCount) OnFree(free func() error) { u.free = free }

// Acquire keeps the capture alive for one operation, which must end with Release. It fails after
// Close.
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

// Close frees the capture, either now or when the last operation ends. It may be called twice.
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
