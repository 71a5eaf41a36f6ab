-- +goose Up
ALTER TABLE databases ADD COLUMN schema_only BOOLEAN NOT NULL DEFAULT FALSE; -- a branch without rows
