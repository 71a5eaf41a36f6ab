package chunkstore_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

// fixture is an object store with selectable faults, and a host's chunk store and cache on top.
type fixture struct {
	t       *testing.T
	objects *blobtest.Faulty
	ring    *keyring.Keyring
	store   *chunkstore.Store
	cache   *cache.Cache
}

// quickRetries has delays that are short enough for a test.
var quickRetries = chunkstore.Config{RetryDelay: time.Millisecond, ReadTimeout: 200 * time.Millisecond}

func newFixture(t *testing.T, cfg chunkstore.Config) *fixture {
	t.Helper()
	f := &fixture{t: t, objects: blobtest.NewFaulty(blobtest.NewMemory(), nil)}
	f.ring = ring(t, 1)
	f.store = f.newStore(f.ring, cfg)
	f.cache = newCache(t, cache.Config{})
	return f
}

func ring(t *testing.T, seed byte) *keyring.Keyring {
	t.Helper()
	r, err := keyring.New(bytes.Repeat([]byte{seed}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (f *fixture) newStore(r *keyring.Keyring, cfg chunkstore.Config) *chunkstore.Store {
	f.t.Helper()
	s, err := chunkstore.New(f.objects, r, cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = s.Close() })
	return s
}

func newCache(t *testing.T, cfg cache.Config) *cache.Cache {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(t.TempDir(), "cache")
	}
	c, err := cache.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// file writes a file and returns its path.
func file(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// content returns n bytes that do not compress. About a quarter of them, in runs of some pages, are zero.
func content(seed uint64, n int) []byte {
	data := blobtest.Content(seed, n)
	for page := 0; page*chunkstore.PageSize < n; page++ {
		if (uint64(page)/7+seed)%4 == 0 {
			clear(data[page*chunkstore.PageSize : min(n, (page+1)*chunkstore.PageSize)])
		}
	}
	return data
}

func (f *fixture) push(in chunkstore.Push) (*chunkstore.Manifest, chunkstore.PushStats) {
	f.t.Helper()
	m, stats, err := f.store.Push(f.t.Context(), in)
	if err != nil {
		f.t.Fatal(err)
	}
	return m, stats
}

// pushMemory pushes data as the file "memory".
func (f *fixture) pushMemory(tenant chunkstore.Tenant, id chunkstore.ID, data []byte) *chunkstore.Manifest {
	f.t.Helper()
	m, _ := f.push(
		chunkstore.Push{Tenant: tenant, ID: id, Files: []chunkstore.LocalFile{{Name: "memory", Path: file(f.t, data)}}},
	)
	return m
}

func (f *fixture) open(tenant chunkstore.Tenant, id chunkstore.ID) *chunkstore.Manifest {
	f.t.Helper()
	m, err := f.store.Open(f.t.Context(), tenant, id)
	if err != nil {
		f.t.Fatal(err)
	}
	return m
}

// wantFile compares a file with data: read in pieces and at once, through a cache and by a pull.
func (f *fixture) wantFile(m *chunkstore.Manifest, name string, data []byte) {
	f.t.Helper()
	r := f.store.Reader(m, f.cache)
	if n, ok := r.Size(name); !ok || n != int64(len(data)) {
		f.t.Fatalf("Size(%q) = %d, %v; want %d", name, n, ok, len(data))
	}
	for _, step := range []int{100_001, 4096, len(data)} {
		if step == 0 {
			continue
		}
		for off := 0; off < len(data); off += step {
			p := make([]byte, min(step, len(data)-off))
			if err := r.ReadAt(f.t.Context(), name, p, int64(off)); err != nil {
				f.t.Fatal(err)
			}
			if !bytes.Equal(p, data[off:off+len(p)]) {
				f.t.Fatalf("%s: %d bytes at %d: got other content than was pushed", name, len(p), off)
			}
		}
	}
	dir := f.t.TempDir()
	if _, err := r.Pull(f.t.Context(), dir, nil, nil); err != nil {
		f.t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || !bytes.Equal(got, data) {
		f.t.Fatalf("pulled %s: %d bytes, %v; want the %d bytes that were pushed", name, len(got), err, len(data))
	}
}
