-- Everything here is understood by SQLite and PostgreSQL alike. Times are microseconds since 1970 in
-- UTC, 0 for none; maps and lists are JSON text.

-- +goose Up
CREATE TABLE settings (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE workspaces (
    id            TEXT PRIMARY KEY,
    name          TEXT NOT NULL,
    created       BIGINT NOT NULL,
    max_sandboxes BIGINT NOT NULL -- 0: the configured default
);

CREATE TABLE keys (
    prefix    TEXT PRIMARY KEY,
    workspace TEXT NOT NULL REFERENCES workspaces (id),
    hash      TEXT NOT NULL UNIQUE,
    label     TEXT NOT NULL,
    scope     TEXT NOT NULL,
    created   BIGINT NOT NULL,
    last_used BIGINT NOT NULL,
    expires   BIGINT NOT NULL
);
CREATE INDEX keys_by_workspace ON keys (workspace);

CREATE TABLE sandboxes (
    id          TEXT PRIMARY KEY,
    workspace   TEXT NOT NULL,
    state       TEXT NOT NULL,
    owner       TEXT NOT NULL, -- the control plane process that moves it
    template    TEXT NOT NULL,
    snapshot    TEXT NOT NULL,
    parent      TEXT NOT NULL,
    tree        TEXT NOT NULL,
    vcpus       BIGINT NOT NULL,
    memory_mib  BIGINT NOT NULL,
    disk_mib    BIGINT NOT NULL,
    guest_ip    TEXT NOT NULL,
    tap         TEXT NOT NULL,
    mac         TEXT NOT NULL,
    generation  BIGINT NOT NULL,
    boot_mode   TEXT NOT NULL,
    boot        BIGINT NOT NULL, -- microseconds
    pause       BIGINT NOT NULL, -- microseconds
    phases      TEXT NOT NULL,
    user_name   TEXT NOT NULL,
    workdir     TEXT NOT NULL,
    env         TEXT NOT NULL,
    metadata    TEXT NOT NULL,
    egress      BOOLEAN NOT NULL,
    persistent  BOOLEAN NOT NULL,
    ttl_seconds BIGINT NOT NULL,
    ends        BIGINT NOT NULL, -- a fixed end
    on_end      TEXT NOT NULL,
    created     BIGINT NOT NULL,
    changed     BIGINT NOT NULL, -- of state
    active      BIGINT NOT NULL, -- last use
    due         BIGINT NOT NULL, -- when the reaper looks at it
    reason      TEXT NOT NULL,   -- why it failed
    end_reason  TEXT NOT NULL,   -- why it is stopping
    end_by      TEXT NOT NULL,
    idempotency TEXT NOT NULL
);
CREATE INDEX sandboxes_by_workspace ON sandboxes (workspace, created, id);
CREATE INDEX sandboxes_by_due ON sandboxes (due);
CREATE INDEX sandboxes_by_tree ON sandboxes (tree);

CREATE TABLE labels (
    sandbox TEXT NOT NULL,
    name    TEXT NOT NULL,
    value   TEXT NOT NULL,
    PRIMARY KEY (sandbox, name)
);
CREATE INDEX labels_by_value ON labels (name, value);

CREATE TABLE events (
    sandbox   TEXT NOT NULL,
    seq       BIGINT NOT NULL,
    workspace TEXT NOT NULL,
    at        BIGINT NOT NULL,
    type      TEXT NOT NULL,
    payload   TEXT NOT NULL,
    PRIMARY KEY (sandbox, seq)
);

CREATE TABLE snapshots (
    id         TEXT PRIMARY KEY,
    workspace  TEXT NOT NULL,
    sandbox    TEXT NOT NULL,
    state      TEXT NOT NULL, -- creating, ready, deleting
    owner      TEXT NOT NULL,
    name       TEXT NOT NULL,
    template   TEXT NOT NULL,
    vcpus      BIGINT NOT NULL,
    memory_mib BIGINT NOT NULL,
    disk_mib   BIGINT NOT NULL,
    bytes      BIGINT NOT NULL,
    metadata   TEXT NOT NULL,
    env        TEXT NOT NULL,
    user_name  TEXT NOT NULL,
    workdir    TEXT NOT NULL,
    created    BIGINT NOT NULL
);
CREATE INDEX snapshots_by_workspace ON snapshots (workspace, created, id);

CREATE TABLE idempotency (
    workspace TEXT NOT NULL,
    name      TEXT NOT NULL,
    hash      TEXT NOT NULL,
    sandbox   TEXT NOT NULL,
    created   BIGINT NOT NULL,
    PRIMARY KEY (workspace, name)
);
CREATE INDEX idempotency_by_created ON idempotency (created);

CREATE TABLE tombstones (
    sandbox   TEXT PRIMARY KEY,
    workspace TEXT NOT NULL,
    template  TEXT NOT NULL,
    reason    TEXT NOT NULL,
    ended_by  TEXT NOT NULL,
    message   TEXT NOT NULL,
    created   BIGINT NOT NULL,
    ended     BIGINT NOT NULL,
    metadata  TEXT NOT NULL,
    processes TEXT NOT NULL,
    console   TEXT NOT NULL
);
CREATE INDEX tombstones_by_ended ON tombstones (ended);

CREATE TABLE aliases (
    name     TEXT PRIMARY KEY,
    template TEXT NOT NULL,
    created  BIGINT NOT NULL
);

CREATE TABLE ports (
    sandbox TEXT NOT NULL,
    port    BIGINT NOT NULL,
    label   TEXT NOT NULL,
    created BIGINT NOT NULL,
    PRIMARY KEY (sandbox, port)
);

CREATE TABLE audit (
    id        TEXT PRIMARY KEY, -- sorts by time
    at        BIGINT NOT NULL,
    workspace TEXT NOT NULL,
    key_name  TEXT NOT NULL,
    action    TEXT NOT NULL,
    target    TEXT NOT NULL,
    outcome   TEXT NOT NULL,
    remote    TEXT NOT NULL,
    request   TEXT NOT NULL,
    took      BIGINT NOT NULL -- microseconds
);
CREATE INDEX audit_by_time ON audit (at);
