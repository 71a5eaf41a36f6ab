package backup

import (
	"errors"

	"github.com/pandastack/pandastack/internal/control/database/restore"
	"github.com/pandastack/pandastack/internal/control/database/wal"
)

// Target is a moment to restore.
type Target = restore.Target

// Position is a position of the log.
type Position = wal.LSN

// ParsePosition parses a position as PostgreSQL writes it.
func ParsePosition(text string) (Position, error) { return wal.ParseLSN(text) }

// Unrestorable reports whether an error is that of a target that there is not.
func Unrestorable(err error) bool {
	for _, one := range []error{
		restore.ErrNoBase, restore.ErrTooEarly, restore.ErrTooLate, restore.ErrUnknown, restore.ErrHole,
		restore.ErrVariant,
	} {
		if errors.Is(err, one) {
			return true
		}
	}
	return false
}
