package cache

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Sizes in bytes.
const (
	Frame     = 128 << 10
	maxObject = 4 << 20
	maxFrames = maxObject / Frame
)

// Config of a Cache.
type Config struct {
	Dir   string       // made if it is not there; nothing else may use it
	Bytes int64        // of frames that are kept; default 4 GiB
	Files int          // that are open at most while nobody reads them; default 256
	Log   *slog.Logger // may be nil
}

// Object is what frames belong to.
type Object struct {
	ID    string // 8 to 128 lower-case letters and digits
	Bytes int    // size
}

// frame is the size of frame i.
func (o Object) frame(i int) int { return min(Frame, o.Bytes-i*Frame) }

func (o Object) frames() int { return (o.Bytes + Frame - 1) / Frame }

func (o Object) check() error {
	if len(o.ID) < 8 || len(o.ID) > 128 || strings.Trim(o.ID, "abcdefghijklmnopqrstuvwxyz0123456789") != "" ||
		o.Bytes < 1 || o.Bytes > maxObject {
		return fmt.Errorf("cache: object %q of %d bytes", o.ID, o.Bytes)
	}
	return nil
}

// Fetch gives the content of count frames of an object from first on.
type Fetch func(ctx context.Context, first, count int) ([]byte, error)

// Stats count since Open.
type Stats struct {
	Bytes, Objects int64 // kept now
	Hits, Misses   int64 // frames found, and fetched
	Evicted        int64 // objects
	Damaged        int64 // frames or files that were not what was written
	NotStored      int64 // frames that could not be kept
}

// Cache is a directory of frames.
type Cache struct {
	cfg Config
	log *slog.Logger

	mu        sync.Mutex
	entries   map[string]*entry          // guarded by mu
	lru       list.List                  // of *entry, used last first; guarded by mu
	bytes     int64                      // guarded by mu
	flights   map[frameKey]*flight       // guarded by mu
	opened    list.List                  // of *entry whose file is open, used last first; guarded by mu
	memory    map[frameKey]*list.Element // guarded by mu
	memoryLRU list.List                  // of *held, used last first; guarded by mu

	hits, misses, evicted, damaged, notStored atomic.Int64
}

// entry is one object. All but io is guarded by Cache.mu; a file that is open stays so while there are
// users.
type entry struct {
	id       string
	path     string
	lruElem  *list.Element // in Cache.order
	openElem *list.Element // in Cache.opened, while file is there
	users    int
	loaded   bool   // claim is known: the file was opened once
	verified uint64 // of the frames in claim those that were checked
	marked   uint64 // frames that have a checksum
	bytes    int64
	removed  bool // it is in the cache no more
	file     *os.File

	io sync.Mutex // held while the file is opened
}

type frameKey struct {
	id    string
	frame int
}

// flight is a frame that is being fetched.
type flight struct {
	done chan struct{}
	err  error // before done is closed
}

// maxMemoryFrames are given from memory when the directory does not take them.
const maxMemoryFrames = 128

// memoryFrame is a frame in memory.
type memoryFrame struct {
	key  frameKey
	data []byte
}

// Open takes over what is in the directory. A directory that cannot be used at all is an error; files of
// ours that are damaged are removed.
func Open(cfg Config) (*Cache, error) {
	cfg.Bytes = cmp.Or(cfg.Bytes, 4<<30)
	cfg.Files = cmp.Or(cfg.Files, 256)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Cache{
		cfg:     cfg,
		log:     cfg.Log,
		entries: map[string]*entry{},
		flights: map[frameKey]*flight{},
		memory:  map[frameKey]*list.Element{},
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	if err := c.scan(); err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	c.enforceLimits()
	return c, nil
}

// scan finds what is in the directory.
func (c *Cache) scan() error {
	files, err := os.ReadDir(c.cfg.Dir)
	if err != nil {
		return err
	}
	used := map[*entry]time.Time{}
	var all []*entry
	for _, f := range files {
		info, err := f.Info()
		if err != nil || (Object{f.Name(), 1}).check() != nil {
			continue // gone, or not ours
		}
		e := &entry{id: f.Name(), path: filepath.Join(c.cfg.Dir, f.Name()), bytes: allocatedBytes(info)}
		if !info.Mode().IsRegular() || info.Size() != fileBytes {
			c.damaged.Add(1)
			if err := os.RemoveAll(e.path); err != nil {
				c.log.Warn("not removed from the cache", "file", e.path, "err", err)
			}
			continue
		}
		used[e] = info.ModTime()
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *entry) int { return used[b].Compare(used[a]) })
	for _, e := range all {
		c.entries[e.id] = e
		e.lruElem = c.lru.PushBack(e)
		c.bytes += e.bytes
	}
	return nil
}

// Stats tells what the cache holds and did.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Stats{Bytes: c.bytes, Objects: int64(len(c.entries)), Hits: c.hits.Load(), Misses: c.misses.Load(),
		Evicted: c.evicted.Load(), Damaged: c.damaged.Load(), NotStored: c.notStored.Load()}
}

// Close closes all files. Nobody may use the cache any more.
func (c *Cache) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all error
	for _, e := range c.entries {
		if e.file != nil {
			all = errors.Join(all, e.file.Close())
			e.file = nil
		}
	}
	return all
}

// acquire gives the entry of an object, for one more user, and makes it the one used last. With make false it
// is nil when there is none.
func (c *Cache) acquire(o Object, create bool) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[o.ID]
	if e == nil {
		if !create {
			return nil
		}
		e = &entry{id: o.ID, path: filepath.Join(c.cfg.Dir, o.ID)}
		e.lruElem = c.lru.PushFront(e)
		c.entries[o.ID] = e
	} else {
		c.lru.MoveToFront(e.lruElem)
		if e.file != nil {
			c.opened.MoveToFront(e.openElem)
		}
	}
	e.users++
	return e
}

// release ends what use began.
func (c *Cache) release(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.users--
	switch {
	case e.users > 0:
	case e.removed:
		c.closeFile(e)
	case e.marked == 0 && (e.loaded || e.bytes == 0): // nothing came of it
		c.remove(e)
	}
	c.enforceLimits()
}

// remove takes an entry out of the cache, with its file, at once: whoever wants the object next begins
// anew. Those who use the entry keep its open file until they leave. The caller holds mu.
func (c *Cache) remove(e *entry) {
	if e.removed {
		return
	}
	delete(c.entries, e.id)
	c.lru.Remove(e.lruElem)
	c.bytes -= e.bytes
	e.bytes, e.removed = 0, true
	if e.users == 0 {
		c.closeFile(e)
	}
	if err := os.RemoveAll(e.path); err != nil {
		c.log.Warn("not removed from the cache", "file", e.path, "err", err)
	}
}

// closeFile closes an entry's file. The caller holds mu, and nobody uses the entry.
func (c *Cache) closeFile(e *entry) {
	if e.file == nil {
		return
	}
	if err := e.file.Close(); err != nil {
		c.log.Warn("file of the cache not closed", "file", e.path, "err", err)
	}
	e.file = nil
	c.opened.Remove(e.openElem)
}

// Give gives back disk space, bytes of it or all there is, beginning with what was used longest ago, and answers how
// much. What somebody uses stays.
func (c *Cache) Give(bytes int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.bytes
	c.evictTo(before - bytes)
	return before - c.bytes
}

// evictTo has no more than bytes kept, as far as nobody uses what would go. The caller holds mu.
func (c *Cache) evictTo(bytes int64) {
	for at := c.lru.Back(); at != nil && c.bytes > bytes; {
		e, ok := at.Value.(*entry)
		at = at.Prev()
		if ok && e.users == 0 {
			c.evicted.Add(1)
			c.remove(e)
		}
	}
}

// enforceLimits brings the cache within its bounds, as far as nobody uses what would go. The caller holds mu.
func (c *Cache) enforceLimits() {
	c.evictTo(c.cfg.Bytes)
	for at := c.opened.Back(); at != nil && c.opened.Len() > c.cfg.Files; {
		e, ok := at.Value.(*entry)
		at = at.Prev()
		if ok && e.users == 0 {
			c.closeFile(e)
		}
	}
}
