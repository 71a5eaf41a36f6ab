package machine_test

import (
	"context"
	"errors"
	"testing"
	"time"
)

var errTooLate = errors.New("the test's deadline passed")

// deadline returns a context of the test that ends after d with errTooLate.
func deadline(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeoutCause(t.Context(), d, errTooLate)
}
