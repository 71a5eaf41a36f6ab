package store

import (
	"database/sql"

	"github.com/uptrace/bun"
)

// The rest of this file is for packages that have the rows of a subject of their own, such as functionstore.

// DB returns what executes statements of the transaction.
func (t *Tx) DB() bun.IDB { return t.db }

// Seal encrypts a secret value. Place names its table, row and column, with which it must be read.
func (t *Tx) Seal(place, plain string) string { return t.sealer.seal(place, plain) }

// Open decrypts a value that Seal has returned.
func (t *Tx) Open(place, value string) (string, error) { return t.sealer.open(place, value) }

// NotFound turns the library's error for no row into ErrNotFound.
func NotFound(err error, kind, key string) error { return notFound(err, kind, key) }

// Exists turns the engines' errors for a taken key into ErrExists.
func Exists(err error, kind, key string) error { return exists(err, kind, key) }

// Changed returns ErrNotFound if a statement changed no row.
func Changed(res sql.Result, err error, kind, key string) error { return changed(res, err, kind, key) }
