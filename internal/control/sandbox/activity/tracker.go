// Package activity keeps the book of who is inside sandboxes: when each was used last, what holds it, and how
// the last processes in it ended. It also says as whom and where things are done that do not say.
//
// It owns that memory and nothing that lasts: it knows no store and no host. What it remembers is gone
// with the program. Everything may be called at once.
package activity

import (
	"strings"
	"sync"
	"time"
)

// Tracker remembers when sandboxes were used last, what holds them, and how their last processes ended. Its
// zero value is ready.
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

// Hold keeps a sandbox in use until the function it answers was called; calling that again does nothing.
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

// Last is when a sandbox was used last as far as this process knows: now while something holds it.
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

// Forget drops a sandbox that ended.
func (b *Tracker) Forget(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.m, id)
	b.record.forget(id)
}

// evictAfter is after how long a last use that was written is left to the store.
const evictAfter = 10 * time.Minute

// DrainDirty gives what is not in the store yet and takes it for written.
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

// MarkDirty marks what could not be written.
func (b *Tracker) MarkDirty(all map[string]time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id := range all {
		if x := b.m[id]; x != nil {
			x.dirty = true
		}
	}
}

// maxText bounds text in bytes.
const maxText = 64 << 10

// Printable makes text of a guest fit for any store and any terminal's encoding: valid UTF-8, no zero
// bytes, the last 64 KiB.
func Printable(text []byte) string {
	if len(text) > maxText {
		text = text[len(text)-maxText:]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(string(text), "\uFFFD"), "\x00", "")
}

// Load takes up what an earlier program remembered of a sandbox's processes, oldest first, as Processes gave it.
func (b *Tracker) Load(id string, old []ProcessEnd) { b.record.load(id, old) }

// Processes gives how the last processes of a sandbox ended, oldest first.
func (b *Tracker) Processes(id string) []ProcessEnd { return b.record.list(id) }
