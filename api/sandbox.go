package api

import "time"

// Sandbox is what a user holds: a machine of their own, by its id.
type Sandbox struct {
	ID           SandboxID         `json:"id"`
	Template     string            `json:"template"`
	CPU          int               `json:"cpu" doc:"Virtual processors."`
	MemoryMB     int               `json:"memory_mb" doc:"Memory in MiB."`
	DiskMB       int               `json:"disk_mb" doc:"Size of the root disk in MiB."`
	DataDisks    []DataDisk        `json:"data_disks,omitempty" doc:"Disks beside the root disk, which it has from its template."`
	Status       Status            `json:"status" enum:"creating,running,paused,hibernating,hibernated,waking,stopping,deleted,failed"`
	GuestIP      string            `json:"guest_ip" doc:"Reachable from the host the sandbox runs on."`
	HostTap      string            `json:"host_tap"`
	MAC          string            `json:"mac"`
	VsockCID     uint32            `json:"vsock_cid" doc:"Always 0: the guest channel is not reachable by address."`
	Metadata     map[string]string `json:"metadata" doc:"What the creator put there. Values under keys that begin with \"secret.\" are not shown."`
	FromSnapshot SnapshotID        `json:"from_snapshot,omitempty"`
	BootMS       int64             `json:"boot_ms" doc:"Milliseconds of the last start until the guest confirmed."`
	BootMode     string            `json:"boot_mode" enum:"cold,snapshot,fork,wake,"`
	CreatedAt    time.Time         `json:"created_at"`

	Workspace     Workspace  `json:"workspace"`
	Persistent    bool       `json:"persistent" doc:"Never reaped for being idle; survives restarts of the host."`
	TTLSeconds    int64      `json:"ttl_seconds" doc:"Deleted after so long without use; 0 is never."`
	IdleSeconds   int64      `json:"idle_seconds" doc:"How long it has not been used."`
	ExpiresAt     *time.Time `json:"expires_at,omitempty" doc:"Ended then, used or not, as on_timeout says."`
	OnTimeout     OnTimeout  `json:"on_timeout,omitempty" enum:"delete,hibernate" doc:"What happens at expires_at, or at one that is set later."`
	ParentID      SandboxID  `json:"parent_id,omitempty" doc:"The sandbox it was forked from."`
	TreeID        TreeID     `json:"tree_id,omitempty" doc:"The fork tree it was made in."`
	User          string     `json:"user,omitempty" doc:"Default user of commands and files."`
	Workdir       string     `json:"workdir,omitempty" doc:"Default working directory of commands."`
	Egress        bool       `json:"egress" doc:"Whether any connection may leave the sandbox."`
	Network       *Network   `json:"network,omitempty" doc:"What it may reach, and who reaches it; absent is everything and everybody."`
	Limits        *Limits    `json:"limits,omitempty" doc:"What it may move each second; what is absent is the server's."`
	Isolation     string     `json:"isolation,omitempty" doc:"What holds the sandbox, such as microvm."`
	Accelerator   string     `json:"accelerator,omitempty" doc:"kvm or tcg."`
	Generation    uint64     `json:"generation" doc:"Grows with every restore of the machine."`
	PauseMS       int64      `json:"pause_ms,omitempty" doc:"Milliseconds it stood still for the last fork or snapshot."`
	FailureReason string     `json:"failure_reason,omitempty"`
	EndedAt       *time.Time `json:"ended_at,omitempty"`
	EndReason     string     `json:"end_reason,omitempty" doc:"Why it ended, for a sandbox that is deleted."`
	Phases        []Phase    `json:"phases,omitempty" doc:"Where the time of the last operation went."`
}

// Phase is a named part of an operation.
type Phase struct {
	Name   string  `json:"name"`
	TookMS float64 `json:"took_ms"`
}

// StatusResponse is what hibernate, wake and their aliases answer.
type StatusResponse struct {
	Status Status `json:"status"`
}

// SandboxFilter selects from a list; zero fields select everything.
type SandboxFilter struct {
	Statuses []Status          // any of them
	Template string            // made from it
	Metadata map[string]string // all of them, equal
	Since    time.Time         // created then or later; zero: whenever
	Oldest   bool              // oldest first; else newest first
	Limit    int               // 0: no bound
	Cursor   string            // opaque, from the page before, in the same order
}

// Usage is what GET /v1/sandboxes/{id}/metrics answers: what the sandbox takes on its host, and what its
// inside says about itself.
type Usage struct {
	PID            int         `json:"pid"`
	UptimeSeconds  float64     `json:"uptime_seconds"`
	HostCPUPercent float64     `json:"host_cpu_percent" doc:"Of one processor, since it was looked at last."`
	HostCPUSeconds float64     `json:"host_cpu_seconds"`
	HostRSSBytes   int64       `json:"host_rss_bytes"`
	HostPSSBytes   int64       `json:"host_pss_bytes"`
	HostVSZBytes   int64       `json:"host_vsz_bytes"`
	Threads        int         `json:"threads"`
	Guest          *GuestStats `json:"guest,omitempty" doc:"The guest's word; absent when it does not run."`
}

// HostUsage is what GET /v1/sandboxes/{id}/util answers: what the machine of a sandbox has taken of its host since it
// started or woke; zeros if it rests.
type HostUsage struct {
	SandboxID          SandboxID `json:"sandbox_id"`
	UptimeSeconds      float64   `json:"uptime_seconds"`
	ActiveCPUSeconds   float64   `json:"active_cpu_seconds" doc:"Time of the host's processors."`
	ResidentGiBSeconds float64   `json:"resident_gib_seconds" doc:"Memory of the host over time, as exact as measurements are near to each other: before the first one it is taken as what that says."`
}

// Series is what GET /v1/metrics/sandbox/{id} answers: what was measured of a sandbox lately. It is measured when
// somebody asks, and every few seconds for some minutes after.
type Series struct {
	SandboxID   SandboxID     `json:"sandbox_id"`
	From        time.Time     `json:"from"`
	To          time.Time     `json:"to"`
	Step        string        `json:"step"`
	StepSeconds int           `json:"step_seconds"`
	Points      []SeriesPoint `json:"points" doc:"Oldest first; steps in which nothing was measured are left out."`
	Empty       bool          `json:"empty" doc:"There are no points."`
}

// SeriesPoint is what was measured in one step: the mean of what was used of processors, and what all else was last.
type SeriesPoint struct {
	TS            time.Time `json:"ts" doc:"When the step began."`
	CPUPct        float64   `json:"cpu_pct" doc:"Of all processors of the guest together."`
	MemBytes      int64     `json:"mem_bytes" doc:"What the guest uses."`
	DiskUsedBytes int64     `json:"disk_used_bytes"`
	NetRxBytes    int64     `json:"net_rx_bytes" doc:"Received since the guest booted."`
	NetTxBytes    int64     `json:"net_tx_bytes" doc:"Sent since the guest booted."`
}

// GuestStats is what a guest says of itself.
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
