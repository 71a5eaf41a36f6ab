package fcapi

// BootSource is the kernel to boot. Paths are those of the monitor.
type BootSource struct {
	Kernel string `json:"kernel_image_path"`
	Initrd string `json:"initrd_path,omitempty"`
	Args   string `json:"boot_args,omitempty"`
}

// Page sizes of guest memory.
const (
	PagesSmall    = "None"
	PagesHuge     = "2M"
	PagesMerged   = "Transparent" // transparent huge pages; since 1.17
	PagesSnapshot = "Snapshot"    // on load, since 1.17: as in the snapshot
)

// MachineConfig is the configuration of vCPUs and memory.
type MachineConfig struct {
	VCPUs      int    `json:"vcpu_count"`
	MemoryMiB  int    `json:"mem_size_mib"`
	SMT        bool   `json:"smt"`
	TrackDirty bool   `json:"track_dirty_pages"`
	HugePages  string `json:"huge_pages,omitempty"`
}

// Cache types: how a drive treats flush requests of the guest.
const (
	CacheUnsafe    = "Unsafe"    // ignores flushes
	CacheWriteback = "Writeback" // syncs the file on a flush
)

// Drive is a block device.
type Drive struct {
	ID       string       `json:"drive_id"`
	Path     string       `json:"path_on_host"`
	Root     bool         `json:"is_root_device"`
	ReadOnly bool         `json:"is_read_only"`
	Cache    string       `json:"cache_type,omitempty"`
	Engine   string       `json:"io_engine,omitempty"`
	Limiter  *RateLimiter `json:"rate_limiter,omitempty"`
}

// DrivePatch changes a drive of a running machine. Unset fields are not changed.
type DrivePatch struct {
	ID      string       `json:"drive_id"`
	Path    string       `json:"path_on_host,omitempty"`
	Limiter *RateLimiter `json:"rate_limiter,omitempty"`
}

// TokenBucket allows Size units per RefillMillis. A size of 0 means no limit.
type TokenBucket struct {
	Size         int64 `json:"size"`
	RefillMillis int64 `json:"refill_time"`
}

// RateLimiter limits bytes and operations.
type RateLimiter struct {
	Bandwidth *TokenBucket `json:"bandwidth,omitempty"`
	Ops       *TokenBucket `json:"ops,omitempty"`
}

// NetworkInterface is a network card on a tap.
type NetworkInterface struct {
	ID     string       `json:"iface_id"`
	Device string       `json:"host_dev_name"`
	MAC    string       `json:"guest_mac,omitempty"`
	In     *RateLimiter `json:"rx_rate_limiter,omitempty"`
	Out    *RateLimiter `json:"tx_rate_limiter,omitempty"`
}

// NetworkPatch changes the rate limits of a network interface. Unset fields are not changed.
type NetworkPatch struct {
	ID  string       `json:"iface_id"`
	In  *RateLimiter `json:"rx_rate_limiter,omitempty"`
	Out *RateLimiter `json:"tx_rate_limiter,omitempty"`
}

// Vsock is a vsock device.
type Vsock struct {
	CID  uint32 `json:"guest_cid"` // at least 3
	Path string `json:"uds_path"`
}

// Entropy is an entropy device.
type Entropy struct {
	Limiter *RateLimiter `json:"rate_limiter,omitempty"`
}

// Balloon is a memory balloon.
type Balloon struct {
	MiB          int  `json:"amount_mib"`
	DeflateOnOOM bool `json:"deflate_on_oom"`
	StatsSeconds int  `json:"stats_polling_interval_s,omitempty"`
	Reporting    bool `json:"free_page_reporting,omitempty"` // since 1.14
}

// BalloonSize is the target size of a balloon.
type BalloonSize struct {
	MiB int `json:"amount_mib"`
}

// HotplugMemory is a device for memory hotplug. Since 1.14.
type HotplugMemory struct {
	TotalMiB int `json:"total_size_mib"`
	SlotMiB  int `json:"slot_size_mib,omitempty"`
	BlockMiB int `json:"block_size_mib,omitempty"`
}

// HotplugSize is the requested amount of hotplugged memory.
type HotplugSize struct {
	RequestedMiB int `json:"requested_size_mib"`
}

// HotplugStatus is the state of a memory hotplug device.
type HotplugStatus struct {
	TotalMiB     int `json:"total_size_mib"`
	SlotMiB      int `json:"slot_size_mib"`
	BlockMiB     int `json:"block_size_mib"`
	PluggedMiB   int `json:"plugged_size_mib"`
	RequestedMiB int `json:"requested_size_mib"`
}

// MetadataTokens is version 2 of the metadata service, which requires a session token.
const MetadataTokens = "V2"

// MetadataService configures the metadata service (MMDS), whose traffic never leaves the monitor.
type MetadataService struct {
	Version  string   `json:"version"`
	Networks []string `json:"network_interfaces"` // interface IDs
}

// Snapshot types.
const (
	SnapshotFull = "Full"
	SnapshotDiff = "Diff" // writes only dirty pages, in place if the file exists with the right size
)

// SnapshotCreate is a request to write a snapshot into two files.
type SnapshotCreate struct {
	Type   string `json:"snapshot_type"`
	State  string `json:"snapshot_path"`
	Memory string `json:"mem_file_path"`
}

// Memory backends of a load.
const (
	BackendFile = "File"
	BackendUffd = "Uffd"
)

// MemoryBackend is the source of a restored machine's memory.
type MemoryBackend struct {
	Type string `json:"backend_type"`
	Path string `json:"backend_path"`
}

// SnapshotLoad is a request to restore a snapshot.
type SnapshotLoad struct {
	State      string            `json:"snapshot_path"`
	Memory     MemoryBackend     `json:"mem_backend"`
	TrackDirty bool              `json:"track_dirty_pages"` // since 1.13
	Resume     bool              `json:"resume_vm"`
	Networks   []NetworkOverride `json:"network_overrides,omitempty"` // since 1.12
	HugePages  string            `json:"huge_pages,omitempty"`        // since 1.17
}

// NetworkOverride connects a network interface to another tap than in the snapshot.
type NetworkOverride struct {
	ID     string `json:"iface_id"`
	Device string `json:"host_dev_name"`
}

// Instance states.
const (
	StateNone    = "Not started"
	StateRunning = "Running"
	StatePaused  = "Paused"
)

// Instance is the description of a monitor.
type Instance struct {
	ID      string `json:"id"`
	State   string `json:"state"`
	Version string `json:"vmm_version"`
}

type action struct {
	Type string `json:"action_type"`
}

type stateChange struct {
	State string `json:"state"`
}
