// Package conformance runs the suite that every driver of machines passes outside of go test: on a user's
// host, with a real guest kernel, and tells how long things take there.
//
// It owns what a suite needs of its surroundings (Runner), and what such a run starts from (Lab). It must
// not know what the suite asks. Nothing is left when it returns but a root disk in the data directory, for
// the next run. One run at a time in a data directory.
package conformance

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// Result is one case that was run.
type Result struct {
	Name string        `json:"name"`
	Took time.Duration `json:"took_ns"`
	Errs []string      `json:"errors,omitempty"` // empty: it passed
}

// Runner is a vmmtest.TB that is no test. What it is given to do runs in a goroutine of its own, so that
// Fatal can end it.
type Runner struct {
	ctx context.Context

	mu      sync.Mutex
	errs    []string
	cleanup []func()
}

var _ vmmtest.TB = (*Runner)(nil)

// Run does one thing, then its cleanups, last-first, and tells what became of it.
func Run(ctx context.Context, name string, do func(vmmtest.TB)) Result {
	began := time.Now()
	r := &Runner{}
	var end context.CancelFunc
	r.ctx, end = context.WithCancel(ctx)
	r.inside(func() { do(r) })
	end()
	for {
		r.mu.Lock()
		n := len(r.cleanup)
		if n == 0 {
			r.mu.Unlock()
			break
		}
		last := r.cleanup[n-1]
		r.cleanup = r.cleanup[:n-1]
		r.mu.Unlock()
		r.inside(last)
	}
	return Result{Name: name, Took: time.Since(began), Errs: slices.Clone(r.errs)}
}

// inside runs do in a goroutine that Fatal may end, and waits for it.
func (r *Runner) inside(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	<-done
}

// Helper does nothing: there are no lines to leave out.
func (r *Runner) Helper() {}

// Context ends before the cleanups.
func (r *Runner) Context() context.Context { return r.ctx }

// Cleanup registers what is done at the end.
func (r *Runner) Cleanup(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanup = append(r.cleanup, do)
}

// Error notes a failure and goes on.
func (r *Runner) Error(args ...any) {
	text := fmt.Sprintln(args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, text[:len(text)-1])
}

// Errorf is Error with a format.
func (r *Runner) Errorf(format string, args ...any) { r.Error(fmt.Sprintf(format, args...)) }

// Fatal notes a failure and ends what calls it.
func (r *Runner) Fatal(args ...any) {
	r.Error(args...)
	runtime.Goexit()
}

// Fatalf is Fatal with a format.
func (r *Runner) Fatalf(format string, args ...any) { r.Fatal(fmt.Sprintf(format, args...)) }
