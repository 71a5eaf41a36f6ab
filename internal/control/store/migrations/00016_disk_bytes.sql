-- +goose Up
ALTER TABLE sandboxes ADD COLUMN disk_bytes BIGINT NOT NULL DEFAULT 0; -- that its disks take, as its host measured last
