// Package conformance runs the suite of VMM drivers on a user's host, outside of go test.
//
// The suite is in vmmtest and runs with a real guest kernel. This package provides what the suite needs of the testing
// package (Runner) and of the host (Lab), and reports latencies. After a run, only a root disk for the next run stays
// in the data directory. A data directory can be used by one run at a time.
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

// Result is the result of one case.
type Result struct {
	Name string        `json:"name"`
	Took time.Duration `json:"took_ns"`
	Errs []string      `json:"errors,omitempty"` // empty if the case passed
}

// Runner implements vmmtest.TB outside of go test. Each function runs in its own goroutine, which Fatal ends.
type Runner struct {
	ctx context.Context

	mu      sync.Mutex
	errs    []string
	cleanup []func()
}

var _ vmmtest.TB = (*Runner)(nil)

// Run runs do and then its cleanups, last one first, and returns the result.
func Run(ctx context.Context, name string, do func(vmmtest.TB)) Result {
	began := time.Now()
	r := &Runner{}
	var end context.CancelFunc
	r.ctx, end = context.WithCancel(ctx)
	r.run(func() { do(r) })
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
		r.run(last)
	}
	return Result{Name: name, Took: time.Since(began), Errs: slices.Clone(r.errs)}
}

// run calls do in a goroutine that Fatal may end, and waits for it.
func (r *Runner) run(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	<-done
}

// Helper does nothing: errors of a Runner have no line numbers.
func (r *Runner) Helper() {}

// Context returns a context that is canceled before the cleanups run.
func (r *Runner) Context() context.Context { return r.ctx }

// Cleanup registers a function to run at the end.
func (r *Runner) Cleanup(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanup = append(r.cleanup, do)
}

// Error records a failure and continues.
func (r *Runner) Error(args ...any) {
	text := fmt.Sprintln(args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, text[:len(text)-1])
}

// Errorf is Error with a format.
func (r *Runner) Errorf(format string, args ...any) { r.Error(fmt.Sprintf(format, args...)) }

// Fatal records a failure and ends the calling function's goroutine.
func (r *Runner) Fatal(args ...any) {
	r.Error(args...)
	runtime.Goexit()
}

// Fatalf is Fatal with a format.
func (r *Runner) Fatalf(format string, args ...any) { r.Fatal(fmt.Sprintf(format, args...)) }
