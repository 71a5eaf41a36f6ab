package api

import "time"

// Snapshot is the memory, device state and disk of a sandbox at one moment.
type Snapshot struct {
	ID        SnapshotID        `json:"id"`
	SandboxID SandboxID         `json:"sandbox_id"`
	Workspace Workspace         `json:"workspace"`
	Template  string            `json:"template"`
	Name      string            `json:"name,omitempty"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
	SizeBytes int64             `json:"size_bytes" doc:"Disk space that deleting it would free."`
	CPU       int               `json:"cpu"`
	MemoryMB  int               `json:"memory_mb"`
	DiskMB    int               `json:"disk_mb"`
	PauseMS   int64             `json:"pause_ms,omitempty" doc:"Milliseconds for which the sandbox was paused."`
	MemPath   string            `json:"mem_path" doc:"Always empty: paths of the host are not shown."`
	StatePath string            `json:"state_path" doc:"Always empty: paths of the host are not shown."`
}

// SnapshotRequest takes a snapshot: POST /v1/sandboxes/{id}/snapshots. The body may be empty.
type SnapshotRequest struct {
	Name     string            `json:"name,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// Validate checks the request on its own.
func (r *SnapshotRequest) Validate() error {
	if r.Name != "" && !ValidTemplateName(r.Name) {
		return invalid("name", "%s is not a name: use 1 to 64 of a-z A-Z 0-9 . _ -", quote(r.Name))
	}
	return validateMetadata(r.Metadata)
}

// SnapshotFilter selects from a list. Zero fields select everything.
type SnapshotFilter struct {
	SandboxID SandboxID
	Name      string
	Limit     int
	Cursor    string
}

// SnapshotDeleted is the response of DELETE /v1/snapshots/{id}.
type SnapshotDeleted struct {
	Deleted SnapshotID `json:"deleted"`
}

// TransferResult is the cost of moving a snapshot to or from the object store.
//
// It is the response of POST /v1/snapshots/{id}/push and /pull.
type TransferResult struct {
	Snapshot      Snapshot `json:"snapshot"`
	NewBytes      int64    `json:"new_bytes" doc:"Content new to the object store, before compression."`
	UploadedBytes int64    `json:"uploaded_bytes" doc:"Sent to the object store; 0 if it had everything."`
	FetchedBytes  int64    `json:"fetched_bytes" doc:"Read from the object store; 0 if the node had everything."`
	StoredBytes   int64    `json:"stored_bytes,omitempty" doc:"Its size in the object store, including shared parts."`
	TookMS        int64    `json:"took_ms"`
}

// PullRequest pulls a snapshot from the object store: POST /v1/snapshots/{id}/pull. The body may be empty.
type PullRequest struct {
	Stream bool `json:"stream,omitempty" doc:"Return as soon as sandboxes can be made of it; the content follows."`
}

// Validate checks the request on its own.
func (r *PullRequest) Validate() error { return nil }
