// Package cleanup keeps the way back of an operation that makes several things.
//
// It owns nothing but a list of named functions. Acquire, then push the undo on the next line; settle
// the stack in a deferred call. When the operation failed, the functions run last-first and their
// errors are joined to the one that caused it; when it went well they are forgotten.
//
// A Stack is used by one goroutine at a time. Its zero value is ready.
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// limit bounds, unless the caller says otherwise, one whole unwinding, so that a dead resource cannot hold a caller for ever.
const limit = 2 * time.Minute

type step struct {
	name string
	do   func(context.Context) error
}

// Stack is a list of undo functions, run last-first.
type Stack struct{ steps []step }

// Push registers do as the way back from what was just acquired. name says what do does ("give slot").
func (s *Stack) Push(name string, do func(context.Context) error) {
	s.steps = append(s.steps, step{name, do})
}

// Forget drops all registered functions: what they would undo now belongs to somebody else.
func (s *Stack) Forget() { s.steps = nil }

// Settle ends the operation: with err nil it forgets the stack and returns nil, otherwise it unwinds
// and returns err joined with whatever the undo functions answered. The context's values are kept but
// not its end: an operation that was cancelled is undone all the same, within two minutes.
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

// Unwind runs all registered functions last-first and empties the stack. Every function runs, whatever
// the ones before it answered. The context's end is not kept; two minutes is the limit of all together.
func (s *Stack) Unwind(ctx context.Context) error { return s.UnwindWithin(ctx, limit) }

// UnwindWithin is Unwind with another limit. Functions that run after it have a context that has ended.
func (s *Stack) UnwindWithin(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(
		context.WithoutCancel(ctx),
		limit,
		fmt.Errorf("undoing took longer than %v", limit),
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
