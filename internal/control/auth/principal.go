package auth

import "github.com/pandastack/pandastack/api"

// Principal is an authenticated caller: a key of a workspace. Services trust it; only Keys.Authenticate and the wiring
// of a program make one.
type Principal struct {
	Workspace api.Workspace // owner of all objects that the caller makes and sees
	KeyPrefix string        // prefix of the key, for the audit log; "" for the program itself
	Admin     bool          // the caller may manage keys
}

// Workspaces that every store has.
const (
	// DefaultWorkspace owns the first key.
	DefaultWorkspace api.Workspace = "default"
)
