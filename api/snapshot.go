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
