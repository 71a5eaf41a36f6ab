-- +goose Up
CREATE TABLE volumes (
  id          TEXT PRIMARY KEY,
  workspace   TEXT NOT NULL,
  name        TEXT NOT NULL,
  owned_by    TEXT NOT NULL,     -- the service's object that it belongs to, as kind/id; '': a user's own
  state       TEXT NOT NULL,
  instance    TEXT NOT NULL,     -- the control plane process that has an operation on it under way; '': none
  host        TEXT NOT NULL,     -- that has it
  disk        TEXT NOT NULL,     -- its id on the host
  next_disk   TEXT NOT NULL,     -- id of what replaces its content; '': nothing
  size_mib    BIGINT NOT NULL,
  holder      TEXT NOT NULL,     -- who may write to it, as kind/id; '': nobody
  fence       BIGINT NOT NULL,   -- grows with every holder
  held        BIGINT NOT NULL,   -- since when the holder may
  written     BIGINT NOT NULL,   -- when the last holder gave it back
  policy      TEXT NOT NULL,     -- JSON: its backups; '': none
  backup_due  BIGINT NOT NULL,   -- when the next backup is due; 0: never
  backup_error TEXT NOT NULL,    -- of the last backup, if it failed
  created     BIGINT NOT NULL
);
CREATE UNIQUE INDEX volumes_name ON volumes (workspace, name) WHERE state <> 'deleting';
CREATE INDEX volumes_holder ON volumes (holder) WHERE holder <> '';
CREATE INDEX volumes_due ON volumes (backup_due) WHERE backup_due > 0;

CREATE TABLE volume_snapshots (
  id          TEXT PRIMARY KEY,  -- also its id on the host
  workspace   TEXT NOT NULL,
  volume      TEXT NOT NULL,
  volume_name TEXT NOT NULL,
  name        TEXT NOT NULL,
  state       TEXT NOT NULL,
  instance    TEXT NOT NULL,     -- the process that wrote the row
  host        TEXT NOT NULL,
  size_mib    BIGINT NOT NULL,
  created     BIGINT NOT NULL
);
CREATE INDEX volume_snapshots_volume ON volume_snapshots (volume);
CREATE INDEX volume_snapshots_workspace ON volume_snapshots (workspace);

CREATE TABLE volume_backups (
  id          TEXT PRIMARY KEY,  -- also its id in the object store
  workspace   TEXT NOT NULL,
  volume      TEXT NOT NULL,
  volume_name TEXT NOT NULL,
  state       TEXT NOT NULL,
  cause       TEXT NOT NULL,     -- manual, schedule or detach
  moment      BIGINT NOT NULL,   -- whose content it has
  size_mib    BIGINT NOT NULL,
  stored      BIGINT NOT NULL,
  uploaded    BIGINT NOT NULL,
  error       TEXT NOT NULL,
  created     BIGINT NOT NULL
);
CREATE INDEX volume_backups_volume ON volume_backups (volume, moment);
CREATE INDEX volume_backups_workspace ON volume_backups (workspace);

ALTER TABLE sandboxes ADD COLUMN volumes TEXT NOT NULL DEFAULT ''; -- JSON: those that it has; '': none
