package api

import "time"

// Bounds of what is read of a database's server.
const (
	MaxDatabaseLogLines = 10_000
	MaxDatabaseInsights = 100 // elements of each list
)

// DatabaseMetrics is what the server of a database used over time.
type DatabaseMetrics struct {
	Range         string                `json:"range" enum:"1h,24h,7d,30d"`
	Bucket        string                `json:"bucket" enum:"15s,1m,5m,30m,2h"`
	BucketSeconds int                   `json:"bucket_seconds"`
	From          time.Time             `json:"from"`
	To            time.Time             `json:"to"`
	Points        []DatabaseMetricPoint `json:"points" doc:"Oldest first; buckets without measurements are left out."`
	Empty         bool                  `json:"empty" doc:"There are no points."`
}

// DatabaseMetricPoint is the measurements of one bucket.
type DatabaseMetricPoint struct {
	TS         time.Time `json:"ts" doc:"When the bucket began."`
	CPUPct     float64   `json:"cpu_pct" doc:"Mean, of all processors of the server together."`
	MemBytes   int64     `json:"mem_bytes" doc:"Mean of what the server's machine uses."`
	NetRxBytes int64     `json:"net_rx_bytes" doc:"Received in the bucket."`
	NetTxBytes int64     `json:"net_tx_bytes" doc:"Sent in the bucket."`
	DiskRead   int64     `json:"disk_rd_bytes" doc:"Read from the host's disks in the bucket."`
	DiskWrite  int64     `json:"disk_wr_bytes" doc:"Written to the host's disks in the bucket."`
}

// The orders of the queries of a database, the largest first.
const (
	OrderTotalTime = "total_time"
	OrderMeanTime  = "mean_time"
	OrderCalls     = "calls"
	OrderRows      = "rows"
	OrderReads     = "reads"
)

// InsightQuery selects what is read of a database's server.
type InsightQuery struct {
	Database string // of the server; "": that of its user
	Order    string // of the queries; "": by their total time
	Limit    int    // elements of each list; 0: 20
}

// Validate checks everything that can be checked without knowing the database.
func (q *InsightQuery) Validate() error {
	switch q.Order {
	case "", OrderTotalTime, OrderMeanTime, OrderCalls, OrderRows, OrderReads:
	default:
		return invalid("order", "%s is not an order: use total_time, mean_time, calls, rows or reads", quote(q.Order))
	}
	if q.Limit < 0 || q.Limit > MaxDatabaseInsights {
		return invalid("limit", "%d is out of range: use 1 to %d", q.Limit, MaxDatabaseInsights)
	}
	if len(q.Database) > 63 {
		return invalid("database", "has %d bytes: names of databases have at most 63", len(q.Database))
	}
	return nil
}

// DatabaseInsights is what a database's server does now, and has done since its statistics were reset.
type DatabaseInsights struct {
	Database    string               `json:"database" doc:"Of the server, that cache and bloat are of."`
	At          time.Time            `json:"at"`
	TopQueries  []DatabaseQuery      `json:"top_queries" doc:"Of all databases of the server."`
	Connections DatabaseSessions     `json:"connections"`
	Locks       []DatabaseLock       `json:"locks" doc:"Sessions that wait for a lock."`
	Cache       DatabaseCache        `json:"cache"`
	Bloat       []DatabaseTableBloat `json:"bloat" doc:"Tables, those with the most to reclaim first."`
	SlowQueries []DatabaseSlowQuery  `json:"slow_queries" doc:"From the end of the server's log, the newest first."`
}

// DatabaseQuery is what one normalised query has done, as pg_stat_statements counts it.
type DatabaseQuery struct {
	ID            string  `json:"id"`
	Query         string  `json:"query" doc:"Without its constants; cut after 4096 bytes."`
	Database      string  `json:"database"`
	Role          string  `json:"role"`
	Calls         int64   `json:"calls"`
	Rows          int64   `json:"rows"`
	TotalMS       float64 `json:"total_ms"`
	MeanMS        float64 `json:"mean_ms"`
	MaxMS         float64 `json:"max_ms"`
	CacheHitRatio float64 `json:"cache_hit_ratio" doc:"0 to 1."`
	ReadBytes     int64   `json:"read_bytes"`
	TempBytes     int64   `json:"temp_bytes" doc:"Written to temporary files."`
}

// DatabaseSessions are the connections to a database's server.
type DatabaseSessions struct {
	Total    int               `json:"total"`
	Max      int               `json:"max"`
	ByState  map[string]int    `json:"by_state"`
	Sessions []DatabaseSession `json:"sessions" doc:"The longest in their state first."`
}

// DatabaseSession is one connection to a database's server.
type DatabaseSession struct {
	PID          int     `json:"pid"`
	Database     string  `json:"database"`
	Role         string  `json:"role"`
	Application  string  `json:"application"`
	State        string  `json:"state"`
	StateSeconds float64 `json:"state_seconds"`
	WaitEvent    string  `json:"wait_event,omitempty"`
	Query        string  `json:"query,omitempty" doc:"That runs, or ran last; cut after 1024 bytes."`
}

// DatabaseLock is a session that waits for a lock.
type DatabaseLock struct {
	PID         int     `json:"pid"`
	BlockedBy   []int   `json:"blocked_by"`
	Kind        string  `json:"kind" doc:"relation, transactionid, tuple and others."`
	Mode        string  `json:"mode"`
	Relation    string  `json:"relation,omitempty"`
	WaitSeconds float64 `json:"wait_seconds"`
	Query       string  `json:"query"`
}

// DatabaseCache is how often what was read was in the server's memory. Ratios are 0 to 1.
type DatabaseCache struct {
	HitRatio      float64 `json:"hit_ratio" doc:"Of all reads of the database."`
	TableHitRatio float64 `json:"table_hit_ratio"`
	IndexHitRatio float64 `json:"index_hit_ratio"`
	SharedBuffers int64   `json:"shared_buffers_bytes"`
}

// DatabaseTableBloat is an estimate of how much of a table is empty or dead.
type DatabaseTableBloat struct {
	Schema     string     `json:"schema"`
	Table      string     `json:"table"`
	SizeBytes  int64      `json:"size_bytes" doc:"Without indexes, as of the last VACUUM or ANALYZE."`
	LiveRows   int64      `json:"live_rows"`
	DeadRows   int64      `json:"dead_rows"`
	BloatBytes int64      `json:"bloat_bytes" doc:"Estimated from the statistics of the last ANALYZE."`
	BloatPct   float64    `json:"bloat_pct"`
	VacuumedAt *time.Time `json:"vacuumed_at,omitempty"`
	AnalyzedAt *time.Time `json:"analyzed_at,omitempty"`
}

// DatabaseSlowQuery is an entry of the server's log for a statement that took long.
type DatabaseSlowQuery struct {
	At         *time.Time `json:"at,omitempty"`
	DurationMS float64    `json:"duration_ms"`
	Query      string     `json:"query"`
}
