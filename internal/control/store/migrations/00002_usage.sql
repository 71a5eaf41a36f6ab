-- +goose Up
ALTER TABLE tombstones ADD COLUMN usage TEXT NOT NULL DEFAULT '';
