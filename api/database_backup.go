package api

import "time"

// MaxDatabaseRehearsals is how many rehearsals the backups of a database list.
const MaxDatabaseRehearsals = 10

// DatabaseBackups is the state of the backups of a database.
type DatabaseBackups struct {
	Running    bool           `json:"running" doc:"Its log is received; it is not while the database sleeps."`
	Relay      *DatabaseRelay `json:"relay,omitempty" doc:"What receives the log, if that is running."`
	LastBaseAt *time.Time     `json:"last_base_at,omitempty" doc:"End of the last base backup."`
	NextBaseAt *time.Time     `json:"next_base_at,omitempty" doc:"One that is due waits until the database runs."`
	BaseError  string         `json:"base_error,omitempty" doc:"Why the last base backup failed."`

	VerifiedAt  *time.Time `json:"verified_at,omitempty" doc:"Last verification of a sample of what is stored."`
	VerifyError string     `json:"verify_error,omitempty" doc:"What it found."`

	StoredBytes  int64               `json:"stored_bytes" doc:"All of it in the object store, compressed."`
	Bases        []DatabaseBase      `json:"bases" doc:"Base backups, oldest first."`
	Windows      []DatabaseWindow    `json:"windows" doc:"Ranges of moments that can be restored, oldest first."`
	ArchiveError string              `json:"archive_error,omitempty" doc:"Why bases and windows cannot be read."`
	Rehearsals   []DatabaseRehearsal `json:"rehearsals" doc:"The last 10 rehearsals of a restore, newest first."`
}

// DatabaseRelay is the state of what receives the log of a database.
type DatabaseRelay struct {
	State          string        `json:"state" enum:"connecting,streaming,spool_full,diverged,stopped"`
	LagBytes       int64         `json:"lag_bytes" doc:"Log that the server has and the host's disk does not."`
	UploadLagBytes int64         `json:"upload_lag_bytes" doc:"Log on the host's disk, not yet in the object store."`
	CoveredUntil   *time.Time    `json:"covered_until,omitempty" doc:"All commits up to then are on the host's disk."`
	SpoolBytes     int64         `json:"spool_bytes" doc:"What the spool takes of the host's disk."`
	ConnectError   string        `json:"connect_error,omitempty"`
	UploadError    string        `json:"upload_error,omitempty"`
	Hole           *DatabaseHole `json:"hole,omitempty" doc:"The last part of the log that was lost."`
}

// DatabaseHole is a part of the log of a database that is missing.
type DatabaseHole struct {
	Timeline uint32 `json:"timeline"`
	From     string `json:"from" doc:"Position of the log."`
	To       string `json:"to"`
}

// DatabaseBase is a base backup of a database.
type DatabaseBase struct {
	ID         string    `json:"id"`
	Timeline   uint32    `json:"timeline"`
	LSN        string    `json:"lsn" doc:"The earliest position of the log that it can be restored to."`
	StartedAt  time.Time `json:"started_at"`
	FinishedAt time.Time `json:"finished_at"`
	Bytes      int64     `json:"bytes" doc:"Of the data directory."`
}

// DatabaseWindow is a range of moments to each of which a database can be restored.
type DatabaseWindow struct {
	Timeline uint32     `json:"timeline"`
	Base     string     `json:"base" doc:"Its oldest base backup."`
	From     time.Time  `json:"from"`
	To       *time.Time `json:"to,omitempty" doc:"Absent if it is not known."`
	FromLSN  string     `json:"from_lsn"`
	ToLSN    string     `json:"to_lsn"`
}

// DatabaseRehearsal is a restore of a database into a machine of its own, where it is verified.
type DatabaseRehearsal struct {
	ID        string     `json:"id"`
	State     string     `json:"state" enum:"running,passed,failed"`
	Error     string     `json:"error,omitempty" doc:"Why it failed."`
	Bytes     int64      `json:"bytes" doc:"What was restored."`
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
}
