-- +goose Up
CREATE TABLE database_backups (
  database_id TEXT PRIMARY KEY,
  base_due    BIGINT NOT NULL,   -- when the next base backup is due
  based       BIGINT NOT NULL,   -- when the last one was complete; 0: there is none
  base_error  TEXT NOT NULL,     -- of the last attempt
  collect_due BIGINT NOT NULL,   -- when the archive is cleaned next
  scrub_due   BIGINT NOT NULL,
  scrubbed    BIGINT NOT NULL,   -- when the archive was verified last
  scrub_error TEXT NOT NULL      -- what the last scrub found
);
