package machine_test

import (
	"context"
	"errors"
	"testing"
	"time"
)

var errTooLate = errors.New("the test's patience ended")

func deadline(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeoutCause(t.Context(), d, errTooLate)
}
