// Package silence knows which sandboxes do not answer, as their host says.
package silence

import (
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
)

// Table holds since when sandboxes do not answer. The zero value is ready for use.
type Table struct {
	mu sync.Mutex
	m  map[api.SandboxID]time.Time
}

// Since returns since when a sandbox does not answer; zero: it does.
func (t *Table) Since(id api.SandboxID) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.m[id]
}

// Set notes since when a sandbox does not answer, zero if it does, and reports whether that is news.
func (t *Table) Set(id api.SandboxID, since time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	news := !t.m[id].Equal(since)
	if since.IsZero() {
		delete(t.m, id)
		return news
	}
	if t.m == nil {
		t.m = map[api.SandboxID]time.Time{}
	}
	t.m[id] = since
	return news
}
