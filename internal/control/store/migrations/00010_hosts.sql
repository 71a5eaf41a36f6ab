-- +goose Up
ALTER TABLE sandboxes ADD COLUMN host TEXT NOT NULL DEFAULT '';     -- that has the machine; '': not known
ALTER TABLE sandboxes ADD COLUMN owned_by TEXT NOT NULL DEFAULT ''; -- kind/id of the service's object that it works for
ALTER TABLE snapshots ADD COLUMN host TEXT NOT NULL DEFAULT '';     -- that has it; '': not known
