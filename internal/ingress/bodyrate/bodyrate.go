// Package bodyrate ends requests whose bodies come too slowly, so that clients cannot hold connections and handlers by
// sending nothing.
//
// A body has credit: the time that the server may still wait for it. A request begins with some, every byte adds to it
// up to a bound, and waiting for the client uses it up. The time in which a handler does not read counts for nothing.
// So an upload may be large and may pause, but must make progress. Bodies that are streams, which may be silent for
// hours, are exempt: the handler that knows calls Exempt.
//
// Invariants. A body without credit fails with an *api.Error with the code request_timeout. The server never waits
// longer for the rest of a body that a handler did not read.
//
// All functions may be called concurrently.
package bodyrate

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pandastack/pandastack/api"
)

// The credit of a body at its start and at most, and the bytes that add a second to it.
const (
	startCredit    = 30 * time.Second
	maxCredit      = 60 * time.Second
	bytesPerSecond = 1 << 10
)

// body is a body whose reads take credit.
type body struct {
	io.ReadCloser
	control *http.ResponseController
	http1   bool
	exempt  atomic.Bool
	ended   atomic.Bool   // by its end or an error
	credit  time.Duration // of the goroutine that reads

	mu   sync.Mutex
	done bool // the handler has returned, and control must not be used; guarded by mu
}

type bodyKey struct{}

// Handler returns a handler that passes requests to next with bodies that must make progress.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		b := &body{
			ReadCloser: r.Body, control: http.NewResponseController(w), http1: r.ProtoMajor == 1, credit: startCredit,
		}
		defer b.finish()
		// HTTP/1 servers read the rest of a body before they send a response.
		b.setDeadline(time.Now().Add(startCredit))
		r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, b))
		r.Body = b
		next.ServeHTTP(w, r)
	})
}

// Exempt lets the body of a request take any time. It does nothing to a request that did not pass Handler.
func Exempt(r *http.Request) {
	if b, ok := r.Context().Value(bodyKey{}).(*body); ok && !b.exempt.Swap(true) {
		b.setDeadline(time.Time{})
	}
}

// errSlow returns the error of a body without credit.
func errSlow(cause error) error {
	return api.Wrap(api.RequestTimeout, cause,
		"the body of the request came too slowly: send at least 1 KiB per second, without pauses of a minute")
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.exempt.Load() {
		n, err := b.ReadCloser.Read(p)
		b.ended.Store(err != nil)
		return n, err
	}
	began := time.Now()
	stop := b.limit(began)
	n, err := b.ReadCloser.Read(p)
	stop()
	b.credit += time.Duration(n)*time.Second/bytesPerSecond - time.Since(began)
	b.credit = min(b.credit, maxCredit)
	switch {
	case err == nil:
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.ended.Store(true)
		return n, errSlow(err)
	default:
		b.ended.Store(true)
		b.setDeadline(time.Time{}) // the server watches the connection for its end
	}
	return n, err
}

// limit bounds a read that begins now by the credit, until stop is called.
//
// On HTTP/1, the deadline stays behind between reads, for the server's own. On HTTP/2, a deadline that has passed ends
// the body even between reads, so it is set only when the credit is used up.
func (b *body) limit(now time.Time) (stop func()) {
	if b.http1 {
		b.setDeadline(now.Add(b.credit))
		return func() {}
	}
	t := time.AfterFunc(b.credit, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !b.done {
			_ = b.control.SetReadDeadline(now.Add(-time.Second)) // an HTTP/2 body always has a deadline
		}
	})
	return func() { t.Stop() }
}

// setDeadline sets the deadline of reads from an HTTP/1 connection; the zero time is none.
func (b *body) setDeadline(at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.http1 && !b.done {
		_ = b.control.SetReadDeadline(at) // only the writers of tests cannot
	}
}

// finish ends the use of the connection, and bounds how long the server waits for the rest of the body.
func (b *body) finish() {
	if !b.ended.Load() {
		b.setDeadline(time.Now().Add(startCredit))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done = true
}
