package fcapi

// BootSource is what a guest starts from. Paths are the monitor's.
type BootSource struct {
	Kernel string `json:"kernel_image_path"`
	Initrd string `json:"initrd_path,omitempty"`
	Args   string `json:"boot_args,omitempty"`
}

// The sizes of the pages that guest memory is made of.
const (
	PagesSmall    = "None"
	PagesHuge     = "2M"
	PagesMerged   = "Transparent" // since 1.17
	PagesSnapshot = "Snapshot"    // on load, since 1.17: as the snapshot says
)

// MachineConfig is the shape of a machine.
type MachineConfig struct {
	VCPUs      int    `json:"vcpu_count"`
	MemoryMiB  int    `json:"mem_size_mib"`
	SMT        bool   `json:"smt"`
	TrackDirty bool   `json:"track_dirty_pages"`
	HugePages  string `json:"huge_pages,omitempty"`
}

// How a drive treats the guest's flushes.
const (
	CacheUnsafe    = "Unsafe"    // they are not heard
	CacheWriteback = "Writeback" // they wait for the medium
)

// Drive is a disk.
type Drive struct {
	ID       string       `json:"drive_id"`
	Path     string       `json:"path_on_host"`
	Root     bool         `json:"is_root_device"`
	ReadOnly bool         `json:"is_read_only"`
	Cache    string       `json:"cache_type,omitempty"`
	Engine   string       `json:"io_engine,omitempty"`
	Limiter  *RateLimiter `json:"rate_limiter,omitempty"`
}

// DrivePatch changes a disk while its guest lives. What is not set stays.
type DrivePatch struct {
	ID      string       `json:"drive_id"`
	Path    string       `json:"path_on_host,omitempty"`
	Limiter *RateLimiter `json:"rate_limiter,omitempty"`
}

// TokenBucket lets Size through in RefillMillis; a bucket of size 0 lets everything through.
type TokenBucket struct {
	Size         int64 `json:"size"`
	RefillMillis int64 `json:"refill_time"`
}

// RateLimiter bounds bytes and operations.
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

// NetworkPatch changes the limits of a network card. What is not set stays.
type NetworkPatch struct {
	ID  string       `json:"iface_id"`
	In  *RateLimiter `json:"rx_rate_limiter,omitempty"`
	Out *RateLimiter `json:"tx_rate_limiter,omitempty"`
}

// Vsock is the guest's socket to the host.
type Vsock struct {
	CID  uint32 `json:"guest_cid"` // 3 or more
	Path string `json:"uds_path"`
}

// Entropy is a source of randomness.
type Entropy struct {
	Limiter *RateLimiter `json:"rate_limiter,omitempty"`
}

// Balloon takes memory from a guest and gives it back.
type Balloon struct {
	MiB          int  `json:"amount_mib"`
	DeflateOnOOM bool `json:"deflate_on_oom"`
	StatsSeconds int  `json:"stats_polling_interval_s,omitempty"`
	Reporting    bool `json:"free_page_reporting,omitempty"` // since 1.14
}

// BalloonSize is how much a balloon takes.
type BalloonSize struct {
	MiB int `json:"amount_mib"`
}

// HotplugMemory is memory that can be plugged in while the guest lives. Since 1.14.
type HotplugMemory struct {
	TotalMiB int `json:"total_size_mib"`
	SlotMiB  int `json:"slot_size_mib,omitempty"`
	BlockMiB int `json:"block_size_mib,omitempty"`
}

// HotplugSize is how much of it shall be there.
type HotplugSize struct {
	RequestedMiB int `json:"requested_size_mib"`
}

// HotplugStatus is how much of it is there.
type HotplugStatus struct {
	TotalMiB     int `json:"total_size_mib"`
	SlotMiB      int `json:"slot_size_mib"`
	BlockMiB     int `json:"block_size_mib"`
	PluggedMiB   int `json:"plugged_size_mib"`
	RequestedMiB int `json:"requested_size_mib"`
}

// MetadataTokens is the version of the metadata service that answers those alone who fetched a token.
const MetadataTokens = "V2"

// MetadataService answers the guest at an address that never leaves the monitor.
type MetadataService struct {
	Version  string   `json:"version"`
	Networks []string `json:"network_interfaces"` // ids of cards
}

// The kinds of snapshots.
const (
	SnapshotFull = "Full"
	SnapshotDiff = "Diff" // into a file of the right size, only what changed is written
)

// SnapshotCreate writes a paused machine into two files.
type SnapshotCreate struct {
	Type   string `json:"snapshot_type"`
	State  string `json:"snapshot_path"`
	Memory string `json:"mem_file_path"`
}

// The kinds of memory a machine can be loaded over.
const (
	BackendFile = "File"
	BackendUffd = "Uffd"
)

// MemoryBackend is where the memory of a loaded machine comes from.
type MemoryBackend struct {
	Type string `json:"backend_type"`
	Path string `json:"backend_path"`
}

// SnapshotLoad makes a machine of a snapshot.
type SnapshotLoad struct {
	State      string            `json:"snapshot_path"`
	Memory     MemoryBackend     `json:"mem_backend"`
	TrackDirty bool              `json:"track_dirty_pages"` // since 1.13
	Resume     bool              `json:"resume_vm"`
	Networks   []NetworkOverride `json:"network_overrides,omitempty"` // since 1.12
	HugePages  string            `json:"huge_pages,omitempty"`        // since 1.17
}

// NetworkOverride puts a network card on another tap than its snapshot says.
type NetworkOverride struct {
	ID     string `json:"iface_id"`
	Device string `json:"host_dev_name"`
}

// The states of an instance.
const (
	StateNone    = "Not started"
	StateRunning = "Running"
	StatePaused  = "Paused"
)

// Instance is what a monitor says of itself.
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
