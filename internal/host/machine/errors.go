package machine

import (
	"errors"
	"fmt"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// wrapStoreError wraps an error of the snapshot store in the error of the contract that corresponds to it.
func wrapStoreError(err error) error {
	switch {
	case errors.Is(err, snapshot.ErrNotFound):
		return fmt.Errorf("%w: %w", hostapi.ErrNotFound, err)
	case errors.Is(err, snapshot.ErrExists):
		return fmt.Errorf("%w: %w", hostapi.ErrExists, err)
	case errors.Is(err, snapshot.ErrInvalid):
		return fmt.Errorf("%w: %w", hostapi.ErrInvalid, err)
	}
	return wrapNoSpace(err)
}
