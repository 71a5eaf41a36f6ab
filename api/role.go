package api

import "slices"

// Role is what the holder of a key may do in its workspace.
type Role string

// The roles, from the most rights to the fewest.
const (
	RoleOwner     Role = "owner"     // everything in the workspace, the keys of its owners included
	RoleAdmin     Role = "admin"     // as owner, except for the keys of owners
	RoleDeveloper Role = "developer" // sandboxes, snapshots and templates; no keys and no audit log
	RoleViewer    Role = "viewer"    // reads what exists
)

// Roles returns all roles, from the most rights to the fewest.
func Roles() []Role { return []Role{RoleOwner, RoleAdmin, RoleDeveloper, RoleViewer} }

// Scope is a group of operations. A key may have fewer scopes than its role allows.
type Scope string

// The scopes.
const (
	ScopeRead      Scope = "read"      // read what exists: lists, states, logs, events, measurements
	ScopeExec      Scope = "exec"      // run programs: commands, terminals, code contexts
	ScopeFiles     Scope = "files"     // read and write files of sandboxes
	ScopeLifecycle Scope = "lifecycle" // create, change and delete sandboxes and snapshots
	ScopePorts     Scope = "ports"     // reach ports of sandboxes, and make preview addresses
	ScopeBuild     Scope = "build"     // build, tag, bake and delete templates
	ScopeKeys      Scope = "keys"      // manage the keys of the workspace
	ScopeAudit     Scope = "audit"     // read the audit log of the workspace
	ScopeMetrics   Scope = "metrics"   // read the measurements of the node; operators only
	ScopeNode      Scope = "node"      // operate the node; operators only
)

// Scopes returns all scopes.
func Scopes() []Scope {
	return []Scope{
		ScopeRead, ScopeExec, ScopeFiles, ScopeLifecycle, ScopePorts, ScopeBuild, ScopeKeys, ScopeAudit,
		ScopeMetrics, ScopeNode,
	}
}

// Valid reports whether s is a scope.
func (s Scope) Valid() bool { return slices.Contains(Scopes(), s) }

// Valid reports whether r is a role.
func (r Role) Valid() bool { return slices.Contains(Roles(), r) }

// Scopes returns what a key of the role may do at most. An operator's key has those of the node in addition.
func (r Role) Scopes(operator bool) []Scope {
	var all []Scope
	switch r {
	case RoleOwner, RoleAdmin:
		all = []Scope{
			ScopeRead, ScopeExec, ScopeFiles, ScopeLifecycle, ScopePorts, ScopeBuild, ScopeKeys, ScopeAudit,
		}
	case RoleDeveloper:
		all = []Scope{ScopeRead, ScopeExec, ScopeFiles, ScopeLifecycle, ScopePorts, ScopeBuild}
	case RoleViewer:
		all = []Scope{ScopeRead}
	}
	if operator {
		all = append(all, ScopeMetrics, ScopeNode)
	}
	return all
}

// Outranks reports whether r has more rights than other.
func (r Role) Outranks(other Role) bool {
	return slices.Index(Roles(), r) < slices.Index(Roles(), other)
}
