package api

import "time"

// ForkRequest forks a running sandbox, memory and disk: POST /v1/sandboxes/{id}/fork.
//
// The body may be empty. The parent keeps running. Mode is accepted from old clients; both values mean the same.
type ForkRequest struct {
	Count      int               `json:"count,omitempty" doc:"1 if absent."`
	Metadata   map[string]string `json:"metadata,omitempty" doc:"Added to the parent's."`
	Env        map[string]string `json:"env,omitempty" doc:"Added to the parent's."`
	Persistent *bool             `json:"persistent,omitempty" doc:"As the parent if absent."`
	TTLSeconds *int64            `json:"ttl_seconds,omitempty" doc:"As the parent if absent."`
	Mode       string            `json:"mode,omitempty" enum:"cold,warm," doc:"Accepted; a fork is always live."`
}

// Validate checks the request and sets the default count.
func (r *ForkRequest) Validate() error {
	if r.Count == 0 {
		r.Count = 1
	}
	if r.Mode != "" && r.Mode != "cold" && r.Mode != "warm" {
		return invalid("mode", "%s is not cold or warm: leave it out, a fork is always live", quote(r.Mode))
	}
	return validateFork(r.Count, r.Metadata, r.Env, r.TTLSeconds)
}

// ForkResponse is the response of fork.
type ForkResponse struct {
	ParentID   SandboxID   `json:"parent_id"`
	SnapshotID SnapshotID  `json:"snapshot_id" doc:"Empty: a fork keeps no snapshot."`
	Children   []Sandbox   `json:"children"`
	Sandbox    *Sandbox    `json:"sandbox,omitempty" doc:"The first child."`
	Errors     []ForkError `json:"errors,omitempty"`
	At         time.Time   `json:"at"`
	PauseMS    int64       `json:"pause_ms" doc:"Milliseconds for which the parent was paused."`
}

// ForkError is why a child could not be made.
type ForkError struct {
	Index int    `json:"index"`
	Err   string `json:"err"`
	Code  Code   `json:"code"`
}

// ForkTreeRequest makes several children of the same moment: POST /v1/sandboxes/{id}/fork-tree.
type ForkTreeRequest struct {
	Count      int               `json:"count,omitempty" doc:"2 if absent."`
	Metadata   map[string]string `json:"metadata,omitempty" doc:"Added to the parent's."`
	Env        map[string]string `json:"env,omitempty" doc:"Added to the parent's."`
	Persistent *bool             `json:"persistent,omitempty" doc:"As the parent if absent."`
	TTLSeconds *int64            `json:"ttl_seconds,omitempty" doc:"As the parent if absent."`
}

// Validate checks the request and sets the default count.
func (r *ForkTreeRequest) Validate() error {
	if r.Count == 0 {
		r.Count = 2
	}
	return validateFork(r.Count, r.Metadata, r.Env, r.TTLSeconds)
}

func validateFork(count int, metadata, env map[string]string, ttl *int64) error {
	if count < 1 || count > MaxFork {
		return invalid("count", "%d is out of range: use 1 to %d", count, MaxFork)
	}
	if ttl != nil && (*ttl < 0 || *ttl > MaxTTLSeconds) {
		return invalid("ttl_seconds", "%d is out of range: use 0 for never, or up to %d", *ttl, MaxTTLSeconds)
	}
	if err := validateEnv("env", env); err != nil {
		return err
	}
	return validateMetadata(metadata)
}

// ForkTree is the response of fork-tree.
//
// Every child has the tree's id in metadata.fork_tree_id and tree_id. If there are fewer children than requested,
// Errors says why.
type ForkTree struct {
	TreeID     TreeID      `json:"tree_id"`
	ParentID   SandboxID   `json:"parent_id"`
	SnapshotID SnapshotID  `json:"snapshot_id" doc:"Empty: a fork keeps no snapshot."`
	Children   []Sandbox   `json:"children"`
	Errors     []ForkError `json:"errors,omitempty"`
	At         time.Time   `json:"at"`
	PauseMS    int64       `json:"pause_ms" doc:"Milliseconds for which the parent was paused."`
}

// PromoteRequest makes a child the winner of its tree: POST /v1/sandboxes/{id}/promote.
type PromoteRequest struct {
	CleanupSiblings bool   `json:"cleanup_siblings,omitempty" doc:"Delete the other children of the tree."`
	TreeID          TreeID `json:"tree_id,omitempty" doc:"The winner's own tree if absent."`
}

// Validate checks the request on its own.
func (r *PromoteRequest) Validate() error {
	if len(r.TreeID) > 64 {
		return invalid("tree_id", "%s is not a tree id: leave it out", quote(string(r.TreeID)))
	}
	return nil
}

// Promotion is the response of promote.
type Promotion struct {
	Winner   SandboxID            `json:"winner"`
	TreeID   TreeID               `json:"tree_id"`
	Deleted  []SandboxID          `json:"deleted"`
	Failures map[SandboxID]string `json:"failures"`
}
