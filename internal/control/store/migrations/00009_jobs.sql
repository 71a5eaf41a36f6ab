-- +goose Up
CREATE TABLE jobs (
    id            TEXT PRIMARY KEY,
    kind          TEXT NOT NULL, -- selects the worker
    unique_key    TEXT NOT NULL, -- at most one active job of a kind has it; '' for none
    owner         TEXT NOT NULL, -- "kind/id" of the resource that the job works for
    workspace     TEXT NOT NULL,
    payload       TEXT NOT NULL, -- JSON
    state         TEXT NOT NULL, -- queued, running, done, failed, cancelled
    attempts      BIGINT NOT NULL,
    max_attempts  BIGINT NOT NULL,
    run_after     BIGINT NOT NULL, -- the earliest time of the next attempt
    deadline      BIGINT NOT NULL,
    lease_owner   TEXT NOT NULL, -- the queue instance that runs it
    fence         BIGINT NOT NULL, -- grows with every claim
    lease_expires BIGINT NOT NULL,
    progress      TEXT NOT NULL,
    log_position  BIGINT NOT NULL, -- number of the last log line that was written
    error         TEXT NOT NULL,
    code          TEXT NOT NULL,
    result        TEXT NOT NULL, -- JSON
    created       BIGINT NOT NULL,
    started       BIGINT NOT NULL, -- of the last attempt
    ended         BIGINT NOT NULL
);
CREATE UNIQUE INDEX jobs_by_unique_key ON jobs (kind, unique_key) WHERE unique_key <> '' AND ended = 0;
CREATE INDEX jobs_by_state ON jobs (kind, state, run_after);
CREATE INDEX jobs_by_owner ON jobs (owner);
