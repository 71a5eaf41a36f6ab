-- +goose Up
CREATE TABLE databases (
  id           TEXT PRIMARY KEY,
  workspace    TEXT NOT NULL,
  label        TEXT NOT NULL,
  state        TEXT NOT NULL,
  instance     TEXT NOT NULL,    -- the control plane process that has an operation on it under way; '': none
  size         TEXT NOT NULL,
  vcpus        INTEGER NOT NULL,
  template     TEXT NOT NULL,
  version      TEXT NOT NULL,    -- of the server
  variant      TEXT NOT NULL,    -- build of the server
  collation_version TEXT NOT NULL, -- version of the collations
  extensions   TEXT NOT NULL,    -- JSON: names
  password     TEXT NOT NULL,    -- of the role of its owner, encrypted
  verifier     TEXT NOT NULL,    -- SCRAM verifier of that role, encrypted
  broker_token TEXT NOT NULL,    -- encrypted
  always_on    BOOLEAN NOT NULL,
  idle_seconds BIGINT NOT NULL,
  durability   TEXT NOT NULL,
  storage_max_mib BIGINT NOT NULL,
  networks     TEXT NOT NULL,    -- JSON
  replicas     INTEGER NOT NULL, -- wanted
  cloned_from  TEXT NOT NULL,
  origin       TEXT NOT NULL,    -- JSON: what a branch that is being made is made of
  expires      BIGINT NOT NULL,  -- when it is deleted; 0: never
  used         BIGINT NOT NULL,  -- when it was last in use
  error        TEXT NOT NULL,
  created      BIGINT NOT NULL,
  changed      BIGINT NOT NULL
);
CREATE INDEX databases_workspace ON databases (workspace);
CREATE INDEX databases_expires ON databases (expires) WHERE expires > 0;

-- The servers of databases. A database has one primary at most.
CREATE TABLE database_members (
  id        TEXT PRIMARY KEY,
  database_id TEXT NOT NULL,
  role      TEXT NOT NULL,       -- primary or replica
  state     TEXT NOT NULL,
  sandbox   TEXT NOT NULL,
  volume    TEXT NOT NULL,
  timeline  BIGINT NOT NULL,     -- grows with every failover: the fence of the primary
  error     TEXT NOT NULL,
  created   BIGINT NOT NULL
);
CREATE INDEX database_members_database ON database_members (database_id);
CREATE UNIQUE INDEX database_members_primary ON database_members (database_id) WHERE role = 'primary';

-- Roles that were made with SQL, as they were when the database was last seen running.
CREATE TABLE database_roles (
  database_id TEXT NOT NULL,
  name      TEXT NOT NULL,
  verifier  TEXT NOT NULL,       -- encrypted
  PRIMARY KEY (database_id, name)
);

CREATE TABLE database_rehearsals (
  id        TEXT PRIMARY KEY,
  workspace TEXT NOT NULL,
  database_id TEXT NOT NULL,
  state     TEXT NOT NULL,       -- running, passed or failed
  target    BIGINT NOT NULL,     -- the moment that was restored
  bytes     BIGINT NOT NULL,
  error     TEXT NOT NULL,
  started   BIGINT NOT NULL,
  ended     BIGINT NOT NULL
);
CREATE INDEX database_rehearsals_database ON database_rehearsals (database_id, started);
