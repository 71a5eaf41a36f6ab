package api

import (
	"net/netip"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of databases.
const (
	MaxDatabaseLabel    = 64 // characters
	MaxDatabaseNetworks = 64
	MaxDatabaseReplicas = 4
)

// DatabaseID names a database: "dbs...". It is the first label of its host name.
type DatabaseID string

// NewDatabaseID returns a new random id.
func NewDatabaseID() DatabaseID { return DatabaseID(newID("dbs")) }

// Valid reports whether id has the form of a database's id, not whether the database exists.
func (id DatabaseID) Valid() bool { return validID(string(id), "dbs") }

// ParseDatabaseID reads an id from a path. The error of a malformed id is not_found.
func ParseDatabaseID(s string) (DatabaseID, error) {
	if id := DatabaseID(s); id.Valid() {
		return id, nil
	}
	return "", Errorf(NotFound, "database %s not found: ids look like dbs and 20 letters and digits", quote(s))
}

// DatabaseStatus is the state of a database.
type DatabaseStatus string

// The states of a database.
const (
	DatabaseProvisioning DatabaseStatus = "provisioning"
	DatabaseRunning      DatabaseStatus = "running"
	DatabaseHibernated   DatabaseStatus = "hibernated" // the next connection wakes it
	DatabaseRestoring    DatabaseStatus = "restoring"  // its server is being replaced
	DatabaseFailed       DatabaseStatus = "failed"
)

// DatabaseSize is the memory of a database's server.
type DatabaseSize string

// The sizes of databases.
const (
	Database1G  DatabaseSize = "1g"
	Database4G  DatabaseSize = "4g"
	Database16G DatabaseSize = "16g"
)

// MemoryMB returns the memory of a size in MiB, 0 if there is no such size.
func (s DatabaseSize) MemoryMB() int {
	switch s {
	case Database1G:
		return 1 << 10
	case Database4G:
		return 4 << 10
	case Database16G:
		return 16 << 10
	}
	return 0
}

func (s DatabaseSize) validate() error {
	if s != "" && s.MemoryMB() == 0 {
		return invalid("size", "%s is not a size: use 1g, 4g or 16g", quote(string(s)))
	}
	return nil
}

// Durability says when a commit of a database is confirmed.
type Durability string

// The durabilities.
const (
	DurabilityAsync Durability = "async" // when it is on the database's volume
	DurabilitySync  Durability = "sync"  // when it is also in the log outside of the database's machine
)

// Database is a managed PostgreSQL database. Lists have no credentials.
type Database struct {
	ID           DatabaseID     `json:"id"`
	Status       DatabaseStatus `json:"status" enum:"provisioning,running,hibernated,restoring,failed"`
	Template     string         `json:"template"`
	Label        string         `json:"label"`
	CreatedAt    float64        `json:"created_at" doc:"Seconds since 1970."`
	Size         DatabaseSize   `json:"size" enum:"1g,4g,16g"`
	AlwaysOn     bool           `json:"always_on" doc:"It is not suspended when it is idle."`
	ClonedFrom   DatabaseID     `json:"cloned_from,omitempty"`
	SchemaOnly   bool           `json:"schema_only,omitempty" doc:"A branch that was made without rows."`
	ExpiresAt    *time.Time     `json:"expires_at,omitempty" doc:"When it is deleted."`
	SandboxID    SandboxID      `json:"sandbox_id,omitempty" doc:"The machine of its server."`
	Error        string         `json:"error,omitempty"`
	Durability   Durability     `json:"durability" enum:"async,sync"`
	IdleSeconds  int64          `json:"idle_seconds" doc:"Time without sessions until it is suspended."`
	StorageMaxMB int            `json:"storage_max_mb" doc:"Its storage grows by itself up to this, in MiB."`
	Networks     []string       `json:"networks,omitempty" doc:"That clients may connect from; absent: every network."`
	Replicas     int            `json:"replicas" doc:"Number of its read replicas."`
	Version      string         `json:"version,omitempty" doc:"Of its server."`
	Extensions   []string       `json:"extensions,omitempty" doc:"Extensions that its server has."`

	PreviousID DatabaseID `json:"previous_id,omitempty" doc:"The branch that keeps what it has, while it is upgraded."`

	ReplicaStates []DatabaseReplica `json:"replica_states,omitempty" doc:"Its read replicas, oldest first."`

	Host          string `json:"host,omitempty"`
	Port          int    `json:"port,omitempty"`
	Database      string `json:"database,omitempty"`
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	ConnectionURL string `json:"connection_url,omitempty"`
	PoolerURL     string `json:"pooler_url,omitempty" doc:"Through its connection pooler in transaction mode."`
	ReadOnlyURL   string `json:"read_only_url,omitempty" doc:"Of its read replicas."`

	ReadOnlyPoolerURL string `json:"read_only_pooler_url,omitempty" doc:"Of the poolers of its read replicas."`

	BrokerPort  int    `json:"broker_port,omitempty"`
	BrokerToken string `json:"broker_token,omitempty" doc:"Of queries over HTTP."`
	BrokerURL   string `json:"broker_url,omitempty"`

	FailoverAvailable  bool   `json:"failover_available"`
	FailoverReason     string `json:"failover_reason,omitempty" doc:"Why there is no failover."`
	FailoverETASeconds int    `json:"failover_eta_seconds,omitempty"`
}

// ReplicaStatus is what a read replica of a database does.
type ReplicaStatus string

// The states of a read replica.
const (
	ReplicaCreating   ReplicaStatus = "creating"   // it gets a copy of the data
	ReplicaStreaming  ReplicaStatus = "streaming"  // it follows the primary, and takes connections
	ReplicaBehind     ReplicaStatus = "behind"     // it is too far behind to take connections
	ReplicaHibernated ReplicaStatus = "hibernated" // it sleeps with its primary
	ReplicaFailed     ReplicaStatus = "failed"     // another is made in its place
)

// DatabaseReplica is a read replica of a database.
type DatabaseReplica struct {
	SandboxID  SandboxID     `json:"sandbox_id,omitempty" doc:"The machine of its server."`
	Status     ReplicaStatus `json:"status" enum:"creating,streaming,behind,hibernated,failed"`
	LagBytes   int64         `json:"lag_bytes" doc:"Log of the primary that it had not applied when it was measured."`
	LagSeconds float64       `json:"lag_seconds" doc:"Age of its newest transaction, if it lacked any of the log."`
	MeasuredAt *time.Time    `json:"measured_at,omitempty" doc:"Absent: it was not yet."`
	Error      string        `json:"error,omitempty"`
}

// CreateDatabaseRequest asks for a database: POST /v1/databases.
type CreateDatabaseRequest struct {
	Label        string       `json:"label,omitempty" doc:"For people; at most 64 characters."`
	Size         DatabaseSize `json:"size,omitempty" enum:"1g,4g,16g" doc:"Memory; 1g if absent."`
	CPU          int          `json:"cpu,omitempty" doc:"vCPUs; those of the size if absent."`
	MemoryMB     int          `json:"memory_mb,omitempty" doc:"In place of size: the smallest size that has it."`
	Template     string       `json:"template,omitempty" doc:"A template with a PostgreSQL cluster."`
	AlwaysOn     bool         `json:"always_on,omitempty" doc:"Never suspend it."`
	IdleSeconds  int64        `json:"idle_seconds,omitempty" doc:"Time without sessions until it is suspended."`
	Durability   Durability   `json:"durability,omitempty" enum:"async,sync" doc:"async if absent."`
	StorageMaxMB int          `json:"storage_max_mb,omitempty" doc:"Limit of its storage in MiB."`
	Networks     []string     `json:"networks,omitempty" doc:"That clients may connect from, in CIDR notation."`
	Replicas     int          `json:"replicas,omitempty" doc:"Read replicas."`
	Extensions   []string     `json:"extensions,omitempty" doc:"That it must have."`
	TTLSeconds   int64        `json:"ttl_seconds,omitempty" doc:"Time until it is deleted; never if absent."`
}

// Validate checks everything that can be checked without knowing the server.
func (r *CreateDatabaseRequest) Validate() error {
	if err := validateLabel(r.Label); err != nil {
		return err
	}
	if err := r.Size.validate(); err != nil {
		return err
	}
	switch {
	case r.CPU < 0 || r.CPU > 16:
		return invalid("cpu", "%d is out of range: use 1 to 16", r.CPU)
	case r.MemoryMB < 0 || r.MemoryMB > Database16G.MemoryMB():
		return invalid("memory_mb", "%d is out of range: use at most %d", r.MemoryMB, Database16G.MemoryMB())
	case r.MemoryMB > 0 && r.Size != "" && r.MemoryMB > r.Size.MemoryMB():
		return invalid("memory_mb", "size %s has %d MiB: leave one of size and memory_mb out", r.Size,
			r.Size.MemoryMB())
	case r.Replicas < 0 || r.Replicas > MaxDatabaseReplicas:
		return invalid("replicas", "%d is out of range: use 0 to %d", r.Replicas, MaxDatabaseReplicas)
	case r.TTLSeconds < 0:
		return invalid("ttl_seconds", "%d is negative: leave it out to keep the database", r.TTLSeconds)
	case r.StorageMaxMB < 0:
		return invalid("storage_max_mb", "%d is negative: leave it out for the default", r.StorageMaxMB)
	}
	return validateDatabaseSettings(r.IdleSeconds, r.Durability, r.Networks)
}

func validateLabel(label string) error {
	if !utf8.ValidString(label) || utf8.RuneCountInString(label) > MaxDatabaseLabel {
		return invalid("label", "use at most %d characters of valid UTF-8", MaxDatabaseLabel)
	}
	for _, c := range label {
		if unicode.IsControl(c) {
			return invalid("label", "has a control character: remove it")
		}
	}
	return nil
}

func validateDatabaseSettings(idle int64, d Durability, networks []string) error {
	if idle < 0 || idle > 30*24*3600 {
		return invalid("idle_seconds", "%d is out of range: use 1 to %d", idle, 30*24*3600)
	}
	if d != "" && d != DurabilityAsync && d != DurabilitySync {
		return invalid("durability", "%s is not a durability: use async or sync", quote(string(d)))
	}
	if len(networks) > MaxDatabaseNetworks {
		return invalid("networks", "has %d networks: use at most %d", len(networks), MaxDatabaseNetworks)
	}
	for _, n := range networks {
		if _, err := netip.ParsePrefix(n); err != nil {
			return invalid("networks", "%s is not a network: write it like 192.0.2.0/24", quote(n))
		}
	}
	return nil
}

// UpdateDatabaseRequest changes a database: PATCH /v1/databases/{id}. Absent fields stay.
type UpdateDatabaseRequest struct {
	Label        *string     `json:"label,omitempty"`
	AlwaysOn     *bool       `json:"always_on,omitempty"`
	IdleSeconds  *int64      `json:"idle_seconds,omitempty"`
	Durability   *Durability `json:"durability,omitempty" enum:"async,sync"`
	StorageMaxMB *int        `json:"storage_max_mb,omitempty"`
	Networks     *[]string   `json:"networks,omitempty" doc:"An empty list allows every network."`
	Replicas     *int        `json:"replicas,omitempty"`
	TTLSeconds   *int64      `json:"ttl_seconds,omitempty" doc:"From now; 0 keeps it."`
}

// Validate checks everything that can be checked without knowing the database.
func (r *UpdateDatabaseRequest) Validate() error {
	if r.Label != nil {
		if err := validateLabel(*r.Label); err != nil {
			return err
		}
	}
	if r.Replicas != nil && (*r.Replicas < 0 || *r.Replicas > MaxDatabaseReplicas) {
		return invalid("replicas", "%d is out of range: use 0 to %d", *r.Replicas, MaxDatabaseReplicas)
	}
	if r.StorageMaxMB != nil && *r.StorageMaxMB <= 0 {
		return invalid("storage_max_mb", "%d is not a size in MiB", *r.StorageMaxMB)
	}
	if r.TTLSeconds != nil && *r.TTLSeconds < 0 {
		return invalid("ttl_seconds", "%d is negative: use 0 to keep the database", *r.TTLSeconds)
	}
	var idle int64
	if r.IdleSeconds != nil {
		if idle = *r.IdleSeconds; idle == 0 {
			return invalid("idle_seconds", "0 is out of range: set always_on to keep the database running")
		}
	}
	var d Durability
	if r.Durability != nil {
		d = *r.Durability
	}
	var networks []string
	if r.Networks != nil {
		networks = *r.Networks
	}
	return validateDatabaseSettings(idle, d, networks)
}

// CloneDatabaseRequest asks for a branch of a database: POST /v1/databases/{id}/clone.
//
// At most one of the targets is set; without, the branch has what the database has now.
type CloneDatabaseRequest struct {
	Label      string       `json:"label,omitempty"`
	Size       DatabaseSize `json:"size,omitempty" enum:"1g,4g,16g" doc:"That of the database if absent."`
	TargetTime *time.Time   `json:"target_time,omitempty" doc:"Every transaction that committed by then."`
	TargetLSN  string       `json:"target_lsn,omitempty" doc:"Every record of the log before this position."`
	TargetXID  uint32       `json:"target_xid,omitempty" doc:"Up to this transaction, which is included."`
	TargetName string       `json:"target_name,omitempty" doc:"Up to the restore point of this name."`
	SchemaOnly bool         `json:"schema_only,omitempty" doc:"Without rows of tables."`
	TTLSeconds int64        `json:"ttl_seconds,omitempty" doc:"Time until it is deleted; never if absent."`
}

// Past reports whether the branch is of a moment of the past.
func (r *CloneDatabaseRequest) Past() bool {
	return r.TargetTime != nil || r.TargetLSN != "" || r.TargetXID != 0 || r.TargetName != ""
}

// Validate checks everything that can be checked without knowing the database.
func (r *CloneDatabaseRequest) Validate() error {
	if err := validateLabel(r.Label); err != nil {
		return err
	}
	if err := r.Size.validate(); err != nil {
		return err
	}
	n := 0
	for _, set := range []bool{r.TargetTime != nil, r.TargetLSN != "", r.TargetXID != 0, r.TargetName != ""} {
		if set {
			n++
		}
	}
	switch {
	case n > 1:
		return invalid("target_time", "there are %d targets: use one of target_time, target_lsn, target_xid and "+
			"target_name", n)
	case r.SchemaOnly && n > 0:
		return invalid("schema_only", "a branch without rows has the schema that the database has now: leave the "+
			"target out")
	case r.TTLSeconds < 0:
		return invalid("ttl_seconds", "%d is negative: leave it out to keep the branch", r.TTLSeconds)
	case len(r.TargetName) > 63:
		return invalid("target_name", "has %d bytes: names of restore points have at most 63", len(r.TargetName))
	}
	return nil
}

// ResetDatabaseRequest gives a branch what its database has: POST /v1/databases/{id}/reset.
type ResetDatabaseRequest struct {
	TargetTime *time.Time `json:"target_time,omitempty" doc:"What the database had then; what it has now if absent."`
}

// UpgradeDatabaseRequest asks for a newer major version: POST /v1/databases/{id}/upgrade.
type UpgradeDatabaseRequest struct {
	Template    string `json:"template,omitempty" doc:"A template with the version; postgres-17 if absent."`
	KeepSeconds int64  `json:"keep_seconds,omitempty" doc:"What it had stays as a branch; 604800 (7 days) if absent."`
}

// MaxKeepSeconds bounds the life of the branch that keeps what a database had before an upgrade.
const MaxKeepSeconds = 365 * 24 * 3600

// Validate checks everything that can be checked without knowing the database.
func (r *UpgradeDatabaseRequest) Validate() error {
	if r.KeepSeconds < 0 || r.KeepSeconds > MaxKeepSeconds {
		return invalid("keep_seconds", "%d is out of range: use 1 to %d", r.KeepSeconds, MaxKeepSeconds)
	}
	return nil
}

// WantedSize returns the size that a request is for.
func (r *CreateDatabaseRequest) WantedSize() DatabaseSize {
	if r.Size != "" {
		return r.Size
	}
	for _, size := range []DatabaseSize{Database1G, Database4G} {
		if r.MemoryMB <= size.MemoryMB() {
			return size
		}
	}
	return Database16G
}

// AdoptDatabaseRequest takes a database over from a node that is lost: POST /v1/databases/adopt.
type AdoptDatabaseRequest struct {
	ID DatabaseID `json:"id" doc:"Of the database, in the object store that the nodes share."`
}

// Validate implements the check of a request.
func (r AdoptDatabaseRequest) Validate() error {
	if _, err := ParseDatabaseID(string(r.ID)); err != nil {
		return Errorf(Invalid, "id: %.60q is not the id of a database", string(r.ID)).With("field", "id")
	}
	return nil
}

// FailoverRequest asks for another server of a database: POST /v1/databases/{id}/failover.
type FailoverRequest struct {
	Force bool `json:"force,omitempty" doc:"Although the server responds, or commits may be lost."`
}

// DatabaseConnection is how clients connect to a database.
type DatabaseConnection struct {
	ConnectionURL string `json:"connection_url"`
	PoolerURL     string `json:"pooler_url"`
	ReadOnlyURL   string `json:"read_only_url,omitempty" doc:"Of its read replicas, if it has any."`

	ReadOnlyPoolerURL string `json:"read_only_pooler_url,omitempty" doc:"Of the poolers of its read replicas."`

	BrokerURL   string `json:"broker_url"`
	BrokerToken string `json:"broker_token"`
}

// DatabaseAccepted says that something was begun with a database.
type DatabaseAccepted struct {
	ID     DatabaseID `json:"id"`
	Status string     `json:"status"`
	Detail string     `json:"detail,omitempty"`
}

// DatabaseStats are measurements of a database's server.
type DatabaseStats struct {
	PostgresVersion string  `json:"postgres_version"`
	DBSizeBytes     int64   `json:"db_size_bytes"`
	Connections     int     `json:"connections"`
	MaxConnections  int     `json:"max_connections"`
	UptimeSeconds   int64   `json:"uptime_seconds"`
	CacheHitRatio   float64 `json:"cache_hit_ratio" doc:"0 to 1."`
	DiskSizeBytes   int64   `json:"disk_size_bytes"`
	DiskUsedBytes   int64   `json:"disk_used_bytes"`
	DiskAvailBytes  int64   `json:"disk_avail_bytes"`
	DiskUsedPct     float64 `json:"disk_used_pct"`

	Replicas []DatabaseReplica `json:"replicas,omitempty" doc:"Its read replicas and how far they are behind."`
}

// DatabaseLogs is the end of the log of a database's server.
type DatabaseLogs struct {
	Logs string `json:"logs"`
}
