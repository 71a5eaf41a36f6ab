package store

import (
	"errors"

	"modernc.org/sqlite"
)

// SQLite's result codes for a file system without space. The first is for its files; a full one may also fail to grow
// the shared memory of readers, or to make a file.
const (
	fullSQLite     = 13
	ioErrorSQLite  = 10
	cantOpenSQLite = 14
)

// canRetry reports whether err may come from a full file system and there is space now.
func (d *DB) canRetry(err error) bool {
	if err == nil || d.makeSpace == nil {
		return false
	}
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return false
	}
	switch e.Code() & 0xff {
	case fullSQLite, ioErrorSQLite, cantOpenSQLite:
		return d.makeSpace()
	}
	return false
}
