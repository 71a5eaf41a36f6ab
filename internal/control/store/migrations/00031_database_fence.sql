-- +goose Up
ALTER TABLE database_backups ADD COLUMN fence BIGINT NOT NULL DEFAULT 0; -- fencing number with which this node has the database
