package nodebackup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
)

// copyDatabase writes a SQLite database, which may be in use, to a new file with mode 0600. The copy is complete, of
// one moment, and has no journal. What is encrypted in it stays encrypted. copyDatabase returns its schema version.
func copyDatabase(ctx context.Context, path, to string) (schema int64, err error) {
	if path, err = filepath.Abs(path); err != nil {
		return 0, err
	}
	if _, err := os.Stat(path); err != nil {
		return 0, fmt.Errorf("database: %w", err)
	}
	name := "file:" + (&url.URL{Path: path}).EscapedPath() + "?mode=rw&_pragma=busy_timeout(10000)"
	db, err := sql.Open("sqlite", name)
	if err != nil {
		return 0, fmt.Errorf("database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err != nil {
		return 0, fmt.Errorf("copy database: %w", err)
	} else if err := f.Close(); err != nil {
		return 0, fmt.Errorf("copy database: %w", err)
	}
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", to); err != nil {
		return 0, errors.Join(fmt.Errorf("copy database %s: %w", path, err), os.Remove(to))
	}
	row := db.QueryRowContext(ctx, "SELECT max(version_id) FROM goose_db_version WHERE is_applied")
	if err := row.Scan(&schema); err != nil {
		return 0, errors.Join(fmt.Errorf("copy database %s: schema version: %w", path, err), os.Remove(to))
	}
	return schema, nil
}
