-- +goose Up
ALTER TABLE workspaces ADD COLUMN suspended BIGINT NOT NULL DEFAULT 0; -- since when; 0: it is active

CREATE TABLE quotas ( -- of workspaces that have their own in place of the configured default
    workspace TEXT NOT NULL,
    kind      TEXT NOT NULL,
    allowed   BIGINT NOT NULL, -- in the unit of the kind; 0: unlimited
    PRIMARY KEY (workspace, kind)
);
INSERT INTO quotas (workspace, kind, allowed)
    SELECT id, 'sandboxes', max_sandboxes FROM workspaces WHERE max_sandboxes > 0;
ALTER TABLE workspaces DROP COLUMN max_sandboxes;

CREATE TABLE uploads ( -- disk space of build inputs that is charged to a workspace
    id        TEXT PRIMARY KEY,
    dir       TEXT NOT NULL, -- id of the directory that has the files
    workspace TEXT NOT NULL,
    bytes     BIGINT NOT NULL,
    changed   BIGINT NOT NULL
);
CREATE INDEX uploads_by_workspace ON uploads (workspace, bytes);

CREATE INDEX sandboxes_by_quota ON sandboxes (workspace, state, vcpus, memory_mib, disk_mib);
