package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Config says where the store is.
type Config struct {
	// DSN is the path of a SQLite file, made with mode 0600 if it is missing, or the address of a
	// PostgreSQL database ("postgres://...").
	DSN string
	// Key encrypts what users keep secret: environments, build specifications, job payloads and metadata whose name
	// begins with SecretPrefix. It has KeyBytes bytes. A store that was written without a key is encrypted by Open; one
	// that was written with another key is refused with a *WrongKeyError. Without a key values are stored as they are.
	Key []byte
	// MakeSpace is called when a Write fails because the file system of a SQLite file is full. If it returns true there
	// is space now, and the Write is tried once more; nil: there never is.
	MakeSpace func() bool
	// Current refuses a store that does not exist or has not the schema of this program, with a *SchemaError for the
	// latter, in place of making or changing it: another process may use the store.
	Current bool
	// Fault is for tests: it is called with the name of each Write before it begins (committed false)
	// and after it is on disk (true), and Write returns its error.
	Fault func(op string, committed bool) error
}

// NewerError says that the store was written by a later version of this program.
type NewerError struct{ Has, Knows int64 }

// Error implements error.
func (e *NewerError) Error() string {
	return fmt.Sprintf("the store has schema version %d and this program knows up to %d: "+
		"start the version of pandastack that wrote it, or a later one", e.Has, e.Knows)
}

// SchemaError says that the store was written by an earlier version of this program.
type SchemaError struct{ Has, Knows int64 }

// Error implements error.
func (e *SchemaError) Error() string {
	return fmt.Sprintf("the store has schema version %d and this program %d: start the node with this version first",
		e.Has, e.Knows)
}

// DB is an open store. Close it after the last use.
type DB struct {
	write, read *bun.DB
	postgres    bool
	makeSpace   func() bool // nil: none can be made
	fault       func(op string, committed bool) error
	id          string
	sealer      *sealer
}

// Open opens a store and brings its schema up to date. One that a later version wrote is refused with a
// *NewerError and left as it is.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	sealer, err := newSealer(cfg.Key)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if cfg.Current {
		if _, err := os.Stat(cfg.DSN); err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
	}
	db, err := connect(cfg)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	db.sealer = sealer
	db.makeSpace = cfg.MakeSpace
	err = db.migrate(ctx, cfg.Current)
	if db.canRetry(err) {
		err = db.migrate(ctx, cfg.Current)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store %s: %w", redactedDSN(cfg.DSN), err), db.Close())
	}
	if err := db.identify(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("store %s: %w", redactedDSN(cfg.DSN), err), db.Close())
	}
	if err := db.sealExisting(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("store %s: %w", redactedDSN(cfg.DSN), err), db.Close())
	}
	db.fault = cfg.Fault
	return db, nil
}

// redactedDSN names a store without what is secret in its address.
func redactedDSN(dsn string) string {
	if u, err := url.Parse(dsn); err == nil && u.Scheme != "" {
		return u.Redacted()
	}
	return dsn
}

func connect(cfg Config) (*DB, error) {
	if strings.HasPrefix(cfg.DSN, "postgres://") || strings.HasPrefix(cfg.DSN, "postgresql://") {
		return connectPostgres(cfg.DSN)
	}
	if cfg.DSN == "" {
		return nil, errors.New("no DSN given: set the path of a file or a postgres:// address")
	}
	return connectSQLite(cfg.DSN)
}

func connectPostgres(dsn string) (*DB, error) {
	pool, err := sql.Open("pgx", dsn)
	if err != nil {
		return nil, err
	}
	pool.SetMaxOpenConns(16)
	pool.SetMaxIdleConns(4)
	db := bun.NewDB(pool, pgdialect.New())
	return &DB{write: db, read: db, postgres: true}, nil
}

// connectSQLite opens one connection that writes and a few that read beside it. A commit waits for the
// disk (synchronous FULL): a lost row would leave its machine without an owner.
func connectSQLite(path string) (*DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	pragmas := "_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)" +
		"&_pragma=foreign_keys(1)&_pragma=temp_store(MEMORY)"
	open := func(conns int, more string) (*sql.DB, error) {
		pool, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+pragmas+more)
		if err != nil {
			return nil, err
		}
		pool.SetMaxOpenConns(conns)
		pool.SetMaxIdleConns(conns)
		return pool, nil
	}
	w, err := open(1, "&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	r, err := open(4, "&_pragma=query_only(1)")
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return &DB{write: bun.NewDB(w, sqlitedialect.New()), read: bun.NewDB(r, sqlitedialect.New())}, nil
}

// Close ends all connections.
func (d *DB) Close() error {
	if d.postgres {
		return d.write.Close()
	}
	return errors.Join(d.read.Close(), d.write.Close())
}

// Shared reports whether other processes may use the store at the same time.
func (d *DB) Shared() bool { return d.postgres }

// ID returns the unique id of this store, which was made with it.
func (d *DB) ID() string { return d.id }

// migrate brings the schema up to date, or with current only checks that it is.
func (d *DB) migrate(ctx context.Context, current bool) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	dialect := goose.DialectSQLite3
	opts := []goose.ProviderOption{goose.WithDisableGlobalRegistry(true)}
	if d.postgres {
		locker, err := lock.NewPostgresSessionLocker()
		if err != nil {
			return err
		}
		dialect, opts = goose.DialectPostgres, append(opts, goose.WithSessionLocker(locker))
	}
	p, err := goose.NewProvider(dialect, d.write.DB, files, opts...)
	if err != nil {
		return err
	}
	has, err := p.GetDBVersion(ctx)
	if err != nil {
		return err
	}
	sources := p.ListSources()
	knows := sources[len(sources)-1].Version
	if has > knows {
		return &NewerError{Has: has, Knows: knows}
	}
	if current && has < knows {
		return &SchemaError{Has: has, Knows: knows}
	}
	_, err = p.Up(ctx)
	return err
}

// Schema returns the schema version that this program brings stores to.
func Schema() (latest int64) {
	list, _ := fs.Glob(migrations, "migrations/*.sql") // the pattern is valid
	for _, name := range list {
		number, _, _ := strings.Cut(filepath.Base(name), "_")
		n, _ := strconv.ParseInt(number, 10, 64) // 0 for what is no migration
		latest = max(latest, n)
	}
	return latest
}
