// Package blob keeps objects under keys: in a directory, or in a bucket of S3, Google Cloud Storage or Azure.
//
// It owns how each service is reached, how long a call may take and what its errors mean. It does not
// know what an object holds. Every store passes the suite in blobtest.
//
// Objects are immutable by convention: whoever writes a key twice writes the same content. A reader sees
// an object whole or not at all, also while it is written. After Put returned nil the object is stored
// for good.
//
// All methods of a Store may be called at once.
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
	// closes the reader. A range that reaches beyond the end gives what there is; one that begins beyond
	// the end is an error. ErrNotFound: there is no such object.
	Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error)
	// Put stores size bytes of r under key, over what was there.
	Put(ctx context.Context, key string, r io.Reader, size int64) error
	// PutIfAbsent is Put when there is no such object, and else answers ErrExists. Of several at once one
	// succeeds.
	PutIfAbsent(ctx context.Context, key string, r io.Reader, size int64) error
	Stat(ctx context.Context, key string) (Info, error)
	// List calls yield for every object whose key begins with prefix, in the order of keys, until yield
	// answers an error, which it returns.
	List(ctx context.Context, prefix string, yield func(Info) error) error
	// Delete removes an object; one that is not there is fine.
	Delete(ctx context.Context, key string) error
	Close() error
}

// Info tells of an object.
type Info struct {
	Key      string
	Bytes    int64
	Modified time.Time // by the store's clock
}

// What a Store answers, compared with errors.Is; the wrapping *Error says of what.
var (
	ErrNotFound = errors.New("no such object")
	ErrExists   = errors.New("object exists already")
	ErrNoSpace  = errors.New("the object store is full")
	ErrDenied   = errors.New("the object store denies access")
	ErrTimeout  = errors.New("the object store did not answer in time")
	ErrKey      = errors.New("not a key of an object")
)

// Error says which operation on which object failed.
type Error struct {
	Op  string // "get", "put", "stat", "list", "delete"
	Key string // or prefix
	Err error
}

func (e *Error) Error() string { return fmt.Sprintf("object store: %s %s: %v", e.Op, e.Key, e.Err) }

func (e *Error) Unwrap() error { return e.Err }
