-- +goose Up
ALTER TABLE snapshots ADD COLUMN owned_by TEXT NOT NULL DEFAULT '';         -- the service's object that it belongs to
ALTER TABLE app_deployments ADD COLUMN attempts BIGINT NOT NULL DEFAULT 0;  -- by processes that ended in one
-- hash of what linked databases added to its environment; '': nothing
ALTER TABLE app_deployments ADD COLUMN linked TEXT NOT NULL DEFAULT '';
