// Package limit bounds how many invocations of functions are under way, and says whose turn it is.
//
// Invocations that must wait are in a queue of their workspace. A place that becomes free goes to the workspace that
// has the fewest invocations under way, so that none starves another one, and within it to the invocation that has
// waited longest among those whose function has room.
package limit

import (
	"cmp"
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
)

// Config bounds a Limiter. Zero fields mean the default.
type Config struct {
	Total   int // invocations under way of all workspaces; 64
	Waiting int // invocations of one workspace that may wait; 256
}

// Limiter admits invocations. Make it with New.
type Limiter struct {
	cfg Config

	mu         sync.Mutex
	total      int
	workspaces map[api.Workspace]*workspace
}

// workspace is what a workspace has under way and waiting.
type workspace struct {
	active    int
	functions map[api.FunctionID]int // under way
	waiting   *list.List             // of *waiter, the first has waited longest
}

type waiter struct {
	function api.FunctionID
	limit    int
	admitted chan struct{} // closed when it is
}

// New returns a limiter.
func New(cfg Config) *Limiter {
	cfg.Total = cmp.Or(cfg.Total, 64)
	cfg.Waiting = cmp.Or(cfg.Waiting, 256)
	return &Limiter{cfg: cfg, workspaces: map[api.Workspace]*workspace{}}
}

// Request is an invocation that is to begin.
type Request struct {
	Workspace api.Workspace
	Function  api.FunctionID
	Limit     int           // of the function: invocations under way
	Wait      time.Duration // until the request fails; 0: at once
}

// retryAfter is after how many seconds callers try again that are not admitted.
const retryAfter = 1

func busy(format string, args ...any) error {
	return api.Errorf(api.RateLimited, format, args...).With("retry_after_seconds", retryAfter)
}

// Acquire waits until an invocation may begin. Release, which may be called once, ends it.
//
// The error is an *api.Error with the code RateLimited if it may not begin in time.
func (l *Limiter) Acquire(ctx context.Context, r Request) (release func(), err error) {
	l.mu.Lock()
	w := l.workspaces[r.Workspace]
	if w == nil {
		w = &workspace{functions: map[api.FunctionID]int{}, waiting: list.New()}
		l.workspaces[r.Workspace] = w
	}
	me := &waiter{function: r.Function, limit: r.Limit, admitted: make(chan struct{})}
	at := w.waiting.PushBack(me)
	l.admit()
	release = sync.OnceFunc(func() { l.release(r.Workspace, r.Function) })
	select {
	case <-me.admitted:
		l.mu.Unlock()
		return release, nil
	default:
	}
	if r.Wait <= 0 || w.waiting.Len() > l.cfg.Waiting {
		w.waiting.Remove(at)
		err := l.refusal(w, r)
		l.forget(r.Workspace, w)
		l.mu.Unlock()
		return nil, err
	}
	l.mu.Unlock()
	timer := time.NewTimer(r.Wait)
	defer timer.Stop()
	select {
	case <-me.admitted:
		return release, nil
	case <-ctx.Done():
	case <-timer.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-me.admitted: // in the meantime
		return release, nil
	default:
	}
	w.waiting.Remove(at)
	err = context.Cause(ctx)
	if err == nil {
		err = l.refusal(w, r)
	}
	l.forget(r.Workspace, w)
	return nil, err
}

// refusal says why an invocation may not begin. The lock is held.
func (l *Limiter) refusal(w *workspace, r Request) error {
	if w.functions[r.Function] >= r.Limit {
		return busy("the function has %d invocations under way: raise settings.max_concurrency, or try again later",
			r.Limit)
	}
	return busy("the server has %d invocations under way: try again later, or invoke with async", l.total)
}

// forget removes a workspace that has nothing. The lock is held.
func (l *Limiter) forget(name api.Workspace, w *workspace) {
	if w.active == 0 && w.waiting.Len() == 0 {
		delete(l.workspaces, name)
	}
}

func (l *Limiter) release(name api.Workspace, function api.FunctionID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.workspaces[name]
	l.total--
	w.active--
	if w.functions[function]--; w.functions[function] == 0 {
		delete(w.functions, function)
	}
	l.admit()
	l.forget(name, w)
}

// admit lets begin what may. The lock is held.
func (l *Limiter) admit() {
	for l.total < l.cfg.Total {
		var best *workspace
		var turn *list.Element
		for _, w := range l.workspaces {
			if best != nil && w.active >= best.active {
				continue
			}
			if next := w.next(); next != nil {
				best, turn = w, next
			}
		}
		if best == nil {
			return
		}
		one := best.waiting.Remove(turn).(*waiter)
		best.active++
		best.functions[one.function]++
		l.total++
		close(one.admitted)
	}
}

// next returns the waiter of a workspace whose turn it is, if its function has room.
func (w *workspace) next() *list.Element {
	for e := w.waiting.Front(); e != nil; e = e.Next() {
		if one := e.Value.(*waiter); w.functions[one.function] < one.limit {
			return e
		}
	}
	return nil
}

// Active returns how many invocations of a function are under way.
func (l *Limiter) Active(name api.Workspace, function api.FunctionID) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.workspaces[name]; w != nil {
		return w.functions[function]
	}
	return 0
}
