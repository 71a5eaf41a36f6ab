-- +goose Up
ALTER TABLE sandboxes ADD COLUMN data_disks TEXT NOT NULL DEFAULT '';
