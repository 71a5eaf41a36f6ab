package access

import (
	"net/http"
	"time"

	"github.com/pandastack/pandastack/internal/lib/accept"
)

// Buckets is a table of token buckets by name. The least recently used are dropped when there are too many.
type Buckets struct{ limits *limits }

// NewBuckets returns a table of buckets that hold burst tokens and get perSecond more. A rate of 0 limits nothing.
func NewBuckets(perSecond float64, burst int) *Buckets { return &Buckets{newLimits(perSecond, burst)} }

// Take takes a token from the bucket of a name. Without one it returns false, and when there will be one.
func (b *Buckets) Take(name string) (ok bool, retry time.Duration) {
	q := b.limits.take(name, 1)
	return q.ok, q.retry
}

// NetworkOf returns the name under which the client of a request is limited: its address, and for IPv6 its network.
func NetworkOf(r *http.Request) string { return accept.Network(AddressOf(r)) }
