// Package keyed provides locks and notifications that have names. The holder of a lock can be interrupted.
package keyed

import (
	"context"
	"sync"
)

// Locks holds one lock per name, made on demand. The zero value is ready for use.
type Locks struct {
	mu sync.Mutex
	m  map[string]*lock
}

type lock struct {
	sem    chan struct{} // holds one token while the lock is taken
	refs   int           // holders and waiters, guarded by Locks.mu
	cancel context.CancelCauseFunc
	// interrupts counts the calls of Interrupt; cause is that of the last. Guarded by Locks.mu.
	interrupts int
	cause      error
}

// ref returns the lock of name and how often it was interrupted.
func (l *Locks) ref(name string) (*lock, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.m == nil {
		l.m = map[string]*lock{}
	}
	k, ok := l.m[name]
	if !ok {
		k = &lock{sem: make(chan struct{}, 1)}
		l.m[name] = k
	}
	k.refs++
	return k, k.interrupts
}

func (l *Locks) unref(name string, k *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.refs--; k.refs == 0 {
		delete(l.m, name)
	}
}

// Acquire waits for the lock of name. The returned context ends with ctx, with an interrupt, and with
// release, which must be called once. An interrupt ends the wait, too.
func (l *Locks) Acquire(ctx context.Context, name string) (context.Context, func(), error) {
	k, interrupts := l.ref(name)
	select {
	case k.sem <- struct{}{}:
		held, release := l.hold(ctx, name, k)
		if cause := l.interruptedSince(k, interrupts); cause != nil {
			release()
			return nil, nil, cause
		}
		return held, release, nil
	case <-ctx.Done():
		l.unref(name, k)
		return nil, nil, context.Cause(ctx)
	}
}

// interruptedSince returns the cause of the last interrupt if there were more than before, else nil.
func (l *Locks) interruptedSince(k *lock, before int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.interrupts == before {
		return nil
	}
	return k.cause
}

// TryAcquire takes the lock of name if it is free.
func (l *Locks) TryAcquire(ctx context.Context, name string) (context.Context, func(), bool) {
	k, _ := l.ref(name)
	select {
	case k.sem <- struct{}{}:
		ctx, release := l.hold(ctx, name, k)
		return ctx, release, true
	default:
		l.unref(name, k)
		return nil, nil, false
	}
}

func (l *Locks) hold(ctx context.Context, name string, k *lock) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	l.mu.Lock()
	k.cancel = cancel
	l.mu.Unlock()
	return ctx, func() {
		cancel(nil)
		l.mu.Lock()
		k.cancel = nil
		l.mu.Unlock()
		<-k.sem
		l.unref(name, k)
	}
}

// Interrupt cancels the context of the holder of the lock of name. All who wait for the lock get the cause when it is
// their turn. It reports whether there was a holder.
func (l *Locks) Interrupt(name string, cause error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.m[name]
	if k == nil {
		return false
	}
	k.interrupts++
	k.cause = cause
	if k.cancel == nil {
		return false
	}
	k.cancel(cause)
	return true
}
