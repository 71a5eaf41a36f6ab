package access

import (
	"container/list"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxLimiters bounds a table of limiters. The least recently used are dropped, and begin again if they come back.
const maxLimiters = 8192

// limits is a table of token buckets by name.
type limits struct {
	rate  rate.Limit // tokens a second
	burst int

	mu      sync.Mutex
	entries map[string]*list.Element // of order
	order   *list.List               // of *limiter, most recently used first
}

type limiter struct {
	name   string
	bucket *rate.Limiter
}

// newLimits returns a table, and nil, which limits nothing, for a rate of 0.
func newLimits(perSecond float64, burst int) *limits {
	if perSecond <= 0 {
		return nil
	}
	return &limits{rate: rate.Limit(perSecond), burst: burst, entries: map[string]*list.Element{}, order: list.New()}
}

// bucket returns the bucket of a name. The caller holds mu.
func (l *limits) bucket(name string) *rate.Limiter {
	if e, ok := l.entries[name]; ok {
		l.order.MoveToFront(e)
		return e.Value.(*limiter).bucket //nolint:forcetypeassert // the list has nothing else
	}
	for l.order.Len() >= maxLimiters {
		last := l.order.Remove(l.order.Back()).(*limiter) //nolint:forcetypeassert // the list has nothing else
		delete(l.entries, last.name)
	}
	one := &limiter{name: name, bucket: rate.NewLimiter(l.rate, l.burst)}
	l.entries[name] = l.order.PushFront(one)
	return one.bucket
}

// quota is the state of a bucket.
type quota struct {
	ok        bool          // a token was taken, or is there
	limit     int           // size of the bucket
	remaining int           // tokens that are left
	reset     time.Duration // until the bucket is full
	retry     time.Duration // until the next token, if not ok
}

// take takes n tokens; with 0 it only looks whether there is one.
func (l *limits) take(name string, n int) quota {
	if l == nil {
		return quota{ok: true}
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucket(name)
	ok := b.TokensAt(now) >= 1
	if n > 0 {
		ok = b.AllowN(now, n)
	}
	left := max(b.TokensAt(now), 0)
	q := quota{ok: ok, limit: l.burst, remaining: int(left)}
	seconds := func(tokens float64) time.Duration {
		return time.Duration(math.Ceil(tokens/float64(l.rate))) * time.Second
	}
	q.reset = seconds(float64(l.burst) - left)
	if !ok {
		q.retry = max(seconds(1-left), time.Second)
	}
	return q
}
