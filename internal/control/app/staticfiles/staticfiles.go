// Package staticfiles keeps the static files of deployments in an object store.
//
// The files of a deployment are one object with their contents one after the other, and an index of their paths. The
// contents of texts are also there compressed. Paths are looked up in the index and name nothing in a file system, so
// no request can leave the tree.
//
// Store reads an archive that a build made, which is hostile: links and special files are refused, and everything is
// bounded. Files and directories whose names begin with a dot are left out, except /.well-known.
//
// All methods may be called concurrently.
package staticfiles

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/lib/blob"
)

// Limits bound the files of one deployment. Zero values mean the default.
type Limits struct {
	Bytes int64 // of all files; 1 GiB
	Files int   // 20,000
}

// Files keeps the static files of deployments. Make one with New.
type Files struct {
	store  blob.Store
	dir    string // for contents that are being packed
	limits Limits

	mu   sync.Mutex
	open map[string]*Set // by key; guarded by mu
}

// New returns Files in a store. dir is a directory that exists, for temporary files.
func New(store blob.Store, dir string, limits Limits) *Files {
	limits.Bytes = cmp.Or(limits.Bytes, 1<<30)
	limits.Files = cmp.Or(limits.Files, 20_000)
	return &Files{store: store, dir: dir, limits: limits, open: map[string]*Set{}}
}

// Bounds of what is kept in memory, of an index in bytes, and of a path.
const (
	maxOpen  = 64
	maxIndex = 32 << 20
	maxPath  = 1024
)

// ErrNotFound is the error of a deployment that has no files.
var ErrNotFound = errors.New("the deployment has no static files")

// Encodings of contents. The zero value is the content itself.
const (
	Identity = ""
	Gzip     = "gzip"
	Zstd     = "zstd"
)

// Part is where a content is in the object.
type Part struct {
	Offset int64 `json:"offset"`
	Bytes  int64 `json:"bytes"`
}

// Entry is a file.
type Entry struct {
	Hash  string          `json:"hash"` // of the content
	Parts map[string]Part `json:"parts"`
}

// Set is the files of one deployment.
type Set struct {
	store   blob.Store
	key     string
	entries map[string]Entry
}

func indexKey(key string) string { return "apps/static/" + key + "/index" }
func packKey(key string) string  { return "apps/static/" + key + "/files" }

// Open returns the files that Store kept under key. The error wraps ErrNotFound if there are none.
func (f *Files) Open(ctx context.Context, key string) (*Set, error) {
	f.mu.Lock()
	found := f.open[key]
	f.mu.Unlock()
	if found != nil {
		return found, nil
	}
	r, err := f.store.Get(ctx, indexKey(key), 0, -1)
	if errors.Is(err, blob.ErrNotFound) {
		return nil, fmt.Errorf("%s: %w", key, ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	defer r.Close() //nolint:errcheck // it was read to its end, or the error is known
	data, err := io.ReadAll(io.LimitReader(r, maxIndex+1))
	if err != nil {
		return nil, err
	}
	set := &Set{store: f.store, key: key}
	if err := json.Unmarshal(data, &set.entries); err != nil {
		return nil, fmt.Errorf("index of the static files of %s: %w", key, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.open) >= maxOpen {
		clear(f.open)
	}
	f.open[key] = set
	return set, nil
}

// Delete removes the files under key. There may be none.
func (f *Files) Delete(ctx context.Context, key string) error {
	f.mu.Lock()
	delete(f.open, key)
	f.mu.Unlock()
	return errors.Join(f.store.Delete(ctx, indexKey(key)), f.store.Delete(ctx, packKey(key)))
}

// Lookup returns the file with a path, which has no slash at its start.
func (s *Set) Lookup(path string) (Entry, bool) {
	e, ok := s.entries[path]
	return e, ok
}

// Reader reads a content of a file.
func (s *Set) Reader(ctx context.Context, p Part) *Reader {
	return &Reader{ctx: ctx, set: s, part: p}
}

// Reader implements io.ReadSeekCloser over a part of an object. Its methods must not be called concurrently.
type Reader struct {
	ctx  context.Context
	set  *Set
	part Part
	at   int64
	r    io.ReadCloser // reads from at; nil: not open
}

// Seek implements io.Seeker.
func (r *Reader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.at
	case io.SeekEnd:
		offset += r.part.Bytes
	}
	if offset < 0 {
		return 0, errors.New("staticfiles: negative position")
	}
	if offset == r.at {
		return offset, nil
	}
	r.at = offset
	return offset, r.Close()
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	left := r.part.Bytes - r.at
	if left <= 0 {
		return 0, io.EOF
	}
	if r.r == nil {
		opened, err := r.set.store.Get(r.ctx, packKey(r.set.key), r.part.Offset+r.at, left)
		if err != nil {
			return 0, err
		}
		r.r = opened
	}
	n, err := r.r.Read(p[:min(int64(len(p)), left)])
	r.at += int64(n)
	if errors.Is(err, io.EOF) && r.at < r.part.Bytes {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Close implements io.Closer. A later Read opens the content again.
func (r *Reader) Close() error {
	if r.r == nil {
		return nil
	}
	err := r.r.Close()
	r.r = nil
	return err
}

// write stores the index of a set.
func (s *Set) write(ctx context.Context) error {
	data, err := json.Marshal(s.entries)
	if err != nil {
		return err
	}
	if len(data) > maxIndex {
		return api.Errorf(api.TooLarge, "the paths of the static files are too long together")
	}
	return s.store.Put(ctx, indexKey(s.key), bytes.NewReader(data), int64(len(data)))
}

// isHidden reports whether a part of a path begins with a dot.
func isHidden(path string) bool {
	for part := range strings.SplitSeq(path, "/") {
		if strings.HasPrefix(part, ".") && part != ".well-known" {
			return true
		}
	}
	return false
}
