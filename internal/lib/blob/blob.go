// Package blob keeps objects under keys: in a directory, or in a bucket of S3, Google Cloud Storage or Azure.
//
// It owns the access to each service, the time limits of calls and the meaning of errors. It does not know
// what an object holds. Every store passes the suite in package blobsuite.
//
// Objects are immutable by convention: all writers of a key write the same content. A reader sees a complete
// object or none, also while the object is written. After Put has returned nil the object is durable.
//
// All methods of a Store may be called concurrently.
package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Store is a set of objects. Keys are 1 to 512 bytes of lower-case letters, digits, '-', '_', '.' and '/',
// with no empty, "." or ".." part between slashes.
type Store interface {
	// Get reads length bytes of an object from offset on; a negative length reads to its end. The caller
	// closes the reader. A range that reaches beyond the end of the object is cut there; one that begins
	// beyond the end is an error. Get returns ErrNotFound if the object does not exist.
	Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error)
	// Put stores size bytes of r under key and replaces an existing object.
	Put(ctx context.Context, key string, r io.Reader, size int64) error
	// PutIfAbsent is Put for a new object. It returns ErrExists if the object exists. Of several concurrent
	// calls one succeeds.
	PutIfAbsent(ctx context.Context, key string, r io.Reader, size int64) error
	// Stat describes an object. It returns ErrNotFound if the object does not exist.
	Stat(ctx context.Context, key string) (Info, error)
	// List calls yield for every object whose key begins with prefix, in the order of keys. It stops at the
	// first error of yield and returns it.
	List(ctx context.Context, prefix string, yield func(Info) error) error
	// Delete removes an object. It returns nil if the object does not exist.
	Delete(ctx context.Context, key string) error
	Close() error
}

// Info describes an object.
type Info struct {
	Key      string
	Bytes    int64
	Modified time.Time // by the store's clock
}

// Errors of a Store, to be compared with errors.Is. The *Error that wraps them names the operation and the
// key.
var (
	ErrNotFound = errors.New("no such object")
	ErrExists   = errors.New("object already exists")
	ErrNoSpace  = errors.New("the object store is full")
	ErrDenied   = errors.New("the object store denies access")
	ErrTimeout  = errors.New("the object store did not respond in time")
	ErrKey      = errors.New("invalid object key")
)

// Error is the failure of an operation on an object.
type Error struct {
	Op  string // "get", "put", "stat", "list", "delete"
	Key string // or prefix
	Err error
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("object store: %s %s: %v", e.Op, e.Key, e.Err) }

// Unwrap returns the cause, such as ErrNotFound.
func (e *Error) Unwrap() error { return e.Err }
