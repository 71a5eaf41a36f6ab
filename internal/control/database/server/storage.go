package server

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Storage is how much of its disk a server uses.
type Storage struct {
	Bytes    int64 // of databases and of the log
	ReadOnly bool  // sessions cannot write unless they ask for it: SetReadOnly
}

const measure = "SELECT (SELECT pg_catalog.sum(pg_catalog.pg_database_size(oid)) FROM pg_catalog.pg_database)" +
	"::bigint + (SELECT coalesce(pg_catalog.sum(size), 0) FROM pg_catalog.pg_ls_waldir())::bigint, " +
	"coalesce((SELECT setting = 'on' FROM pg_catalog.pg_file_settings " +
	"WHERE name = 'default_transaction_read_only' AND applied), false)"

// ReadStorage measures the storage of a server.
func ReadStorage(ctx context.Context, conn *pgx.Conn) (s Storage, err error) {
	err = conn.QueryRow(ctx, measure).Scan(&s.Bytes, &s.ReadOnly)
	if err != nil {
		return s, fmt.Errorf("measure the storage: %w", err)
	}
	return s, nil
}

// SetReadOnly makes transactions read-only, or ends that.
//
// A session writes nevertheless if it sets default_transaction_read_only to off.
func SetReadOnly(ctx context.Context, conn *pgx.Conn, on bool) error {
	statement := "ALTER SYSTEM RESET default_transaction_read_only"
	if on {
		statement = "ALTER SYSTEM SET default_transaction_read_only = on"
	}
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("make the server read-only or writable: %w", err)
	}
	if _, err := conn.Exec(ctx, "SELECT pg_catalog.pg_reload_conf()"); err != nil {
		return fmt.Errorf("reload the configuration: %w", err)
	}
	return nil
}
