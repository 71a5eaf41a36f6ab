package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"
	"gocloud.dev/gcerrors"
)

// bucket keeps objects in a service.
type bucket struct {
	b *blob.Bucket
	// upload is set if the service's client must read the content itself; it then stores nothing if reading
	// fails.
	upload bool
}

// opener opens the bucket of one kind of service.
type opener interface {
	OpenBucketURL(ctx context.Context, u *url.URL) (*blob.Bucket, error)
}

func openBucket(ctx context.Context, o opener, u *url.URL) (*bucket, error) {
	plain, query := *u, u.Query()
	prefix := query.Get("prefix")
	query.Del("prefix")
	plain.RawQuery = query.Encode()
	if prefix != "" && (checkKey(strings.TrimSuffix(prefix, "/")) != nil || !strings.HasSuffix(prefix, "/")) {
		return nil, fmt.Errorf("prefix %q is not a valid key followed by a slash", prefix)
	}
	b, err := o.OpenBucketURL(ctx, &plain)
	if err != nil {
		return nil, err
	}
	if prefix != "" {
		b = blob.PrefixedBucket(b, prefix)
	}
	return &bucket{b: b}, nil
}

func openS3(ctx context.Context, u *url.URL) (Store, error) {
	return openBucket(ctx, &s3blob.URLOpener{}, u)
}

// bucketError translates an error of a service.
func bucketError(err error) error {
	if err == nil {
		return nil
	}
	kind := map[gcerrors.ErrorCode]error{
		gcerrors.NotFound: ErrNotFound, gcerrors.AlreadyExists: ErrExists, gcerrors.FailedPrecondition: ErrExists,
		gcerrors.PermissionDenied: ErrDenied, gcerrors.ResourceExhausted: ErrNoSpace,
		gcerrors.DeadlineExceeded: ErrTimeout,
	}[gcerrors.Code(err)]
	if kind == nil {
		kind = statusError(err)
	}
	if kind == nil {
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// statusError translates HTTP statuses for which the library has no code.
func statusError(err error) error {
	response, ok := errors.AsType[interface {
		error
		HTTPStatusCode() int
	}](err)
	if !ok {
		return nil
	}
	switch response.HTTPStatusCode() {
	case 507:
		return ErrNoSpace
	case 409, 412: // 409 also means that another client writes the same object right now
		return ErrExists
	}
	return nil
}

// Get implements Store.
func (b *bucket) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	if length == 0 { // no service accepts an empty range
		info, err := b.Stat(ctx, key)
		if err == nil && offset > info.Bytes {
			err = fmt.Errorf("offset %d is beyond the object's end at %d", offset, info.Bytes)
		}
		return io.NopCloser(strings.NewReader("")), err
	}
	r, err := b.b.NewRangeReader(ctx, key, offset, length, nil)
	if err != nil {
		return nil, bucketError(err)
	}
	return r, nil
}

// Put implements Store.
func (b *bucket) Put(ctx context.Context, key string, r io.Reader, size int64) error {
	return b.put(ctx, key, r, size, false)
}

// PutIfAbsent implements Store.
func (b *bucket) PutIfAbsent(ctx context.Context, key string, r io.Reader, size int64) error {
	return b.put(ctx, key, r, size, true)
}

func (b *bucket) put(ctx context.Context, key string, r io.Reader, size int64, absent bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opt := &blob.WriterOptions{
		// One request for every object that this program stores: parts cost one request each, and a condition
		// needs a single request.
		BufferSize: 16 << 20, ContentType: "application/octet-stream", IfNotExist: absent,
	}
	if b.upload {
		return bucketError(b.b.Upload(ctx, key, &exactReader{r, size}, opt))
	}
	w, err := b.b.NewWriter(ctx, key, opt)
	if err != nil {
		return bucketError(err)
	}
	if _, err := io.Copy(w, &exactReader{r, size}); err != nil {
		cancel() // Close would store the part that was written so far
		return errors.Join(bucketError(err), ignoreCancel(w.Close()))
	}
	return bucketError(w.Close())
}

func ignoreCancel(err error) error {
	if errors.Is(err, context.Canceled) || gcerrors.Code(err) == gcerrors.Canceled {
		return nil
	}
	return err
}

// Stat implements Store.
func (b *bucket) Stat(ctx context.Context, key string) (Info, error) {
	a, err := b.b.Attributes(ctx, key)
	if err != nil {
		return Info{}, bucketError(err)
	}
	return Info{Key: key, Bytes: a.Size, Modified: a.ModTime}, nil
}

// List implements Store.
func (b *bucket) List(ctx context.Context, prefix string, yield func(Info) error) error {
	for it := b.b.List(&blob.ListOptions{Prefix: prefix}); ; {
		o, err := it.Next(ctx)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return bucketError(err)
		}
		if err := yield(Info{Key: o.Key, Bytes: o.Size, Modified: o.ModTime}); err != nil {
			return err
		}
	}
}

// Delete implements Store.
func (b *bucket) Delete(ctx context.Context, key string) error {
	err := b.b.Delete(ctx, key)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil
	}
	return bucketError(err)
}

// Close implements Store.
func (b *bucket) Close() error { return b.b.Close() }
