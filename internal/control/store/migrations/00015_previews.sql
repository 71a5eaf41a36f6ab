-- +goose Up
CREATE TABLE previews (
    id        TEXT PRIMARY KEY, -- a hash of the token, which is not stored
    workspace TEXT NOT NULL,
    sandbox   TEXT NOT NULL,
    port      BIGINT NOT NULL, -- 0: the previews of the sandbox that have no rows
    paths     TEXT NOT NULL,   -- prefixes, joined by commas; '': all paths
    key       TEXT NOT NULL,   -- prefix of the key that made it
    created   BIGINT NOT NULL,
    expires   BIGINT NOT NULL,
    revoked   BIGINT NOT NULL  -- 0: it was not
);
CREATE INDEX previews_by_sandbox ON previews (sandbox, created);
CREATE INDEX previews_by_expiry ON previews (expires);
