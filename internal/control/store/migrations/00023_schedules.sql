-- +goose Up
CREATE TABLE schedules (
  id           TEXT PRIMARY KEY,
  workspace    TEXT NOT NULL,
  name         TEXT NOT NULL,
  cron         TEXT NOT NULL,
  target       TEXT NOT NULL,    -- JSON, encrypted
  options      TEXT NOT NULL,    -- JSON
  secret       TEXT NOT NULL,    -- signs requests, encrypted
  paused       BOOLEAN NOT NULL,
  next         BIGINT NOT NULL,  -- the moment of the next run; 0: never
  created      BIGINT NOT NULL,
  changed      BIGINT NOT NULL
);
CREATE UNIQUE INDEX schedules_name ON schedules (workspace, name);
CREATE INDEX schedules_next ON schedules (next) WHERE next > 0;

CREATE TABLE schedule_runs (
  id           TEXT PRIMARY KEY,
  schedule     TEXT NOT NULL,
  workspace    TEXT NOT NULL,
  moment       BIGINT NOT NULL,  -- of the schedule that it is for
  manual       BOOLEAN NOT NULL,
  state        TEXT NOT NULL,
  waiting      BOOLEAN NOT NULL, -- until another run of the schedule has ended
  attempt      INTEGER NOT NULL,
  sandbox      TEXT NOT NULL,
  exit_code    INTEGER,
  stdout       TEXT NOT NULL,    -- encrypted
  stderr       TEXT NOT NULL,    -- encrypted
  error        TEXT NOT NULL,
  created      BIGINT NOT NULL,
  started      BIGINT NOT NULL,
  ended        BIGINT NOT NULL
);
CREATE UNIQUE INDEX schedule_runs_moment ON schedule_runs (schedule, moment) WHERE NOT manual;
CREATE INDEX schedule_runs_created ON schedule_runs (schedule, created);
