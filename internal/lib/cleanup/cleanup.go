// Package cleanup undoes the steps of an operation that fails.
//
// It owns nothing but a list of named functions. Acquire a resource, then push its undo function on the next line;
// settle the stack in a deferred call. If the operation failed, the functions run last-first and their errors are
// joined to the one that caused it; if it succeeded they are forgotten.
//
// A Stack is used by one goroutine at a time. Its zero value is ready to use.
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// limit is the default limit of one whole unwinding, so that a dead resource cannot hold a caller for ever.
const limit = 2 * time.Minute

type step struct {
	name string
	do   func(context.Context) error
}

// Stack is a list of undo functions, run last-first.
type Stack struct{ steps []step }

// Push registers do to undo the last step. name describes do ("release slot").
func (s *Stack) Push(name string, do func(context.Context) error) {
	s.steps = append(s.steps, step{name, do})
}

// Forget drops all registered functions, for resources that now have another owner.
func (s *Stack) Forget() { s.steps = nil }

// Settle ends the operation: it forgets the stack if err is nil, and unwinds it otherwise.
//
// It returns err joined with the errors of the undo functions. The functions get the context's values but not its
// end: a cancelled operation is undone all the same, within two minutes.
func (s *Stack) Settle(ctx context.Context, err error) error {
	if err == nil {
		s.Forget()
		return nil
	}
	if back := s.Unwind(ctx); back != nil {
		return errors.Join(err, back)
	}
	return err
}

// Unwind runs all registered functions last-first and empties the stack. Every function runs, even if earlier ones
// failed. They do not see the end of ctx; two minutes is the limit for all together.
func (s *Stack) Unwind(ctx context.Context) error { return s.UnwindWithin(ctx, limit) }

// UnwindWithin is Unwind with another limit. Functions that run after it have a context that has ended.
func (s *Stack) UnwindWithin(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(
		context.WithoutCancel(ctx),
		limit,
		fmt.Errorf("undo took longer than %v", limit),
	)
	defer cancel()
	var all error
	for i := len(s.steps) - 1; i >= 0; i-- {
		if err := s.steps[i].do(ctx); err != nil {
			all = errors.Join(all, fmt.Errorf("undo: %s: %w", s.steps[i].name, err))
		}
	}
	s.steps = nil
	return all
}
