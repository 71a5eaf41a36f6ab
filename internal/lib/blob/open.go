package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"
)

// Options of a store.
type Options struct {
	// Timeout bounds every call but List, including the reading of an object after Get, and every step of a
	// List; default 60 s.
	Timeout time.Duration
}

// Open opens the store that a URL names. It makes no request to the service, so an unreachable service shows
// in the first call.
//
//	file:///path                     a directory, created if it does not exist
//	s3://bucket?region=...           S3; endpoint=URL&use_path_style=true for other servers
//	gs://bucket                      Google Cloud Storage, with the build tag gcs; anonymous=true without credentials
//	azblob://container               Azure, in builds with the tag azure
//
// Credentials come from where the service's own tools look for them. prefix=a/ puts all keys below a/.
func Open(ctx context.Context, rawURL string, opt Options) (Store, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, fmt.Errorf("object store: %w", err)
	}
	var inner Store
	switch u.Scheme {
	case "file":
		if u.Host != "" || u.RawQuery != "" || !strings.HasPrefix(u.Path, "/") {
			return nil, fmt.Errorf("object store: %q: want file:// and an absolute path", rawURL)
		}
		inner, err = openDir(u.Path)
	case "s3":
		inner, err = openS3(ctx, u)
	case "gs":
		inner, err = openGCS(ctx, u)
	case "azblob":
		inner, err = openAzure(ctx, u)
	default:
		return nil, fmt.Errorf(
			"object store: %q: want a URL that begins with file://, s3://, gs:// or azblob://",
			rawURL,
		)
	}
	if err != nil {
		return nil, fmt.Errorf("object store: %w", err)
	}
	if opt.Timeout <= 0 {
		opt.Timeout = time.Minute
	}
	return &checkedStore{inner: inner, timeout: opt.Timeout}, nil
}

// checkKey rejects keys that some store could not keep, or would keep under another name.
func checkKey(key string) error {
	if key == "" || len(key) > 512 {
		return ErrKey
	}
	for part := range strings.SplitSeq(key, "/") {
		if part == "" || part[0] == '.' || strings.Trim(part, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
			return ErrKey
		}
	}
	return nil
}

// checkedStore adds what all stores share: keys are checked, calls have a time limit, errors name the
// operation and the key.
type checkedStore struct {
	inner   Store
	timeout time.Duration
}

func (g *checkedStore) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, g.timeout, ErrTimeout)
}

// wrapError adds the operation and the key to an error. If ctx has ended, the cause of that replaces the
// error.
func wrapError(ctx context.Context, op, key string, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = cause
	}
	return &Error{Op: op, Key: key, Err: err}
}

// Get implements Store.
func (g *checkedStore) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	if err := checkKey(key); err != nil {
		return nil, &Error{"get", key, err}
	}
	if offset < 0 {
		return nil, &Error{"get", key, fmt.Errorf("offset %d is negative", offset)}
	}
	ctx, cancel := g.limit(ctx)
	r, err := g.inner.Get(ctx, key, offset, length)
	if err != nil {
		defer cancel()
		return nil, wrapError(ctx, "get", key, err)
	}
	return &body{ctx: ctx, cancel: cancel, key: key, r: r}, nil
}

// body is the reader of an object.
type body struct {
	ctx    context.Context // of the call that opened it: reading ends with that context
	cancel context.CancelFunc
	key    string
	r      io.ReadCloser
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err != nil && err != io.EOF {
		err = wrapError(b.ctx, "get", b.key, err)
	}
	return n, err
}

// Close implements io.Closer.
func (b *body) Close() error {
	defer b.cancel()
	return wrapError(b.ctx, "get", b.key, b.r.Close())
}

// Put implements Store.
func (g *checkedStore) Put(ctx context.Context, key string, r io.Reader, size int64) error {
	return g.put(ctx, key, r, size, g.inner.Put)
}

// PutIfAbsent implements Store.
func (g *checkedStore) PutIfAbsent(ctx context.Context, key string, r io.Reader, size int64) error {
	return g.put(ctx, key, r, size, g.inner.PutIfAbsent)
}

func (g *checkedStore) put(ctx context.Context, key string, r io.Reader, size int64,
	put func(context.Context, string, io.Reader, int64) error) error {
	if err := checkKey(key); err != nil {
		return &Error{"put", key, err}
	}
	ctx, cancel := g.limit(ctx)
	defer cancel()
	return wrapError(ctx, "put", key, put(ctx, key, r, size))
}

// Stat implements Store.
func (g *checkedStore) Stat(ctx context.Context, key string) (Info, error) {
	if err := checkKey(key); err != nil {
		return Info{}, &Error{"stat", key, err}
	}
	ctx, cancel := g.limit(ctx)
	defer cancel()
	info, err := g.inner.Stat(ctx, key)
	return info, wrapError(ctx, "stat", key, err)
}

// List implements Store.
func (g *checkedStore) List(ctx context.Context, prefix string, yield func(Info) error) error {
	// The time limit starts again with every object. The time that the caller takes for an object does not
	// count.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(g.timeout, func() { cancel(ErrTimeout) })
	defer timer.Stop()
	var yieldErr error
	err := g.inner.List(ctx, prefix, func(info Info) error {
		timer.Stop()
		yieldErr = yield(info)
		timer.Reset(g.timeout)
		return yieldErr
	})
	if yieldErr != nil {
		return yieldErr
	}
	return wrapError(ctx, "list", prefix, err)
}

// Delete implements Store.
func (g *checkedStore) Delete(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return &Error{"delete", key, err}
	}
	ctx, cancel := g.limit(ctx)
	defer cancel()
	return wrapError(ctx, "delete", key, g.inner.Delete(ctx, key))
}

// Close implements Store.
func (g *checkedStore) Close() error { return g.inner.Close() }

// exactReader reads size bytes and reports an error if there are more or fewer.
type exactReader struct {
	r    io.Reader
	left int64
}

// Read implements io.Reader.
func (e *exactReader) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	e.left -= int64(n)
	switch {
	case e.left < 0:
		return n, errors.New("the content is longer than the announced size")
	case err == io.EOF && e.left > 0:
		return n, fmt.Errorf("the content is %d bytes shorter than the announced size", e.left)
	}
	return n, err
}
