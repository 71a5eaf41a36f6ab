// Package blobtest has object stores for tests and benchmarks: in memory, slow, full, failing or corrupt.
//
// The stores know each other only by the interface blob.Store, and may be used by many goroutines at once.
// The shipped program uses them in its benchmark, so the package does not import testing.
package blobtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"

	"github.com/pandastack/pandastack/internal/lib/blob"
)

// TB is the part of testing.TB that the helpers need.
type TB interface {
	Helper()
	Context() context.Context
	Fatal(args ...any)
}

// Content returns n bytes that do not compress and differ for each seed.
func Content(seed uint64, n int) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	data := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(data) // never fails
	return data
}

// Put stores data under key.
func Put(t TB, s blob.Store, key string, data []byte) {
	t.Helper()
	if err := s.Put(t.Context(), key, bytes.NewReader(data), int64(len(data))); err != nil {
		t.Fatal(err)
	}
}

// Get reads a range of an object.
func Get(ctx context.Context, s blob.Store, key string, offset, length int64) ([]byte, error) {
	r, err := s.Get(ctx, key, offset, length)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	return data, errors.Join(err, r.Close())
}

// Keys lists the keys in a store.
func Keys(t TB, s blob.Store, prefix string) []string {
	t.Helper()
	var all []string
	err := s.List(t.Context(), prefix, func(i blob.Info) error {
		all = append(all, i.Key)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
