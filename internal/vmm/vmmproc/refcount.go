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
func (r *RefCount) OnFree(free func() error) { r.free = free }

// Acquire keeps the capture alive for one operation, which must end with Release. It fails after
// Close.
func (r *RefCount) Acquire() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return errors.New("capture was closed")
	}
	r.users++
	return nil
}

// Release ends an operation.
func (r *RefCount) Release() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users--
	return r.freeLocked()
}

// Close frees the capture, either now or when the last operation ends. It may be called twice.
func (r *RefCount) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	return r.freeLocked()
}

func (r *RefCount) freeLocked() error {
	if !r.ended || r.users > 0 || r.free == nil {
		return nil
	}
	free := r.free
	r.free = nil
	return free()
}
