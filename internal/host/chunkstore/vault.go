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
	"time"

	"github.com/pandastack/pandastack/internal/host/blob"
)

// Config of a Vault. The zero value is right.
type Config struct {
	// Parallel bounds requests that one Push, Pull or Prefetch has under way; default 16.
	Parallel int
	// Attempts is how often a request is made before its failure is told; default 3.
	Attempts int
	// Pause is before the second attempt, and doubles with each; default 50 ms.
	Pause time.Duration
	// Patience bounds every attempt to read a part of a chunk; default 15 s.
	Patience time.Duration
	// Grace is for how long something is kept that nobody needs any more; default 72 h. A push may take
	// half of that, and a machine that reads from the store may read a deleted manifest for so long.
	Grace time.Duration
	Log   *slog.Logger // may be nil
}

// Vault keeps files in an object store. Close it when nothing of it is in use any more.
type Vault struct {
	cfg   Config
	store blob.Store
	ring  *Keyring
	codec codec
	reads hedge // of parts of chunks
	loans loans
	log   *slog.Logger
}

// New makes a vault over a store, which stays the caller's.
func New(store blob.Store, ring *Keyring, cfg Config) (*Vault, error) {
	c, err := newCodec()
	if err != nil {
		return nil, fmt.Errorf("chunk: %w", err)
	}
	cfg.Parallel = cmp.Or(cfg.Parallel, 16)
	cfg.Attempts = cmp.Or(cfg.Attempts, 3)
	cfg.Pause = cmp.Or(cfg.Pause, 50*time.Millisecond)
	cfg.Patience = cmp.Or(cfg.Patience, 15*time.Second)
	cfg.Grace = cmp.Or(cfg.Grace, 72*time.Hour)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Vault{cfg: cfg, store: store, ring: ring, codec: c, log: cfg.Log}, nil
}

// Close frees what the vault keeps in memory.
func (v *Vault) Close() error {
	v.codec.close()
	return nil
}

func (v *Vault) keys(s Space) *keys { return v.ring.keys(v.ring.tag(s)) }

// final tells of an error that asking again does not mend.
func final(err error) bool {
	for _, e := range []error{blob.ErrNotFound, blob.ErrExists, blob.ErrNoSpace, blob.ErrDenied, blob.ErrKey} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// again calls do until it succeeds, fails for good, or has failed as often as is allowed.
func (v *Vault) again(ctx context.Context, do func(context.Context) error) error {
	pause := v.cfg.Pause
	for n := 1; ; n++ {
		err := do(ctx)
		if err == nil || n == v.cfg.Attempts || final(err) || ctx.Err() != nil {
			return err
		}
		v.log.Debug("object store asked again", "attempt", n, "err", err)
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

// get reads length bytes of an object from offset, exactly, into memory that was lent.
func (v *Vault) get(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	r, err := v.store.Get(ctx, key, offset, length)
	if err != nil {
		return nil, err
	}
	data := v.loans.lend(int(length))[:length]
	n, err := io.ReadFull(r, data)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = &DamagedError{key, fmt.Sprintf("the store gave %d bytes of %d", n, length)}
	}
	return data, errors.Join(err, r.Close())
}

// usualManifest is what most manifests fit into, in bytes: they are read in large pieces.
const usualManifest = 128 << 10

// getAll reads a whole object of no more than limit bytes.
func (v *Vault) getAll(ctx context.Context, key string, limit int64) ([]byte, error) {
	r, err := v.store.Get(ctx, key, 0, -1)
	if err != nil {
		return nil, err
	}
	data := bytes.NewBuffer(make([]byte, 0, usualManifest))
	_, err = data.ReadFrom(io.LimitReader(r, limit+1))
	if err == nil && int64(data.Len()) > limit {
		err = &DamagedError{key, fmt.Sprintf("it is larger than %d bytes", limit)}
	}
	return data.Bytes(), errors.Join(err, r.Close())
}

// Open reads a manifest and verifies it. It answers ErrNotFound, ErrWorkspace, ErrVersion or ErrTampered,
// or what the store said.
func (v *Vault) Open(ctx context.Context, s Space, id ID) (*Manifest, error) {
	r := v.keys(s).own
	m, err := v.load(ctx, &r, id, r.manifestKey(id))
	if err != nil {
		return nil, fmt.Errorf("open manifest %s: %w", id, err)
	}
	m.Space = s
	return m, nil
}

// load reads and verifies the manifest of an id that lies under key.
func (v *Vault) load(ctx context.Context, r *realm, id ID, key string) (*Manifest, error) {
	if err := id.check(); err != nil {
		return nil, err
	}
	var m *Manifest
	err := v.again(ctx, func(ctx context.Context) error {
		data, err := v.getAll(ctx, key, maxManifest)
		if err == nil {
			m, err = parse(v.codec, r, id, data)
		}
		return err
	})
	if errors.Is(err, blob.ErrNotFound) {
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return m, err
}

// Exists tells whether a manifest is there, without reading it.
func (v *Vault) Exists(ctx context.Context, s Space, id ID) (bool, error) {
	r := v.keys(s).own
	_, err := v.store.Stat(ctx, r.manifestKey(id))
	if errors.Is(err, blob.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// put stores data under key.
func (v *Vault) put(ctx context.Context, key string, data []byte) error {
	return v.again(ctx, func(ctx context.Context) error {
		return v.store.Put(ctx, key, bytes.NewReader(data), int64(len(data)))
	})
}

// workers is how many processors one operation may keep busy.
func (v *Vault) workers() int { return max(2, runtime.GOMAXPROCS(0)) }
