package auth

import "github.com/pandastack/pandastack/api"

// Principal is who makes a call: a key of a workspace. Services trust it; only Keys.Authenticate and the
// assembly of a program make one.
type Principal struct {
	Workspace api.Workspace // owns what is made and sees only what it owns
	KeyPrefix string        // of the key that was shown, for the audit log; "" for the program itself
	Admin     bool          // may manage keys
}

// Workspace ids that every store has.
const (
	// DefaultWorkspace owns the first key.
	DefaultWorkspace api.Workspace = "default"
)
