package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/uptrace/bun"
	"modernc.org/sqlite"
)

// Tx reads and writes rows.
type Tx struct {
	db       bun.IDB
	postgres bool
	sealer   *sealer
}

// Write runs f in one transaction, which has no effect if f or the commit returns an error.
//
// op names it for the tests that fail it. f must use only tx, and must not keep it. On a full disk f may be called
// twice, of which the first call had no effect.
func (d *DB) Write(ctx context.Context, op string, f func(ctx context.Context, tx *Tx) error) error {
	if d.fault != nil {
		if err := d.fault(op, false); err != nil {
			return err
		}
	}
	run := func() error {
		return d.write.RunInTx(ctx, &sql.TxOptions{}, func(ctx context.Context, tx bun.Tx) error {
			return f(ctx, &Tx{db: tx, postgres: d.postgres, sealer: d.sealer})
		})
	}
	err := run()
	if d.canRetry(err) {
		err = run()
	}
	if err != nil {
		return err
	}
	if d.fault != nil {
		return d.fault(op, true)
	}
	return nil
}

// Read returns a Tx for reading. Its statements may see different states of the store.
func (d *DB) Read() *Tx { return &Tx{db: d.read, postgres: d.postgres, sealer: d.sealer} }

// identify reads or makes the name of the store.
func (d *DB) identify(ctx context.Context) error {
	return d.Write(ctx, "identify", func(ctx context.Context, tx *Tx) error {
		row := setting{Name: "store", Value: strings.ToLower(rand.Text())}
		if _, err := tx.db.NewInsert().Model(&row).On("CONFLICT (name) DO NOTHING").Exec(ctx); err != nil {
			return err
		}
		if err := tx.db.NewSelect().Model(&row).WherePK().Scan(ctx); err != nil {
			return err
		}
		d.id = row.Value
		return nil
	})
}

type setting struct {
	bun.BaseModel `bun:"table:settings"`
	Name          string `bun:"name,pk"`
	Value         string `bun:"value"`
}

// Setting reads a value by name; ErrNotFound if it was never put.
func (t *Tx) Setting(ctx context.Context, name string) (string, error) {
	row := setting{Name: name}
	err := t.db.NewSelect().Model(&row).WherePK().Scan(ctx)
	return row.Value, notFound(err, "setting", name)
}

// PutSetting writes a value under a name.
func (t *Tx) PutSetting(ctx context.Context, name, value string) error {
	_, err := t.db.NewInsert().Model(&setting{Name: name, Value: value}).
		On("CONFLICT (name) DO UPDATE").Set("value = EXCLUDED.value").Exec(ctx)
	return err
}

// Pairs is a map that is stored as JSON text.
type Pairs map[string]string

// Value implements driver.Valuer.
func (p Pairs) Value() (driver.Value, error) {
	if len(p) == 0 {
		return "{}", nil
	}
	if value, ok := p[sealedPairs]; ok {
		return value, nil
	}
	data, err := json.Marshal(map[string]string(p))
	return string(data), err
}

// Scan implements sql.Scanner.
func (p *Pairs) Scan(src any) error {
	*p = nil
	text, err := text(src)
	if err != nil || text == "" || text == "{}" {
		return err
	}
	if strings.HasPrefix(text, sealedPrefix) {
		*p = Pairs{sealedPairs: text}
		return nil
	}
	return json.Unmarshal([]byte(text), (*map[string]string)(p))
}

func text(src any) (string, error) {
	switch v := src.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case []byte:
		return string(v), nil
	}
	return "", fmt.Errorf("text expected, not %T", src)
}

// notFound turns the library's error for no row into ErrNotFound.
func notFound(err error, kind, key string) error {
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("%s %s: %w", kind, key, ErrNotFound)
	}
	return err
}

// uniqueSQLite are SQLite's extended result codes for a primary key and a unique index that hold.
const (
	uniqueSQLitePrimary = 1555
	uniqueSQLiteIndex   = 2067
	uniquePostgres      = "23505"
)

// exists turns the engines' errors for a taken key into ErrExists.
func exists(err error, kind, key string) error {
	if e, ok := errors.AsType[*sqlite.Error](err); ok &&
		(e.Code() == uniqueSQLitePrimary || e.Code() == uniqueSQLiteIndex) {
		return fmt.Errorf("%s %s: %w", kind, key, ErrExists)
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == uniquePostgres {
		return fmt.Errorf("%s %s: %w", kind, key, ErrExists)
	}
	return err
}

// changed returns ErrNotFound if a statement changed no row.
func changed(res sql.Result, err error, kind, key string) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		err = fmt.Errorf("%s %s: %w", kind, key, ErrNotFound)
	}
	return err
}
