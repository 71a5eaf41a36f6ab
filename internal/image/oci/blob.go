package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// blob reads a blob of a registry and resumes after an interrupted connection. It verifies nothing.
type blob struct {
	ctx    context.Context //nolint:containedctx // the reader is used only during the call that made it
	client *http.Client
	url    string
	size   int64
	at     int64
	body   io.ReadCloser
	idle   *time.Timer // ends a stalled connection
	cancel context.CancelCauseFunc
	fails  int // interruptions in a row, without a byte between them
	total  int // interruptions
	limit  int
	wait   time.Duration
	stall  time.Duration
}

// maxConnections bounds the connections of one blob, in case a registry sends one byte on each.
const maxConnections = 1000

// client returns an HTTP client with the credentials of a repository.
func (p *Puller) client(ctx context.Context, repo name.Repository) (*http.Client, error) {
	t, err := transport.NewWithContext(
		ctx,
		repo.Registry,
		p.auth(repo),
		p.transport,
		[]string{repo.Scope(transport.PullScope)},
	)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: t}, nil
}

func (p *Puller) newBlob(ctx context.Context, client *http.Client, repo name.Repository, l Layer) *blob {
	url := repo.Scheme() + "://" + repo.RegistryStr() + "/v2/" + repo.RepositoryStr() + "/blobs/" + l.Digest
	return &blob{
		ctx:    ctx,
		client: client,
		url:    url,
		size:   l.Size,
		limit:  p.opt.Retries,
		wait:   p.opt.Wait,
		stall:  p.opt.Stall,
	}
}

// Read implements io.Reader. It returns io.EOF after exactly size bytes.
func (b *blob) Read(into []byte) (int, error) {
	for {
		if b.at == b.size {
			return 0, io.EOF
		}
		if b.body == nil {
			if err := b.open(); err != nil {
				return 0, err
			}
		}
		b.idle.Reset(b.stall)
		n, err := b.body.Read(into[:min(int64(len(into)), b.size-b.at)])
		b.at += int64(n)
		if n > 0 {
			b.fails = 0
		}
		if err == nil || n > 0 {
			return n, nil
		}
		// The connection ended before the blob did, cleanly or not.
		if err := errors.Join(b.Close(), b.backoff(err)); err != nil {
			return 0, err
		}
	}
}

// Close ends the connection. Read may be called afterwards and opens another one.
func (b *blob) Close() error {
	if b.body == nil {
		return nil
	}
	body := b.body
	b.body = nil
	b.idle.Stop()
	b.cancel(nil)
	_ = body.Close() // the needed bytes were read, or are fetched again
	return nil
}

// backoff waits before the next attempt after err, or returns an error if there is none.
func (b *blob) backoff(err error) error {
	if cause := context.Cause(b.ctx); cause != nil {
		return cause
	}
	b.total++
	if b.fails++; b.fails > b.limit || b.total > maxConnections {
		why := cmp.Or(interruption(err), "the connection failed")
		if errors.Is(err, ErrUnavailable) {
			why = err.Error()
		}
		return fmt.Errorf("%w: interrupted after %d of %d bytes: %s", ErrUnavailable, b.at, b.size, why)
	}
	timer := time.NewTimer(b.wait << min(b.fails-1, 6))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-b.ctx.Done():
		return context.Cause(b.ctx)
	}
}

// open requests the rest of the blob, and repeats requests that may succeed later.
func (b *blob) open() error {
	for {
		err := b.request()
		if err == nil {
			return nil
		}
		if _, final := errors.AsType[*finalError](err); final {
			return err
		}
		if err := b.backoff(err); err != nil {
			return err
		}
	}
}

// finalError is an error that another request would return again.
type finalError struct{ error }

// Unwrap implements the interface of package errors.
func (e *finalError) Unwrap() error { return e.error }

var errStalled = errors.New("the connection stalled")

func (b *blob) request() (err error) {
	ctx, cancel := context.WithCancelCause(b.ctx)
	idle := time.AfterFunc(b.stall, func() { cancel(errStalled) })
	defer func() {
		if err != nil {
			idle.Stop()
			cancel(nil)
		}
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url, nil)
	if err != nil {
		return &finalError{err}
	}
	if b.at > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", b.at, b.size-1))
	}
	resp, err := b.client.Do(req)
	if err != nil {
		if context.Cause(ctx) == errStalled { //nolint:errorlint // the cause itself
			return errStalled
		}
		if err = classify(b.ctx, err); errors.Is(err, ErrReference) {
			return &finalError{err}
		}
		return err
	}
	skip := int64(0)
	switch {
	case resp.StatusCode == http.StatusPartialContent && b.at > 0:
		if !strings.HasPrefix(resp.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(b.at, 10)+"-") {
			err = &finalError{fmt.Errorf("%w: the registry sent another range than requested", ErrUnavailable)}
		}
	case resp.StatusCode == http.StatusOK:
		skip = b.at // a registry without range requests sends the whole blob
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500:
		err = fmt.Errorf("%w: status %s", ErrUnavailable, statusText(resp))
	default:
		err = &finalError{fmt.Errorf("%w: status %s", statusError(resp.StatusCode), statusText(resp))}
	}
	if err == nil && skip > 0 {
		_, err = io.CopyN(io.Discard, resp.Body, skip)
	}
	if err != nil {
		_ = resp.Body.Close() // the body is not used
		return err
	}
	b.body, b.idle, b.cancel = resp.Body, idle, cancel
	return nil
}

// statusText returns the status of a response, without the text that the server chose.
func statusText(resp *http.Response) string {
	return fmt.Sprintf("%d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
}
