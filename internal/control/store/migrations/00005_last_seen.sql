-- +goose Up
ALTER TABLE sandboxes ADD COLUMN last_processes TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN last_console TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN last_usage TEXT NOT NULL DEFAULT '';
