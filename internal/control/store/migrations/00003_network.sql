-- +goose Up
ALTER TABLE sandboxes ADD COLUMN network TEXT NOT NULL DEFAULT '';
