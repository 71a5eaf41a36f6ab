package api

import "time"

// Snapshot is a sandbox at rest: memory, device state and disk of one moment.
type Snapshot struct {
	ID        SnapshotID        `json:"id"`
	SandboxID SandboxID         `json:"sandbox_id"`
	Workspace Workspace         `json:"workspace"`
	Template  string            `json:"template"`
	Name      string            `json:"name,omitempty"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
	SizeBytes int64             `json:"size_bytes" doc:"What it takes on its own."`
	CPU       int               `json:"cpu"`
	MemoryMB  int               `json:"memory_mb"`
	DiskMB    int               `json:"disk_mb"`
	PauseMS   int64             `json:"pause_ms,omitempty" doc:"Milliseconds the sandbox stood still for it."`
	MemPath   string            `json:"mem_path" doc:"Always empty: paths of the host are not shown."`
	StatePath string            `json:"state_path" doc:"Always empty: paths of the host are not shown."`
}

// SnapshotRequest takes a snapshot: POST /v1/sandboxes/{id}/snapshots. The body may be empty.
type SnapshotRequest struct {
	Name     string            `json:"name,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// Validate checks the request by itself.
func (r *SnapshotRequest) Validate() error {
	if r.Name != "" && !ValidTemplateName(r.Name) {
		return invalid("name", "%s is not a name: use 1 to 64 of a-z A-Z 0-9 . _ -", quote(r.Name))
	}
	return validateMetadata(r.Metadata)
}

// SnapshotFilter selects from a list; zero fields select everything.
type SnapshotFilter struct {
	SandboxID SandboxID
	Limit     int
	Cursor    string
}

// SnapshotDeleted is what DELETE /v1/snapshots/{id} answers.
type SnapshotDeleted struct {
	Deleted SnapshotID `json:"deleted"`
}

// TransferResult tells what moving a snapshot to or from the object store took: POST /v1/snapshots/{id}/push
// and /pull.
type TransferResult struct {
	Snapshot      Snapshot `json:"snapshot"`
	NewBytes      int64    `json:"new_bytes" doc:"Content that the object store did not have, before compression."`
	UploadedBytes int64    `json:"uploaded_bytes" doc:"Sent to the object store; 0 if all was there."`
	FetchedBytes  int64    `json:"fetched_bytes" doc:"Read from the object store; 0 if the snapshot was here."`
	StoredBytes   int64    `json:"stored_bytes,omitempty" doc:"What it takes in the object store, parts that others share included."`
	TookMS        int64    `json:"took_ms"`
}

// PullRequest brings a snapshot from the object store: POST /v1/snapshots/{id}/pull. The body may be empty.
type PullRequest struct {
	Stream bool `json:"stream,omitempty" doc:"Answer as soon as sandboxes can be made of it; the content follows."`
}

// Validate checks the request by itself.
func (r *PullRequest) Validate() error { return nil }
