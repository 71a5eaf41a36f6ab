// Package config defines every setting of a node and of the command line.
//
// A setting has one path, such as log.level. The path gives all its names: the YAML file nests by it, the flag is
// --log-level and the environment variable is PANDASTACK_LOG_LEVEL. A later source overrides an earlier one: default,
// file, environment, flag. Load reports every unknown key, value of the wrong kind and value out of range at once.
//
// A setting that was renamed keeps its old path in the tag "was". The old names work for one release: Load accepts them
// and returns a warning that names the new one.
//
// This is the only package that reads the environment, which callers pass as text. The functions have no state besides
// the files they read, and may be called from any goroutine.
package config

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Node holds all settings of one node. The tags give names and defaults; settingDocs describes each setting.
type Node struct {
	DataDir    string `yaml:"data_dir" path:"file" default:"/var/lib/pandastack"`
	Listen     string `yaml:"listen" default:"127.0.0.1:7700"`
	PublicURL  string `yaml:"public_url" default:""`
	GuestAgent string `yaml:"guest_agent" path:"file" default:""`

	TLS            TLS            `yaml:"tls"`
	Preview        Preview        `yaml:"preview"`
	TrustedProxies TrustedProxies `yaml:"trusted_proxies"`
	RateLimit      RateLimit      `yaml:"rate_limit"`
	Audit          Audit          `yaml:"audit"`

	Log         Log         `yaml:"log"`
	VMM         VMM         `yaml:"vmm"`
	Capacity    Capacity    `yaml:"capacity"`
	Network     Network     `yaml:"network"`
	Limits      Limits      `yaml:"limits"`
	Sandbox     Sandbox     `yaml:"sandbox"`
	Quota       Quota       `yaml:"quota"`
	Volume      Volume      `yaml:"volume"`
	Databases   Databases   `yaml:"databases"`
	Apps        Apps        `yaml:"apps"`
	Schedules   Schedules   `yaml:"schedules"`
	Functions   Functions   `yaml:"functions"`
	SSH         SSH         `yaml:"ssh"`
	ACME        ACME        `yaml:"acme"`
	ObjectStore ObjectStore `yaml:"object_store"`
	Backup      Backup      `yaml:"backup"`
	Templates   Templates   `yaml:"templates"`
	Build       Build       `yaml:"build"`
	Lifecycle   Lifecycle   `yaml:"lifecycle"`
}

// TLS configures a second address of the API, which serves TLS and HTTP/2.
type TLS struct {
	Listen string `yaml:"listen" default:""`
	Cert   string `yaml:"cert" path:"file" default:""`
	Key    string `yaml:"key" path:"file" default:""`
}

// Preview configures the host names of sandboxes' ports.
type Preview struct {
	Domain string `yaml:"domain" default:""`
}

// TrustedProxies are the proxies in front of the node whose word on a client's address counts.
type TrustedProxies struct {
	Networks string `yaml:"networks" default:""`
	Header   string `yaml:"header" default:"x-forwarded-for"`
}

// RateLimit bounds the requests to the APIs and to ports of sandboxes.
type RateLimit struct {
	Key               int `yaml:"key_per_s" default:"1000"`
	Address           int `yaml:"address_per_s" default:"2000"`
	Port              int `yaml:"port_per_s" default:"5000"`
	PortAddress       int `yaml:"port_address_per_s" default:"5000"`
	FailuresPerMinute int `yaml:"failures_per_min" default:"30"`

	MaxWait time.Duration `yaml:"max_wait" default:"2s"`
}

// Audit bounds the audit log.
type Audit struct {
	Rate       int           `yaml:"entries_per_s" default:"200"`
	Retention  time.Duration `yaml:"retention" default:"2160h"`
	MaxEntries int           `yaml:"max_entries" default:"1000000"`
	FileReads  bool          `yaml:"file_reads" default:"false"`
}

// Log configures what the node writes to standard error.
type Log struct {
	Level  string `yaml:"level" default:"info"`
	Format string `yaml:"format" default:"text"`
}

// VMM configures the programs that run the machines.
type VMM struct {
	Driver           string `yaml:"driver" default:"auto"`
	Accelerator      string `yaml:"accelerator" default:"auto"`
	QEMU             string `yaml:"qemu" path:"program" default:""`
	Firecracker      string `yaml:"firecracker" path:"program" default:""`
	Jailer           string `yaml:"jailer" path:"program" default:""`
	HotplugMemoryMiB int    `yaml:"hotplug_memory_mib" was:"vmm.more_memory_mib" default:"4096"`
	HotplugDisks     int    `yaml:"hotplug_disks" was:"vmm.more_disks" default:"2"`
	HugePages        bool   `yaml:"huge_pages" default:"false"`
	SeccompAllow     string `yaml:"seccomp_allow" default:""`
	SeccompMode      string `yaml:"seccomp_mode" default:"enforce"`
	DisableJail      bool   `yaml:"disable_jail" was:"vmm.unconfined" default:"false"`
}

// AllowedSyscalls returns the names in SeccompAllow.
func (v VMM) AllowedSyscalls() []string {
	return strings.FieldsFunc(v.SeccompAllow, func(r rune) bool { return r == ',' || r == ' ' })
}

// Capacity bounds what the node may promise to sandboxes.
type Capacity struct {
	MemoryMiB        int `yaml:"memory_mib" default:"0"`
	MemoryReserveMiB int `yaml:"memory_reserve_mib" default:"1024"`
	NodeMemoryMiB    int `yaml:"node_memory_mib" default:"0"`
	Streams          int `yaml:"streams" default:"8192"`
	Connections      int `yaml:"connections" default:"16384"`
	MemoryOvercommit int `yaml:"memory_overcommit_percent" default:"150"`
	MemoryPressure   int `yaml:"memory_pressure_percent" default:"20"`
	DiskImageGiB     int `yaml:"disk_image_gib" default:"40"`
	DiskReserveMiB   int `yaml:"disk_reserve_mib" default:"1024"`
	DiskOvercommit   int `yaml:"disk_overcommit" default:"25"`
}

// Network configures the pool of network slots.
type Network struct {
	Prefix         string `yaml:"prefix" default:"panda"`
	CIDR           string `yaml:"cidr" was:"network.range" default:""`
	Slots          int    `yaml:"slots" default:"1024"`
	PrewarmedSlots int    `yaml:"prewarmed_slots" was:"network.ready" default:"8"`
	Allow          string `yaml:"allow" default:""`
	Resolvers      string `yaml:"resolvers" default:""`
	LogEgress      bool   `yaml:"log_egress" default:"false"`
}

// Limits bound the use of the host's devices by each sandbox and by each machine of a build.
type Limits struct {
	DiskMiBPerSecond int `yaml:"disk_mib_per_s" was:"limits.disk_mib" default:"0"`
	DiskIOPS         int `yaml:"disk_iops" was:"limits.disk_ops" default:"0"`
	NetworkIn        int `yaml:"network_in_mbit" default:"0"`
	NetworkOut       int `yaml:"network_out_mbit" default:"0"`
	Connections      int `yaml:"connections" default:"4096"`
	NewConnections   int `yaml:"new_connections_per_s" default:"200"`
	Contexts         int `yaml:"contexts" default:"64"`
}

// Sandbox holds the defaults of a new sandbox.
type Sandbox struct {
	Template           string        `yaml:"template" default:"base"`
	TTL                time.Duration `yaml:"ttl" default:"1h"`
	IdleHibernate      time.Duration `yaml:"idle_hibernate" default:"0s"`
	GuestTimeout       time.Duration `yaml:"guest_timeout" default:"10s"`
	TombstoneRetention time.Duration `yaml:"tombstone_retention" was:"sandbox.keep_endings" default:"72h"`
	WarmMonitors       int           `yaml:"warm_monitors" was:"sandbox.spares" default:"2"`
}

// Volume configures volumes.
type Volume struct {
	SizeMiB          int           `yaml:"size_mib" default:"256"`
	Oversubscription int           `yaml:"oversubscription_percent" default:"300"`
	HelperTemplate   string        `yaml:"helper_template" default:"mini"`
	HelperIdle       time.Duration `yaml:"helper_idle" default:"30s"`
	Helpers          int           `yaml:"helpers" default:"2"`
}

// Databases configures the managed PostgreSQL databases.
type Databases struct {
	Listen        string        `yaml:"listen" default:"127.0.0.1:5432"`
	Port          int           `yaml:"port" default:"0"`
	Guests        bool          `yaml:"guests" default:"true"`
	Suffix        string        `yaml:"suffix" default:""`
	Template      string        `yaml:"template" default:"postgres-16"`
	Idle          time.Duration `yaml:"idle" default:"5m"`
	StorageMaxMiB int           `yaml:"storage_max_mib" default:"32768"`
	BackupDays    int           `yaml:"backup_days" default:"7"`
	BaseBackups   int           `yaml:"base_backups" default:"2"`
	BaseInterval  time.Duration `yaml:"base_interval" default:"24h"`
	SpoolMiB      int           `yaml:"spool_mib" default:"1024"`
	RehearsalHour int           `yaml:"rehearsal_hour" default:"0"`
	ReplicaLag    time.Duration `yaml:"replica_lag" default:"10s"`
}

// Apps configures the apps.
type Apps struct {
	Suffix        string        `yaml:"suffix" default:""`
	Template      string        `yaml:"template" default:"base"`
	Idle          time.Duration `yaml:"idle" default:"5m"`
	Keep          int           `yaml:"keep" default:"5"`
	Deployments   int           `yaml:"deployments" default:"2"`
	BuildTimeout  time.Duration `yaml:"build_timeout" default:"30m"`
	UploadMiB     int           `yaml:"upload_mib" default:"1024"`
	RepositoryMiB int           `yaml:"repository_mib" default:"4096"`
	PushMiB       int           `yaml:"push_mib" default:"512"`
	Mirrors       AppMirrors    `yaml:"mirrors"`

	Hold            time.Duration `yaml:"hold" default:"20s"`
	ResponseTimeout time.Duration `yaml:"response_timeout" default:"5m"`
	BodyMiB         int           `yaml:"body_mib" default:"1024"`
	QuietAgents     string        `yaml:"quiet_agents" default:"bot,crawl,spider,slurp,probe,monitor,uptime,health"`
	Wakes           int           `yaml:"wakes_per_min" default:"30"`
	NetworkWakes    int           `yaml:"network_wakes_per_min" default:"60"`
	HTTPSRedirect   bool          `yaml:"https_redirect" default:"true"`
	HSTS            time.Duration `yaml:"hsts" default:"0s"`

	GitHubAPI  string `yaml:"github_api" default:"https://api.github.com/"`
	GitHubHost string `yaml:"github_host" default:"github.com"`
}

// Quiet returns the texts of QuietAgents in lower case.
func (a Apps) Quiet() []string { return list(strings.ToLower(a.QuietAgents)) }

// ACME configures the authority that issues certificates for the custom domains of apps.
type ACME struct {
	Directory string `yaml:"directory" default:""`
	Names     string `yaml:"names" default:""`
	Email     string `yaml:"email" default:""`
	KeyID     string `yaml:"key_id" default:""`
	MACKey    string `yaml:"mac_key" path:"file" default:""`
	CA        string `yaml:"ca" path:"file" default:""`
}

// Hosts returns the names in Names, in lower case.
func (a ACME) Hosts() []string { return list(strings.ToLower(a.Names)) }

// AppMirrors configures how builds of apps reach what they download.
type AppMirrors struct {
	FromHost     bool   `yaml:"from_host" default:"false"`
	Certificates string `yaml:"certificates" path:"file" default:""`
	NPM          string `yaml:"npm" default:""`
	PyPI         string `yaml:"pypi" default:""`
	Go           string `yaml:"go" default:""`
	Cargo        string `yaml:"cargo" default:""`
	Maven        string `yaml:"maven" default:""`
	Debian       string `yaml:"debian" default:""`
	Proxy        string `yaml:"proxy" default:""`
	NoProxy      string `yaml:"no_proxy" default:""`
	Hosts        string `yaml:"hosts" default:""`
}

// HostLines returns the lines of Hosts.
func (m AppMirrors) HostLines() (lines []string) {
	for line := range strings.SplitSeq(m.Hosts, ",") {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// Quota holds the quotas of workspaces that have none of their own; 0 is unlimited.
type Quota struct {
	Sandboxes   int `yaml:"sandboxes" was:"sandbox.max" default:"1000"`
	VCPUs       int `yaml:"vcpus" default:"0"`
	MemoryMiB   int `yaml:"memory_mib" default:"0"`
	DiskMiB     int `yaml:"disk_mib" default:"0"`
	DiskUsedMiB int `yaml:"disk_used_mib" default:"0"`
	Snapshots   int `yaml:"snapshots" default:"1000"`
	SnapshotMiB int `yaml:"snapshot_mib" default:"0"`
	UploadMiB   int `yaml:"upload_mib" default:"40960"`
	Templates   int `yaml:"templates" default:"500"`
	Builds      int `yaml:"builds" was:"build.queue_limit" default:"20"`
	Volumes     int `yaml:"volumes" default:"1000"`
	VolumeMiB   int `yaml:"volume_mib" default:"0"`

	VolumeSnapshots int `yaml:"volume_snapshots" default:"1000"`
	Databases       int `yaml:"databases" default:"100"`
	Apps            int `yaml:"apps" default:"200"`
	Schedules       int `yaml:"schedules" default:"1000"`
	Functions       int `yaml:"functions" default:"200"`

	EgressMbit int `yaml:"egress_mbit" default:"0"`

	Connections    int `yaml:"connections" default:"0"`
	NewConnections int `yaml:"new_connections_per_s" default:"0"`
}

// Templates adjusts the recipes that are part of the program.
type Templates struct {
	Params  string `yaml:"params" default:""`
	Aliases string `yaml:"aliases" default:""`
	Rebake  bool   `yaml:"rebake" default:"true"`
}

// ObjectStore configures the object store that hosts share.
type ObjectStore struct {
	URL      string        `yaml:"url" was:"objects.url" default:""`
	Key      string        `yaml:"key" was:"objects.key" path:"file" default:""`
	CacheMiB int           `yaml:"cache_mib" was:"objects.cache_mib" default:"4096"`
	Timeout  time.Duration `yaml:"timeout" was:"objects.timeout" default:"60s"`
}

// Backup configures backups of the node.
type Backup struct {
	URL            string        `yaml:"url" default:""`
	PassphraseFile string        `yaml:"passphrase_file" path:"file" default:""`
	Every          time.Duration `yaml:"every" default:"0s"`
	Keep           int           `yaml:"keep" default:"7"`
}

// Build configures how templates are built.
type Build struct {
	Parallel           int           `yaml:"parallel" default:"2"`
	StepTimeout        time.Duration `yaml:"step_timeout" was:"build.step" default:"30m"`
	LayersGiB          int           `yaml:"layers_gib" default:"20"`
	MemoryMiB          int           `yaml:"memory_mib" default:"1024"`
	InsecureRegistries string        `yaml:"insecure_registries" was:"build.insecure" default:""`
	AllowNetworks      string        `yaml:"allow_networks" default:""`
}

// Registries returns the registries that builds may reach over plain HTTP.
func (b Build) Registries() []string { return list(b.InsecureRegistries) }

// Allowed parses AllowNetworks.
func (b Build) Allowed() ([]netip.Prefix, error) { return networks(b.AllowNetworks) }

// Functions configures functions.
type Functions struct {
	Suffix       string        `yaml:"suffix" default:""`
	Template     string        `yaml:"template" default:"code-interpreter"`
	Concurrency  int           `yaml:"concurrency" default:"64"`
	Wait         time.Duration `yaml:"wait" default:"10s"`
	Builds       int           `yaml:"builds" default:"2"`
	BuildTimeout time.Duration `yaml:"build_timeout" default:"15m"`
}

// Schedules configures the runs of schedules.
type Schedules struct {
	Parallel      int    `yaml:"parallel" default:"16"`
	PerWorkspace  int    `yaml:"per_workspace" default:"4"`
	AllowNetworks string `yaml:"allow_networks" default:""`
}

// Allowed parses AllowNetworks.
func (s Schedules) Allowed() ([]netip.Prefix, error) { return networks(s.AllowNetworks) }

// SSH configures the SSH gateway.
type SSH struct {
	Listen string `yaml:"listen" default:""`
	Public string `yaml:"public" default:""`
}

// networks parses a list of networks.
func networks(text string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range list(text) {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not a network such as 10.1.0.0/16 or fd12:3456::/32", text)
		}
		all = append(all, p)
	}
	return all, nil
}

// Lifecycle is how the node stops.
type Lifecycle struct {
	KeepRunning     bool          `yaml:"keep_running" default:"false"`
	ShutdownTimeout time.Duration `yaml:"shutdown_timeout" was:"lifecycle.stop" default:"60s"`
}
