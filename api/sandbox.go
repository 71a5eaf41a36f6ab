package api

import "time"

// Sandbox is a virtual machine of a user.
type Sandbox struct {
	ID        SandboxID  `json:"id"`
	Template  string     `json:"template"`
	CPU       int        `json:"cpu" doc:"Virtual processors."`
	MemoryMB  int        `json:"memory_mb" doc:"Memory in MiB."`
	DiskMB    int        `json:"disk_mb" doc:"Size of the root disk in MiB."`
	DataDisks []DataDisk `json:"data_disks,omitempty" doc:"Disks beside the root disk, from its template."`

	Volumes []SandboxVolume `json:"volumes,omitempty" doc:"Volumes that are attached to it."`

	Status Status `json:"status" enum:"creating,running,paused,hibernating,hibernated,waking,stopping,deleted,failed"`

	GuestIP      string            `json:"guest_ip" doc:"Reachable from the host the sandbox runs on."`
	HostTap      string            `json:"host_tap"`
	MAC          string            `json:"mac"`
	VsockCID     uint32            `json:"vsock_cid" doc:"Always 0: the guest channel has no address."`
	Metadata     map[string]string `json:"metadata" doc:"Set by the creator; values of keys \"secret.*\" are hidden."`
	FromSnapshot SnapshotID        `json:"from_snapshot,omitempty"`
	BootMS       int64             `json:"boot_ms" doc:"Milliseconds of the last start until the guest confirmed."`
	BootMode     string            `json:"boot_mode" enum:"cold,snapshot,fork,wake,"`
	StatusSince  time.Time         `json:"status_since,omitzero" doc:"When its status became what it is."`
	CreatedAt    time.Time         `json:"created_at"`

	Workspace   Workspace  `json:"workspace"`
	Persistent  bool       `json:"persistent" doc:"Never deleted for being idle; survives restarts of the host."`
	TTLSeconds  int64      `json:"ttl_seconds" doc:"Deleted after this time without use; 0: never."`
	IdleSeconds int64      `json:"idle_seconds" doc:"Time since it was last used."`
	ExpiresAt   *time.Time `json:"expires_at,omitempty" doc:"Ends then, used or not, as on_timeout says."`
	OnTimeout   OnTimeout  `json:"on_timeout,omitempty" enum:"delete,hibernate" doc:"What happens at expires_at."`
	ParentID    SandboxID  `json:"parent_id,omitempty" doc:"The sandbox it was forked from."`
	TreeID      TreeID     `json:"tree_id,omitempty" doc:"The fork tree it was made in."`
	User        string     `json:"user,omitempty" doc:"Default user of commands and files."`
	Workdir     string     `json:"workdir,omitempty" doc:"Default working directory of commands."`
	Egress      bool       `json:"egress" doc:"Whether any connection may leave the sandbox."`

	Network *Network `json:"network,omitempty" doc:"What it may reach, and who may reach it; absent: everything."`

	Limits        *Limits `json:"limits,omitempty" doc:"I/O limits; the server's where absent."`
	Isolation     string  `json:"isolation,omitempty" doc:"Kind of isolation, such as microvm."`
	Accelerator   string  `json:"accelerator,omitempty" doc:"kvm or tcg."`
	Generation    uint64  `json:"generation" doc:"Increases with every restore of the machine."`
	PauseMS       int64   `json:"pause_ms,omitempty" doc:"Milliseconds it was paused for the last fork or snapshot."`
	FailureReason string  `json:"failure_reason,omitempty"`
	PauseReason   string  `json:"pause_reason,omitempty" doc:"no_space: paused until its host has disk space."`
	MemoryDropped bool    `json:"memory_dropped,omitempty" doc:"Hibernated without its memory: a wake boots it."`
	// UnresponsiveSince is set while the sandbox runs and its guest does not answer.
	UnresponsiveSince *time.Time `json:"unresponsive_since,omitempty" doc:"Its guest does not answer since then."`

	EndedAt   *time.Time `json:"ended_at,omitempty"`
	EndReason string     `json:"end_reason,omitempty" doc:"Why it ended, for a sandbox that is deleted."`
	Phases    []Phase    `json:"phases,omitempty" doc:"Phases of the last operation."`
}

// Phase is a named part of an operation.
type Phase struct {
	Name   string  `json:"name"`
	TookMS float64 `json:"took_ms"`
}

// StatusResponse is the response of hibernate, wake and their aliases.
type StatusResponse struct {
	Status Status `json:"status"`
}

// SandboxFilter selects from a list. Zero fields select everything.
type SandboxFilter struct {
	Statuses []Status          // any of them
	Template string            // the template it was made from
	Metadata map[string]string // all of them, equal
	Since    time.Time         // created then or later; zero: at any time
	Oldest   bool              // oldest first; else newest first
	Limit    int               // 0: no bound
	Cursor   string            // opaque, from the page before, in the same order
}

// Usage is the response of GET /v1/sandboxes/{id}/metrics.
//
// It is what the sandbox uses of its host, and what its guest reports about itself.
type Usage struct {
	PID              int         `json:"pid"`
	UptimeSeconds    float64     `json:"uptime_seconds"`
	HostCPUPercent   float64     `json:"host_cpu_percent" doc:"Of one processor, since the last look."`
	HostCPUSeconds   float64     `json:"host_cpu_seconds"`
	HostRSSBytes     int64       `json:"host_rss_bytes"`
	HostPSSBytes     int64       `json:"host_pss_bytes"`
	HostVSZBytes     int64       `json:"host_vsz_bytes"`
	Threads          int         `json:"threads"`
	HostDiskBytes    int64       `json:"host_disk_bytes" doc:"Disk that deleting it frees, as measured lately."`
	HostReadBytes    int64       `json:"host_read_bytes" doc:"From storage, since its machine started."`
	HostWrittenBytes int64       `json:"host_written_bytes" doc:"To storage, since its machine started."`
	Guest            *GuestStats `json:"guest,omitempty" doc:"Reported by the guest; absent when it does not run."`
}

// HostUsage is the response of GET /v1/sandboxes/{id}/util.
//
// It is what the machine of the sandbox has used of its host since it started or woke; zeros if it does not run.
type HostUsage struct {
	SandboxID        SandboxID `json:"sandbox_id"`
	UptimeSeconds    float64   `json:"uptime_seconds"`
	ActiveCPUSeconds float64   `json:"active_cpu_seconds" doc:"Time of the host's processors."`
	// ResidentGiBSeconds is as exact as measurements are close together. The time before the first one counts with
	// what the first one measured.
	ResidentGiBSeconds float64 `json:"resident_gib_seconds" doc:"Host memory over time."`
}

// Series is the response of GET /v1/metrics/sandbox/{id}: recent measurements of a sandbox.
//
// A sandbox is measured when a client asks, and every few seconds for some minutes after.
type Series struct {
	SandboxID   SandboxID     `json:"sandbox_id"`
	From        time.Time     `json:"from"`
	To          time.Time     `json:"to"`
	Step        string        `json:"step"`
	StepSeconds int           `json:"step_seconds"`
	Points      []SeriesPoint `json:"points" doc:"Oldest first; steps without measurements are left out."`
	Empty       bool          `json:"empty" doc:"There are no points."`
}

// SeriesPoint is the measurements of one step.
//
// CPUPct is the mean of the step; the other fields are the last values.
type SeriesPoint struct {
	TS            time.Time `json:"ts" doc:"When the step began."`
	CPUPct        float64   `json:"cpu_pct" doc:"Of all processors of the guest together."`
	MemBytes      int64     `json:"mem_bytes" doc:"What the guest uses."`
	DiskUsedBytes int64     `json:"disk_used_bytes"`
	NetRxBytes    int64     `json:"net_rx_bytes" doc:"Received since the guest booted."`
	NetTxBytes    int64     `json:"net_tx_bytes" doc:"Sent since the guest booted."`
}

// GuestStats is what a guest reports about itself.
type GuestStats struct {
	MemTotalBytes     int64   `json:"mem_total_bytes"`
	MemAvailableBytes int64   `json:"mem_available_bytes"`
	MemCachedBytes    int64   `json:"mem_cached_bytes"`
	DiskTotalBytes    int64   `json:"disk_total_bytes"`
	DiskUsedBytes     int64   `json:"disk_used_bytes"`
	CPUs              int     `json:"cpus"`
	CPUBusySeconds    float64 `json:"cpu_busy_seconds"`
	Load1             float64 `json:"load_1"`
	UptimeSeconds     float64 `json:"uptime_seconds"`
	Processes         int     `json:"processes"`
	NetRxBytes        int64   `json:"net_rx_bytes"`
	NetTxBytes        int64   `json:"net_tx_bytes"`
}
