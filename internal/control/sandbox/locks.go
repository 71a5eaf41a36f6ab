package sandbox

import (
	"context"
	"sync"
)

// locks are one lock per name, made when somebody needs it. The zero value is ready.
type locks struct {
	mu sync.Mutex
	m  map[string]*lock
}

type lock struct {
	sem    chan struct{} // holds one token while the lock is taken
	refs   int           // takers and waiters, guarded by locks.mu
	cancel context.CancelCauseFunc
}

func (l *locks) ref(name string) *lock {
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
	return k
}

func (l *locks) unref(name string, k *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.refs--; k.refs == 0 {
		delete(l.m, name)
	}
}

// acquire waits for the lock of name. The context it answers ends with ctx, with an interrupt, and with
// release, which must be called once.
func (l *locks) acquire(ctx context.Context, name string) (context.Context, func(), error) {
	k := l.ref(name)
	select {
	case k.sem <- struct{}{}:
		ctx, release := l.hold(ctx, name, k)
		return ctx, release, nil
	case <-ctx.Done():
		l.unref(name, k)
		return nil, nil, context.Cause(ctx)
	}
}

// tryAcquire takes the lock of name if nobody has it.
func (l *locks) tryAcquire(ctx context.Context, name string) (context.Context, func(), bool) {
	k := l.ref(name)
	select {
	case k.sem <- struct{}{}:
		ctx, release := l.hold(ctx, name, k)
		return ctx, release, true
	default:
		l.unref(name, k)
		return nil, nil, false
	}
}

func (l *locks) hold(ctx context.Context, name string, k *lock) (context.Context, func()) {
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

// interrupt ends the context of whoever has the lock of name.
func (l *locks) interrupt(name string, cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.m[name]; k != nil && k.cancel != nil {
		k.cancel(cause)
	}
}
