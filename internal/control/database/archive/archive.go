// Package archive keeps the write-ahead log and the base backups of databases in an object store.
//
// It owns the layout, the compression and the encryption of the objects, the catalogue of what can be restored, the
// retention and the scrub. It does not know how the log is received or where a backup is restored to.
//
// # Layout
//
//	db/<id>/<timeline>/wal/<segment>.zst                     a complete segment of the log
//	db/<id>/<timeline>/wal/<segment>.<bytes>.partial.zst     its first bytes, until the complete one is there
//	db/<id>/<timeline>/history                               the history file of the timeline
//	db/<id>/base/<base>/tar/<part>.zst                       the data directory: a tar archive in parts of 16 MiB
//	db/<id>/base/<base>/manifest.zst                         the server's backup manifest
//	db/<id>/base/<base>/meta                                 what the base is; written last, and removed first
//	db/<id>/description/<fence>                              what a node that adopts the database must know of it
//	db/<id>/fence/<fence>                                    a node has adopted the database
//
// A branch has an id of its own. Every object is written once; none is changed but the description.
//
// # Fences
//
// A database belongs to the node with the highest fencing number: 0 is that of the node that made it. Every write and
// removal looks whether there is a higher one, and fails with ErrFenced. What passes that look at the very moment of an
// adoption does no harm: it is log beyond what the new node has restored, which is on no path that is followed.
//
// # Keys
//
// Every object is sealed with AES-256-GCM under a key of its own, which derives from the store's master key, the id of
// the database and the name of the object. So the store learns no content, and no object passes for another.
//
// All methods may be called concurrently.
package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/pandastack/pandastack/internal/control/database/wal"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

const (
	// partBytes is the size of the parts of a base backup, before compression.
	partBytes = wal.SegmentBytes
	// maxManifest bounds a backup manifest, which has some 150 bytes for each file.
	maxManifest = 64 << 20
	attempts    = 4 // of a request
)

// head begins every object: its format and version.
var head = []byte("PSDB\x01")

// ErrCorrupt means that an object of the archive is damaged, or was made with another master key.
var ErrCorrupt = errors.New("the object is damaged or sealed with another master key")

// Archive is the part of the object store that belongs to a database.
type Archive struct {
	store  blob.Store
	prefix string
	secret []byte
	enc    *zstd.Encoder
	dec    *zstd.Decoder
	retry  time.Duration
	fence  int64
}

// Options of an archive.
type Options struct {
	// Fence is the fencing number of the node that writes.
	Fence int64
	// Retry is the time before a request is repeated for the first time; it doubles. Default 500 ms.
	Retry time.Duration
}

// New opens the archive of a database. It makes no request.
func New(store blob.Store, ring *keyring.Keyring, id string, opt Options) (*Archive, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	enc, err1 := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	dec, err2 := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxManifest), zstd.WithDecoderConcurrency(0))
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if opt.Retry <= 0 {
		opt.Retry = 500 * time.Millisecond
	}
	return &Archive{
		store: store, prefix: "db/" + id + "/", secret: ring.Key("pandastack database 1: " + id), enc: enc, dec: dec,
		retry: opt.Retry, fence: opt.Fence,
	}, nil
}

// CheckID returns an error unless an id can be that of a database.
func CheckID(id string) error {
	if id == "" || len(id) > 64 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
		return fmt.Errorf("invalid id %.80q of a database: want 1 to 64 lower-case letters, digits, - and _", id)
	}
	return nil
}

func (a *Archive) key(name string) []byte { return keyring.Derive(a.secret, "object "+name) }

// put stores an object. The name is relative to the database.
func (a *Archive) put(ctx context.Context, name string, packed []byte) error {
	sealed, err := keyring.Seal(a.key(name), head, packed)
	if err != nil {
		return err
	}
	return a.repeat(ctx, func() error {
		if err := a.Holds(ctx); err != nil {
			return err
		}
		return a.store.Put(ctx, a.prefix+name, bytes.NewReader(sealed), int64(len(sealed)))
	})
}

// get reads an object.
func (a *Archive) get(ctx context.Context, name string) (packed []byte, err error) {
	err = a.repeat(ctx, func() error {
		sealed, err := a.fetch(ctx, name)
		if err != nil {
			return err
		}
		if packed, err = keyring.Unseal(a.key(name), head, sealed); err != nil {
			return fmt.Errorf("%s: %w", a.prefix+name, ErrCorrupt)
		}
		return nil
	})
	return packed, err
}

func (a *Archive) fetch(ctx context.Context, name string) ([]byte, error) {
	r, err := a.store.Get(ctx, a.prefix+name, 0, maxManifest+1)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	if len(data) > maxManifest {
		return nil, fmt.Errorf("%s has more than %d bytes: %w", a.prefix+name, maxManifest, ErrCorrupt)
	}
	return data, nil
}

// repeat calls do until it succeeds, or fails in a way that does not pass.
func (a *Archive) repeat(ctx context.Context, do func() error) error {
	wait := a.retry
	for n := 1; ; n++ {
		err := do()
		if err == nil || n == attempts || ctx.Err() != nil || errors.Is(err, blob.ErrNotFound) ||
			errors.Is(err, blob.ErrDenied) || errors.Is(err, blob.ErrKey) || errors.Is(err, ErrFenced) {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(context.Cause(ctx), err)
		}
		wait *= 2
	}
}

// delete removes an object.
func (a *Archive) delete(ctx context.Context, name string) error {
	return a.repeat(ctx, func() error {
		if err := a.Holds(ctx); err != nil {
			return err
		}
		return a.store.Delete(ctx, a.prefix+name)
	})
}

// pack compresses content.
func (a *Archive) pack(content []byte) []byte {
	return a.enc.EncodeAll(content, make([]byte, 0, len(content)/4+1024))
}

// unpack decompresses content of most bytes at most.
func (a *Archive) unpack(name string, packed []byte, most int) ([]byte, error) {
	content, err := a.dec.DecodeAll(packed, nil)
	if err == nil && len(content) > most {
		err = fmt.Errorf("it has %d bytes, more than %d", len(content), most)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", a.prefix+name, ErrCorrupt, err)
	}
	return content, nil
}

// RemoveAll removes everything that the archive has of the database but the fences: a node that comes back must not
// take a database for its own that another one has adopted and removed.
func (a *Archive) RemoveAll(ctx context.Context) error {
	var names []string
	err := a.store.List(ctx, a.prefix, func(i blob.Info) error {
		if name := strings.TrimPrefix(i.Key, a.prefix); !strings.HasPrefix(name, fencePrefix) {
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := a.delete(ctx, name); err != nil {
			return err
		}
	}
	return nil
}
