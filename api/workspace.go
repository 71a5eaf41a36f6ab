package api

import (
	"strings"
	"time"
)

// WorkspaceInfo describes a workspace.
type WorkspaceInfo struct {
	ID          Workspace  `json:"id"`
	Name        string     `json:"name"`
	Status      string     `json:"status" doc:"active or suspended."`
	CreatedAt   time.Time  `json:"created_at"`
	SuspendedAt *time.Time `json:"suspended_at,omitempty"`
	Quotas      []Quota    `json:"quotas,omitempty" doc:"What it uses and may have; not in lists."`
}

// The states of a workspace.
const (
	WorkspaceActive  = "active"
	WorkspaceStopped = "suspended"
)

// Quota is what a workspace uses and may have of one kind.
type Quota struct {
	Kind      string `json:"kind"`
	Unit      string `json:"unit,omitempty" doc:"Of used and allowed; absent for a number of things."`
	Summary   string `json:"summary" doc:"What is counted."`
	Used      *int64 `json:"used,omitempty" doc:"Absent for a limit of each sandbox, which is not used up."`
	Allowed   int64  `json:"allowed" doc:"0: unlimited."`
	IsDefault bool   `json:"is_default" doc:"The workspace has no quota of its own for this kind."`
}

// WorkspaceList lists workspaces by id.
type WorkspaceList struct {
	Items []WorkspaceInfo `json:"items"`
}

// WorkspaceRequest asks for a new workspace.
type WorkspaceRequest struct {
	ID     Workspace         `json:"id" doc:"1 to 63 of a-z, 0-9 and -, beginning with a letter or digit."`
	Name   string            `json:"name,omitempty" doc:"For people; the id if absent."`
	Quotas map[string]*int64 `json:"quotas,omitempty" doc:"Its own quotas by kind; 0 is unlimited."`
}

// Validate checks the id and the name.
func (r *WorkspaceRequest) Validate() error {
	if !ValidWorkspace(r.ID) {
		return invalid("id", "%.80q is not an id of a workspace: use 1 to 63 of a-z, 0-9 and -, not - first",
			string(r.ID))
	}
	if len(r.Name) > 128 || strings.ContainsAny(r.Name, "\x00\n\r") {
		return invalid("name", "use one line of at most 128 bytes")
	}
	return nil
}

// ValidWorkspace reports whether id can be the id of a new workspace.
func ValidWorkspace(id Workspace) bool {
	if id == "" || len(id) > 63 || id[0] == '-' {
		return false
	}
	return strings.Trim(string(id), "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// WorkspaceCreated is a new workspace with its first key.
type WorkspaceCreated struct {
	WorkspaceInfo
	Token string `json:"token" doc:"The first key of the workspace, which is shown only once."`
}

// QuotaPatch changes quotas of a workspace.
type QuotaPatch struct {
	Quotas map[string]*int64 `json:"quotas" doc:"By kind: a number, 0 for unlimited, or null for the default."`
}
