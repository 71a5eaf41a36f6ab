-- +goose Up
CREATE TABLE functions (
  id           TEXT PRIMARY KEY,
  workspace    TEXT NOT NULL,
  name         TEXT NOT NULL,
  state        TEXT NOT NULL,    -- active or deleting
  runtime      TEXT NOT NULL,
  entrypoint   TEXT NOT NULL,
  template     TEXT NOT NULL,
  settings     TEXT NOT NULL,    -- JSON
  env          TEXT NOT NULL,    -- JSON, encrypted
  secret       TEXT NOT NULL,    -- signs requests, encrypted
  auth         TEXT NOT NULL,    -- key, signed or public
  revision     BIGINT NOT NULL,  -- grows with every change of the variables
  numbered     BIGINT NOT NULL,  -- number of the newest version
  version      BIGINT NOT NULL,  -- that takes what names no alias; 0: none
  generation   BIGINT NOT NULL,  -- grows with every change of what is served
  created      BIGINT NOT NULL,
  changed      BIGINT NOT NULL
);
CREATE UNIQUE INDEX functions_name ON functions (workspace, name) WHERE state <> 'deleting';

CREATE TABLE function_versions (
  function     TEXT NOT NULL,
  number       BIGINT NOT NULL,
  state        TEXT NOT NULL,    -- building, ready, failed or deleting
  instance     TEXT NOT NULL,    -- the control plane process that builds it; '': none
  attempts     BIGINT NOT NULL,
  style        TEXT NOT NULL,    -- fetch, event, asgi, wsgi, script or lambda
  entrypoint   TEXT NOT NULL,
  template     TEXT NOT NULL,
  settings     TEXT NOT NULL,    -- JSON: those of the function when it was deployed
  layer        TEXT NOT NULL,    -- snapshot with the dependencies; '': none
  snapshot     TEXT NOT NULL,    -- with the loaded handler; '': none
  captured     BIGINT NOT NULL,  -- revision of the variables that the handler was loaded with
  sandbox      TEXT NOT NULL,    -- that is being built; '': none
  size         BIGINT NOT NULL,  -- bytes of its bundle
  digest       TEXT NOT NULL,    -- SHA-256 of its bundle, by which it is stored
  error        TEXT NOT NULL,
  created      BIGINT NOT NULL,
  ready        BIGINT NOT NULL,
  PRIMARY KEY (function, number)
);

CREATE TABLE function_aliases (
  function     TEXT NOT NULL,
  name         TEXT NOT NULL,
  versions     TEXT NOT NULL,    -- JSON: versions with weights
  changed      BIGINT NOT NULL,
  PRIMARY KEY (function, name)
);

-- The machines that serve functions.
CREATE TABLE function_machines (
  id           TEXT PRIMARY KEY,
  function     TEXT NOT NULL,
  version      BIGINT NOT NULL,
  sandbox      TEXT NOT NULL,
  instance     TEXT NOT NULL,    -- the control plane process that uses it
  state        TEXT NOT NULL,    -- starting, ready, asleep or deleting
  created      BIGINT NOT NULL,
  used         BIGINT NOT NULL
);
CREATE INDEX function_machines_function ON function_machines (function, version);

CREATE TABLE function_runs (
  id           TEXT PRIMARY KEY,
  function     TEXT NOT NULL,
  workspace    TEXT NOT NULL,
  version      BIGINT NOT NULL,
  alias        TEXT NOT NULL,
  schedule     TEXT NOT NULL,
  moment       BIGINT NOT NULL,  -- of its schedule; 0: none
  origin       TEXT NOT NULL,    -- invoke, http, async, schedule, map, queue, destination or recorded
  batch        TEXT NOT NULL,    -- the map that it is a part of, or the queue whose messages it has
  place        BIGINT NOT NULL,  -- in its map
  dedupe       TEXT,             -- idempotency key
  state        TEXT NOT NULL,    -- as the API says, or held: of a map, and waits for others of it
  instance     TEXT NOT NULL,    -- the control plane process that runs it
  lease        BIGINT NOT NULL,  -- until when it does
  attempt      BIGINT NOT NULL,
  attempts     BIGINT NOT NULL,  -- most that are made
  due          BIGINT NOT NULL,  -- when the next attempt begins; of queued runs
  expires      BIGINT NOT NULL,  -- later attempts are not made
  input        TEXT NOT NULL,    -- encrypted
  result       TEXT NOT NULL,    -- encrypted
  error        TEXT NOT NULL,    -- JSON, encrypted
  stdout       TEXT NOT NULL,    -- encrypted
  stderr       TEXT NOT NULL,    -- encrypted
  truncated    BOOLEAN NOT NULL,
  exit_code    INTEGER,
  sandbox      TEXT NOT NULL,
  cold         BOOLEAN NOT NULL,
  memory       BIGINT NOT NULL,  -- peak, bytes
  duration     BIGINT NOT NULL,  -- microseconds of the handler
  trace        TEXT NOT NULL,
  created      BIGINT NOT NULL,
  started      BIGINT NOT NULL,
  ended        BIGINT NOT NULL
);
CREATE INDEX function_runs_created ON function_runs (function, created);
CREATE INDEX function_runs_due ON function_runs (due) WHERE state = 'queued';
CREATE INDEX function_runs_queued ON function_runs (workspace, function, due) WHERE state = 'queued';
CREATE INDEX function_runs_waiting ON function_runs (workspace) WHERE state IN ('queued', 'held');
CREATE INDEX function_runs_ended ON function_runs (ended) WHERE ended > 0;
CREATE INDEX function_runs_lease ON function_runs (lease) WHERE state = 'running';
CREATE INDEX function_runs_batch ON function_runs (batch) WHERE batch <> '';
CREATE UNIQUE INDEX function_runs_dedupe ON function_runs (function, dedupe) WHERE dedupe IS NOT NULL;

CREATE TABLE function_queues (
  workspace    TEXT NOT NULL,
  name         TEXT NOT NULL,
  function     TEXT NOT NULL,    -- that gets its messages; '': none
  settings     TEXT NOT NULL,    -- JSON: visibility timeout, batch size, attempts
  created      BIGINT NOT NULL,
  changed      BIGINT NOT NULL,
  PRIMARY KEY (workspace, name)
);
CREATE TABLE function_messages (
  id           TEXT PRIMARY KEY,
  workspace    TEXT NOT NULL,
  queue        TEXT NOT NULL,
  body         TEXT NOT NULL,    -- encrypted
  dedupe       TEXT,
  receipt      TEXT NOT NULL,    -- of whoever has received it; '': nobody
  visible      BIGINT NOT NULL,  -- from when on it can be received
  attempt      BIGINT NOT NULL,
  expires      BIGINT NOT NULL,
  created      BIGINT NOT NULL
);
CREATE INDEX function_messages_visible ON function_messages (workspace, queue, visible);
CREATE INDEX function_messages_receipt ON function_messages (receipt) WHERE receipt <> '';
CREATE INDEX function_messages_expires ON function_messages (expires);
CREATE INDEX function_queues_function ON function_queues (function) WHERE function <> '';
CREATE UNIQUE INDEX function_messages_dedupe ON function_messages (workspace, queue, dedupe) WHERE dedupe IS NOT NULL;
