package blobtest

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pandastack/pandastack/internal/lib/blob"
)

// Shaped is a store behind a simulated network link, and counts requests and bytes. Every request waits for
// the latency once, and all bytes, in and out, share the bandwidth.
type Shaped struct {
	blob.Store
	latency   time.Duration
	perSecond int64

	Gets, Puts, Others atomic.Int64 // requests
	Read, Written      atomic.Int64 // bytes of objects

	mu     sync.Mutex
	idleAt time.Time // when the link has transmitted everything it was given; guarded by mu
}

// NewShaped puts a simulated link before a store. perSecond is the bandwidth in bytes; 0 means no limit. 5 ms
// and 125_000_000 resemble a store in the same city on 1 Gbit/s.
func NewShaped(s blob.Store, latency time.Duration, perSecond int64) *Shaped {
	return &Shaped{Store: s, latency: latency, perSecond: perSecond}
}

// wait waits until t or until ctx ends.
func wait(ctx context.Context, t time.Time) error {
	d := time.Until(t)
	if d <= 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Shaped) request(ctx context.Context, kind *atomic.Int64) error {
	kind.Add(1)
	return wait(ctx, time.Now().Add(s.latency))
}

// transmit waits until the link has transmitted n more bytes.
func (s *Shaped) transmit(ctx context.Context, n int) error {
	if s.perSecond == 0 {
		return nil
	}
	s.mu.Lock()
	if now := time.Now(); s.idleAt.Before(now) {
		s.idleAt = now
	}
	s.idleAt = s.idleAt.Add(time.Duration(int64(n) * int64(time.Second) / s.perSecond))
	at := s.idleAt
	s.mu.Unlock()
	return wait(ctx, at)
}

// Get implements blob.Store.
func (s *Shaped) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	if err := s.request(ctx, &s.Gets); err != nil {
		return nil, err
	}
	r, err := s.Store.Get(ctx, key, offset, length)
	if err != nil {
		return nil, err
	}
	return &shapedReader{ReadCloser: r, ctx: ctx, s: s, n: &s.Read}, nil
}

type shapedReader struct {
	io.ReadCloser
	ctx context.Context // of the request
	s   *Shaped
	n   *atomic.Int64
}

func (r *shapedReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p[:min(len(p), 64<<10)])
	r.n.Add(int64(n))
	if late := r.s.transmit(r.ctx, n); late != nil {
		return n, late
	}
	return n, err
}

// Put implements blob.Store.
func (s *Shaped) Put(ctx context.Context, key string, r io.Reader, size int64) error {
	return s.put(ctx, key, r, size, s.Store.Put)
}

// PutIfAbsent implements blob.Store.
func (s *Shaped) PutIfAbsent(ctx context.Context, key string, r io.Reader, size int64) error {
	return s.put(ctx, key, r, size, s.Store.PutIfAbsent)
}

func (s *Shaped) put(
	ctx context.Context,
	key string,
	r io.Reader,
	size int64,
	put func(context.Context, string, io.Reader, int64) error,
) error {
	if err := s.request(ctx, &s.Puts); err != nil {
		return err
	}
	return put(ctx, key, &shapedReader{ReadCloser: io.NopCloser(r), ctx: ctx, s: s, n: &s.Written}, size)
}

// Stat implements blob.Store.
func (s *Shaped) Stat(ctx context.Context, key string) (blob.Info, error) {
	if err := s.request(ctx, &s.Others); err != nil {
		return blob.Info{}, err
	}
	return s.Store.Stat(ctx, key)
}

// List implements blob.Store.
func (s *Shaped) List(ctx context.Context, prefix string, yield func(blob.Info) error) error {
	if err := s.request(ctx, &s.Others); err != nil {
		return err
	}
	return s.Store.List(ctx, prefix, yield)
}

// Delete implements blob.Store.
func (s *Shaped) Delete(ctx context.Context, key string) error {
	if err := s.request(ctx, &s.Others); err != nil {
		return err
	}
	return s.Store.Delete(ctx, key)
}
