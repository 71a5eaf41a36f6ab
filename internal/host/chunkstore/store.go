package chunkstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

// Config configures a Store. The zero value has working defaults.
type Config struct {
	// Parallel bounds the concurrent requests of one Push, Pull or Prefetch; default 16.
	Parallel int
	// Attempts is how often a request is made before its error is returned; default 3.
	Attempts int
	// RetryDelay is the pause before the second attempt; it doubles with each attempt; default 50 ms.
	RetryDelay time.Duration
	// ReadTimeout bounds every attempt to read a part of a chunk; default 15 s.
	ReadTimeout time.Duration
	// Grace is how long garbage is kept; default 72 h. A push may take half of that, and a machine may read
	// from a deleted manifest for that long.
	Grace time.Duration
	Log   *slog.Logger // may be nil
}

// Store keeps files in an object store. Close it when it is not used any more.
type Store struct {
	cfg     Config
	objects blob.Store
	ring    *keyring.Keyring
	codec   codec
	hedge   hedge // of parts of chunks
	buffers bufferPool
	log     *slog.Logger
}

// New makes a Store over an object store, which stays the caller's.
func New(store blob.Store, ring *keyring.Keyring, cfg Config) (*Store, error) {
	c, err := newCodec()
	if err != nil {
		return nil, fmt.Errorf("create chunk store: %w", err)
	}
	cfg.Parallel = cmp.Or(cfg.Parallel, 16)
	cfg.Attempts = cmp.Or(cfg.Attempts, 3)
	cfg.RetryDelay = cmp.Or(cfg.RetryDelay, 50*time.Millisecond)
	cfg.ReadTimeout = cmp.Or(cfg.ReadTimeout, 15*time.Second)
	cfg.Grace = cmp.Or(cfg.Grace, 72*time.Hour)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Store{cfg: cfg, objects: store, ring: ring, codec: c, log: cfg.Log}, nil
}

// Close frees the memory of the codec.
func (s *Store) Close() error {
	s.codec.close()
	return nil
}

func (s *Store) keys(tenant Tenant) *keys { return newKeys(s.ring, tagOf(s.ring, tenant)) }

// isPermanent reports whether a retry cannot help against an error.
func isPermanent(err error) bool {
	for _, e := range []error{blob.ErrNotFound, blob.ErrExists, blob.ErrNoSpace, blob.ErrDenied, blob.ErrKey} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// retry calls do until it succeeds, fails permanently, or has used all attempts.
func (s *Store) retry(ctx context.Context, do func(context.Context) error) error {
	pause := s.cfg.RetryDelay
	for n := 1; ; n++ {
		err := do(ctx)
		if err == nil || n == s.cfg.Attempts || isPermanent(err) || ctx.Err() != nil {
			return err
		}
		s.log.Debug("request to the object store retried", "attempt", n, "err", err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(err, context.Cause(ctx))
		}
		pause *= 2
	}
}

// getRange reads exactly length bytes of an object from offset into a pooled buffer.
func (s *Store) getRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	r, err := s.objects.Get(ctx, key, offset, length)
	if err != nil {
		return nil, err
	}
	data := s.buffers.get(int(length))[:length]
	n, err := io.ReadFull(r, data)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = &DamagedError{key, fmt.Sprintf("the store returned %d of %d bytes", n, length)}
	}
	return data, errors.Join(err, r.Close())
}

// typicalManifest is a size in bytes that most manifests stay below. The first buffer for a manifest has it.
const typicalManifest = 128 << 10

// getAll reads an object of at most limit bytes.
func (s *Store) getAll(ctx context.Context, key string, limit int64) ([]byte, error) {
	r, err := s.objects.Get(ctx, key, 0, -1)
	if err != nil {
		return nil, err
	}
	data := bytes.NewBuffer(make([]byte, 0, typicalManifest))
	_, err = data.ReadFrom(io.LimitReader(r, limit+1))
	if err == nil && int64(data.Len()) > limit {
		err = &DamagedError{key, fmt.Sprintf("object is larger than %d bytes", limit)}
	}
	return data.Bytes(), errors.Join(err, r.Close())
}

// Open reads a manifest and verifies it. It returns ErrNotFound, ErrWrongTenant, ErrVersion, ErrTampered, or
// the store's error.
func (s *Store) Open(ctx context.Context, tenant Tenant, id ID) (*Manifest, error) {
	r := s.keys(tenant).own
	m, err := s.load(ctx, &r, id, r.manifestKey(id))
	if err != nil {
		return nil, fmt.Errorf("open manifest %s: %w", id, err)
	}
	m.Tenant = tenant
	return m, nil
}

// load reads and verifies the manifest with the given id at key.
func (s *Store) load(ctx context.Context, r *tenantKeys, id ID, key string) (*Manifest, error) {
	if err := id.check(); err != nil {
		return nil, err
	}
	var m *Manifest
	err := s.retry(ctx, func(ctx context.Context) error {
		data, err := s.getAll(ctx, key, maxManifest)
		if err == nil {
			m, err = parse(s.codec, r, id, data)
		}
		return err
	})
	if errors.Is(err, blob.ErrNotFound) {
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return m, err
}

// Exists reports whether a manifest exists, without reading it.
func (s *Store) Exists(ctx context.Context, tenant Tenant, id ID) (bool, error) {
	r := s.keys(tenant).own
	_, err := s.objects.Stat(ctx, r.manifestKey(id))
	if errors.Is(err, blob.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// List returns the ids of all manifests of a tenant, in order, without reading any.
func (s *Store) List(ctx context.Context, tenant Tenant) ([]ID, error) {
	prefix := s.keys(tenant).own.manifestKey("")
	var all []ID
	err := s.retry(ctx, func(ctx context.Context) error {
		all = nil
		return s.objects.List(ctx, prefix, func(i blob.Info) error {
			if id := ID(strings.TrimPrefix(i.Key, prefix)); id.check() == nil {
				all = append(all, id)
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list manifests: %w", err)
	}
	return all, nil
}

// put stores data under key.
func (s *Store) put(ctx context.Context, key string, data []byte) error {
	return s.retry(ctx, func(ctx context.Context) error {
		return s.objects.Put(ctx, key, bytes.NewReader(data), int64(len(data)))
	})
}

// workers returns how many processors one operation may use.
func (s *Store) workers() int { return max(2, runtime.GOMAXPROCS(0)) }
