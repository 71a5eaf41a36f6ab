package blobtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/lib/blob"
)

// MemoryStore is a store in memory. Tests can make its objects older.
type MemoryStore struct {
	mu      sync.Mutex
	objects map[string]memObject // guarded by mu

}

type memObject struct {
	data []byte
	at   time.Time
}

// NewMemory makes a store in memory. It does not check keys.
func NewMemory() *MemoryStore { return &MemoryStore{objects: map[string]memObject{}} }

// Age makes everything in the store older.
func (m *MemoryStore) Age(by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, o := range m.objects {
		o.at = o.at.Add(-by)
		m.objects[key] = o
	}
}

// Get implements blob.Store.
func (m *MemoryStore) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	m.mu.Lock()
	o, ok := m.objects[key]
	m.mu.Unlock()
	size := int64(len(o.data))
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case !ok:
		return nil, &blob.Error{Op: "get", Key: key, Err: blob.ErrNotFound}
	case offset < 0 || offset > size:
		return nil, &blob.Error{Op: "get", Key: key, Err: errors.New("offset is beyond the object's end")}
	case length < 0 || length > size-offset:
		length = size - offset
	}
	return io.NopCloser(bytes.NewReader(o.data[offset : offset+length])), nil
}

// Put implements blob.Store.
func (m *MemoryStore) Put(ctx context.Context, key string, r io.Reader, size int64) error {
	return m.put(ctx, key, r, size, false)
}

// PutIfAbsent implements blob.Store.
func (m *MemoryStore) PutIfAbsent(ctx context.Context, key string, r io.Reader, size int64) error {
	return m.put(ctx, key, r, size, true)
}

func (m *MemoryStore) put(ctx context.Context, key string, r io.Reader, size int64, absent bool) error {
	data, err := io.ReadAll(r)
	if err == nil && int64(len(data)) != size {
		err = errors.New("the content does not have the announced size")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.objects[key]; ok && absent && err == nil {
		err = blob.ErrExists
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return &blob.Error{Op: "put", Key: key, Err: err}
	}
	m.objects[key] = memObject{data, time.Now()}
	return nil
}

// Stat implements blob.Store.
func (m *MemoryStore) Stat(_ context.Context, key string) (blob.Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.objects[key]
	if !ok {
		return blob.Info{}, &blob.Error{Op: "stat", Key: key, Err: blob.ErrNotFound}
	}
	return blob.Info{Key: key, Bytes: int64(len(o.data)), Modified: o.at}, nil
}

// List implements blob.Store.
func (m *MemoryStore) List(ctx context.Context, prefix string, yield func(blob.Info) error) error {
	m.mu.Lock()
	keys := slices.Sorted(maps.Keys(m.objects))
	m.mu.Unlock()
	for _, key := range keys {
		info, err := m.Stat(ctx, key)
		if err != nil || !strings.HasPrefix(key, prefix) {
			continue // deleted meanwhile
		}
		if err := yield(info); err != nil {
			return err
		}
	}
	return nil
}

// Delete implements blob.Store.
func (m *MemoryStore) Delete(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, key)
	return nil
}

// Close implements blob.Store.
func (m *MemoryStore) Close() error { return nil }
