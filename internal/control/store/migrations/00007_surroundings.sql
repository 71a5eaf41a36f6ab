-- +goose Up
ALTER TABLE sandboxes ADD COLUMN surroundings TEXT NOT NULL DEFAULT '';
ALTER TABLE snapshots ADD COLUMN surroundings TEXT NOT NULL DEFAULT '';
