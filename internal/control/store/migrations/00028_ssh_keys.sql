-- +goose Up
CREATE TABLE ssh_keys (
  id           TEXT PRIMARY KEY,
  workspace    TEXT NOT NULL,
  fingerprint  TEXT NOT NULL,    -- as of ssh-keygen -l: SHA256:...
  public       TEXT NOT NULL,    -- as in a file of authorized keys, without the comment
  label        TEXT NOT NULL,
  key          TEXT NOT NULL,    -- prefix of the API key whose rights it has
  created      BIGINT NOT NULL,
  used         BIGINT NOT NULL   -- 0: never
);
CREATE UNIQUE INDEX ssh_keys_by_workspace ON ssh_keys (workspace, fingerprint);
CREATE INDEX ssh_keys_by_fingerprint ON ssh_keys (fingerprint);
CREATE INDEX ssh_keys_by_key ON ssh_keys (key);
