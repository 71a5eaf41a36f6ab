// Package activity tracks the use of sandboxes: when each was used last, what keeps it active, and how its last
// processes ended. It also supplies the user and directory of requests that name none.
//
// A Tracker keeps all of this in memory and may be used concurrently; a Recorder writes it to the store. The package
// knows no host.
package activity

import (
	"strings"
	"sync"
	"time"
)

// Tracker tracks last uses, open streams and ended processes of sandboxes. The zero value is ready for use.
type Tracker struct {
	record exitRecorder

	mu sync.Mutex
	m  map[string]*usage
}

type usage struct {
	at    time.Time
	holds int  // open streams
	dirty bool // at is not in the store yet
}

func (b *Tracker) get(id string) *usage {
	if b.m == nil {
		b.m = map[string]*usage{}
	}
	x, ok := b.m[id]
	if !ok {
		x = &usage{}
		b.m[id] = x
	}
	return x
}

// Touch counts as use now.
func (b *Tracker) Touch(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.get(id)
	x.at, x.dirty = time.Now(), true
}

// Hold keeps a sandbox in use until the returned function is called. Calling it again has no effect.
func (b *Tracker) Hold(id string) func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.get(id)
	x.holds++
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		x.holds--
		x.at, x.dirty = time.Now(), true
	})
}

// Last returns when a sandbox was used last as far as this process knows: now while it is held.
func (b *Tracker) Last(id string) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.m[id]
	switch {
	case x == nil:
		return time.Time{}
	case x.holds > 0:
		return time.Now()
	}
	return x.at
}

// Forget removes a sandbox that ended.
func (b *Tracker) Forget(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.m, id)
	b.record.forget(id)
}

// evictAfter is how long a last use is kept after it was written to the store.
const evictAfter = 10 * time.Minute

// DrainDirty returns the last uses that are not in the store yet, and marks them as written.
func (b *Tracker) DrainDirty() map[string]time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[string]time.Time{}
	for id, x := range b.m {
		if x.holds > 0 {
			x.at, x.dirty = time.Now(), true
		}
		switch {
		case x.dirty:
			all[id] = x.at
			x.dirty = false
		case x.holds == 0 && time.Since(x.at) > evictAfter:
			delete(b.m, id)
		}
	}
	return all
}

// MarkDirty marks last uses that could not be written.
func (b *Tracker) MarkDirty(all map[string]time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id := range all {
		if x := b.m[id]; x != nil {
			x.dirty = true
		}
	}
}

// maxText limits a text, in bytes.
const maxText = 64 << 10

// Printable returns the last 64 KiB of text as valid UTF-8 without zero bytes, safe to store.
func Printable(text []byte) string {
	if len(text) > maxText {
		text = text[len(text)-maxText:]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(string(text), "\uFFFD"), "\x00", "")
}

// Load adds processes of a sandbox that an earlier program recorded, as Processes returned them.
func (b *Tracker) Load(id string, old []ProcessEnd) { b.record.load(id, old) }

// Processes returns the last processes of a sandbox, oldest first.
func (b *Tracker) Processes(id string) []ProcessEnd { return b.record.list(id) }
