-- +goose Up
CREATE TABLE templates (
    id          TEXT PRIMARY KEY,
    workspace   TEXT NOT NULL,
    name        TEXT NOT NULL,
    everyone    BOOLEAN NOT NULL, -- usable by all workspaces
    description TEXT NOT NULL,
    created     BIGINT NOT NULL,
    changed     BIGINT NOT NULL,
    UNIQUE (workspace, name)
);
CREATE UNIQUE INDEX templates_of_everyone ON templates (name) WHERE everyone;

CREATE TABLE versions ( -- of templates: each is a published template of the host, under the same name
    id         TEXT PRIMARY KEY,
    template   TEXT NOT NULL,
    hash       TEXT NOT NULL, -- of all that it was made from
    base       TEXT NOT NULL,
    vcpus      BIGINT NOT NULL,
    memory_mib BIGINT NOT NULL,
    disk_mib   BIGINT NOT NULL,
    bytes      BIGINT NOT NULL,
    user_name  TEXT NOT NULL,
    workdir    TEXT NOT NULL,
    env        TEXT NOT NULL,
    start_cmd  TEXT NOT NULL,
    ready_cmd  TEXT NOT NULL,
    created    BIGINT NOT NULL
);
CREATE INDEX versions_by_template ON versions (template, created);

CREATE TABLE tags (
    template TEXT NOT NULL,
    tag      TEXT NOT NULL,
    version  TEXT NOT NULL,
    created  BIGINT NOT NULL,
    PRIMARY KEY (template, tag)
);

CREATE TABLE builds (
    id        TEXT PRIMARY KEY,
    workspace TEXT NOT NULL,
    template  TEXT NOT NULL,
    name      TEXT NOT NULL,
    state     TEXT NOT NULL,
    owner     TEXT NOT NULL, -- the control plane process that runs it
    attempt   BIGINT NOT NULL,
    hash      TEXT NOT NULL,
    spec      TEXT NOT NULL, -- JSON: what was asked for
    step      TEXT NOT NULL, -- under way, or the one that failed
    done      BIGINT NOT NULL, -- steps
    steps     BIGINT NOT NULL,
    cached    BIGINT NOT NULL, -- of those done
    error     TEXT NOT NULL,
    code      TEXT NOT NULL,
    bytes     BIGINT NOT NULL,
    created   BIGINT NOT NULL,
    started   BIGINT NOT NULL,
    ended     BIGINT NOT NULL
);
CREATE INDEX builds_by_workspace ON builds (workspace, created, id);
CREATE INDEX builds_by_state ON builds (state, created);

CREATE TABLE build_logs (
    build TEXT NOT NULL,
    seq   BIGINT NOT NULL,
    at    BIGINT NOT NULL,
    level TEXT NOT NULL,
    step  TEXT NOT NULL,
    line  TEXT NOT NULL,
    PRIMARY KEY (build, seq)
);

CREATE TABLE layers ( -- finished steps: snapshots of the host
    workspace TEXT NOT NULL,
    name      TEXT NOT NULL, -- hash of the step, its inputs and its parent
    snapshot  TEXT NOT NULL,
    bytes     BIGINT NOT NULL,
    created   BIGINT NOT NULL,
    used      BIGINT NOT NULL,
    PRIMARY KEY (workspace, name)
);
CREATE INDEX layers_by_used ON layers (used);
