package auth

import (
	"net/netip"
	"slices"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// Principal is an authenticated caller: a key of a workspace. Services trust it; only Keys.Authenticate and the wiring
// of a program make one.
type Principal struct {
	Workspace api.Workspace // owner of all objects that the caller makes and sees
	KeyPrefix string        // prefix of the key, for the audit log; "" for the program itself
	Role      api.Role      // of the key in its workspace
	Admin     bool          // the role is owner or admin
	Operator  bool          // the caller may operate the node
	Scopes    Scopes        // what the key may do; the ingress checks them
	// Owner is the object of a service that acts, such as a database that uses its sandbox; zero: a user does.
	Owner hostapi.Owner
}

// Workspaces that every store has.
const (
	// DefaultWorkspace owns the first key.
	DefaultWorkspace api.Workspace = "default"
)

// Scopes is a set of scopes.
type Scopes uint32

// NewScopes returns a set. Words that are no scopes are left out.
func NewScopes(list ...api.Scope) Scopes {
	var set Scopes
	for i, s := range api.Scopes() {
		if slices.Contains(list, s) {
			set |= 1 << i
		}
	}
	return set
}

// Has reports whether a scope is in the set.
func (s Scopes) Has(scope api.Scope) bool {
	one := NewScopes(scope)
	return one != 0 && s&one == one
}

// Contains reports whether all scopes of another set are in the set.
func (s Scopes) Contains(other Scopes) bool { return s&other == other }

// List returns the scopes of the set.
func (s Scopes) List() []api.Scope {
	list := []api.Scope{}
	for i, scope := range api.Scopes() {
		if s&(1<<i) != 0 {
			list = append(list, scope)
		}
	}
	return list
}

// isAdmin reports whether a role manages its workspace.
func isAdmin(r api.Role) bool { return r == api.RoleOwner || r == api.RoleAdmin }

// within reports whether every network of inner lies in one of outer. No networks are all networks.
func within(inner, outer []netip.Prefix) bool {
	if len(outer) == 0 {
		return true
	}
	for _, p := range inner {
		if !slices.ContainsFunc(outer, func(o netip.Prefix) bool {
			return o.Bits() <= p.Bits() && o.Contains(p.Addr())
		}) {
			return false
		}
	}
	return len(inner) > 0
}
