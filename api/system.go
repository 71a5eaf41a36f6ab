package api

import "time"

// Health is the response of GET /healthz and /readyz.
type Health struct {
	Status  string            `json:"status" enum:"ok,degraded"`
	Checks  map[string]string `json:"checks,omitempty" doc:"By name: ok, or what is wrong."`
	Version string            `json:"version,omitempty"`
}

// Version is the response of GET /version.
type Version struct {
	Version   string `json:"version"`
	Commit    string `json:"commit,omitempty"`
	GoVersion string `json:"go_version"`
	API       string `json:"api"`
	Driver    string `json:"driver,omitempty" doc:"The monitor that runs the machines."`
	Isolation string `json:"isolation,omitempty"`
	Accel     string `json:"accelerator,omitempty"`
}

// Capacity is the response of GET /v1/capacity.
type Capacity struct {
	Driver        string `json:"driver"`
	DriverVersion string `json:"driver_version"`
	Accelerator   string `json:"accelerator"`
	Isolation     string `json:"isolation"`
	CPUs          int    `json:"cpus"`
	MemoryMB      int    `json:"memory_mb"`
	MemoryFreeMB  int    `json:"memory_free_mb" doc:"Memory that can still be promised; at most what is available."`
	// MemoryAvailableMB and the fields below it are of the whole host.
	MemoryAvailableMB int     `json:"memory_available_mb" doc:"Memory that can be used now without swapping."`
	MemoryPromisedMB  int     `json:"memory_promised_mb" doc:"Memory promised to sandboxes that run."`
	MemoryPressure    float64 `json:"memory_pressure" doc:"Percent of the last 10 s of waiting for memory."`
	MemoryShort       bool    `json:"memory_short" doc:"Nothing is started until sandboxes need less memory."`
	DiskMB            int     `json:"disk_mb"`
	DiskFreeMB        int     `json:"disk_free_mb"`
	DiskReserveMB     int     `json:"disk_reserve_mb" doc:"Below this much free disk nothing new is made."`
	DiskShort         bool    `json:"disk_short" doc:"Less than disk_reserve_mb is free."`
	Sandboxes         int     `json:"sandboxes"`
	Running           int     `json:"running"`
	// WaitingForSpace counts sandboxes that are paused with the reason no_space.
	WaitingForSpace int `json:"waiting_for_space"`
	// Unresponsive counts sandboxes that run and whose guests do not reply.
	Unresponsive int `json:"unresponsive"`
}

// BootStats is the response of GET /stats/boot: how fast machines of sandboxes started lately.
type BootStats struct {
	Since time.Time  `json:"since" doc:"Start of the count: the start of the server."`
	Boots []BootMode `json:"boots" doc:"By the way of starting."`
}

// BootMode is how fast machines started in one way. Percentiles are of the last 1000.
type BootMode struct {
	BootMode string  `json:"boot_mode" enum:"cold,snapshot,fork,wake"`
	Count    int64   `json:"count"`
	P50MS    float64 `json:"p50_ms"`
	P95MS    float64 `json:"p95_ms"`
	P99MS    float64 `json:"p99_ms"`
	MaxMS    float64 `json:"max_ms"`
	LastMS   float64 `json:"last_ms"`
}

// Overview is the response of GET /v1/metrics/overview: what the workspace of the key has.
type Overview struct {
	Workspace     Workspace      `json:"workspace"`
	Sandboxes     int            `json:"sandboxes"`
	ByStatus      map[Status]int `json:"by_status" doc:"Number of sandboxes by state; states without any are left out."`
	CPUs          int            `json:"cpus" doc:"Virtual processors of running and paused sandboxes."`
	MemoryMB      int            `json:"memory_mb" doc:"Memory of running and paused sandboxes, in MiB."`
	DiskMB        int            `json:"disk_mb" doc:"Root disks of all sandboxes, in MiB."`
	Snapshots     int            `json:"snapshots"`
	SnapshotBytes int64          `json:"snapshot_bytes"`
}

// Event is something that happened to a sandbox: GET /v1/sandboxes/{id}/events.
//
// Time and Timestamp are the same, and so are Payload and Data: clients know both names.
type Event struct {
	Time      time.Time      `json:"time"`
	Timestamp time.Time      `json:"timestamp"`
	SandboxID SandboxID      `json:"sandbox_id"`
	Type      string         `json:"type"`
	Payload   map[string]any `json:"payload"`
	Data      map[string]any `json:"data"`
}

// NewEvent returns an event that happened at t.
func NewEvent(id SandboxID, kind string, t time.Time, payload map[string]any) Event {
	if payload == nil {
		payload = map[string]any{}
	}
	return Event{Time: t, Timestamp: t, SandboxID: id, Type: kind, Payload: payload, Data: payload}
}

// The types of events of a sandbox.
const (
	EventCreated        = "sandbox.created"
	EventRunning        = "sandbox.running"
	EventPaused         = "sandbox.paused"
	EventResumed        = "sandbox.resumed"
	EventHibernated     = "sandbox.hibernated"
	EventWoken          = "sandbox.woken"
	EventForked         = "sandbox.forked"
	EventSnapshot       = "sandbox.snapshot"
	EventNetwork        = "sandbox.network" // its network policy was changed
	EventVolumeAttached = "sandbox.volume_attached"
	EventVolumeDetached = "sandbox.volume_detached"
	EventDeleted        = "sandbox.deleted"
	EventFailed         = "sandbox.failed"
	EventForkTree       = "fork_tree.completed"
	EventPromoted       = "fork_tree.promoted"
	EventUnresponsive   = "sandbox.unresponsive" // its guest does not reply
	EventResponsive     = "sandbox.responsive"   // its guest replies again
	EventMachineDied    = "vm.died"
	EventMachineAdopted = "vm.adopted"
)

// EventList is the response of GET /v1/sandboxes/{id}/events.
type EventList struct {
	Events []Event `json:"events"`
}

// AuditEntry is one call that changed something, opened a shell or a port, or was refused: GET /v1/audit.
type AuditEntry struct {
	ID        string    `json:"id"`
	Time      time.Time `json:"time"`
	Workspace Workspace `json:"workspace,omitempty" doc:"Empty for a caller without a valid key."`
	Key       string    `json:"key" doc:"Prefix of the caller's key, or the kind of another credential."`
	Action    string    `json:"action" doc:"Method and path pattern."`
	Target    string    `json:"target,omitempty" doc:"Id of the resource."`
	Outcome   string    `json:"outcome" doc:"ok, or the code of the error."`
	Remote    string    `json:"remote" doc:"Address of the caller."`
	RequestID RequestID `json:"request_id"`
	TookMS    float64   `json:"took_ms"`
}

// AuditList is the response of GET /v1/audit, newest first.
type AuditList struct {
	Entries []AuditEntry `json:"entries"`
	Since   *time.Time   `json:"since,omitempty" doc:"As requested."`
}
