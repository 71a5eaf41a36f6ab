// Package store keeps the rows of the control plane, in SQLite or in PostgreSQL.
//
// It owns the schema and the queries, and does not know what rows mean: no state table, no quota, no clock. Both
// engines behave alike; storetest tests them with the same suite.
//
// Work is done through Write, which is one transaction, and Read, which is none. On SQLite there is one
// writer at a time and every commit is on disk before Write returns. Times are microseconds since 1970,
// 0 for none (Micros, Time). A missing row is ErrNotFound.
//
// A DB may be used by many goroutines, a Tx only by the function that received it.
package store

import (
	"errors"
	"time"
)

// ErrNotFound says that a row does not exist.
var ErrNotFound = errors.New("no such row")

// ErrExists says that a row with this key exists already.
var ErrExists = errors.New("row exists already")

// Micros returns t as it is stored: microseconds since 1970, 0 for the zero time.
func Micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// Time returns the time that Micros stored, in UTC.
func Time(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros).UTC()
}
