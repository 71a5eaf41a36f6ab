package execstream

import (
	"context"
	"errors"

	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// MemoryPool is the memory of the node that requests share, by workspace and sandbox.
type MemoryPool = budget.Pool

// Memory pays for what one request buffers.
type Memory = budget.Account

// WithMemory returns a context whose commands and cells m pays for.
func WithMemory(ctx context.Context, m *Memory) context.Context { return budget.NewContext(ctx, m) }

// UnpaidError returns the error for the client if err says that memory was not paid for, else nil.
func UnpaidError(err error, subject string) error {
	if refused, ok := errors.AsType[*budget.Error](err); ok {
		return hosterror.OfGuest(refused, subject)
	}
	return nil
}
