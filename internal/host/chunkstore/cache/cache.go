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

// Config configures a Cache.
type Config struct {
	Dir   string       // made if it does not exist; not shared with anything else
	Bytes int64        // limit of the cached frames; default 4 GiB
	Files int          // limit of the files kept open without readers; default 256
	Log   *slog.Logger // may be nil
}

// Object identifies the object that frames belong to.
type Object struct {
	ID    string // 8 to 128 lower-case letters and digits
	Bytes int    // size
}

// frame returns the size of frame i.
func (o Object) frame(i int) int { return min(Frame, o.Bytes-i*Frame) }

func (o Object) frames() int { return (o.Bytes + Frame - 1) / Frame }

func (o Object) check() error {
	if len(o.ID) < 8 || len(o.ID) > 128 || strings.Trim(o.ID, "abcdefghijklmnopqrstuvwxyz0123456789") != "" ||
		o.Bytes < 1 || o.Bytes > maxObject {
		return fmt.Errorf("cache: invalid object %q of %d bytes", o.ID, o.Bytes)
	}
	return nil
}

// Fetch returns the content of count frames of an object, starting at frame first.
type Fetch func(ctx context.Context, first, count int) ([]byte, error)

// Stats are the current size and the counters since Open.
type Stats struct {
	Bytes, Objects int64 // in the cache now
	Hits, Misses   int64 // frames that were found, and that were fetched
	Evicted        int64 // objects
	Damaged        int64 // frames or files that failed verification
	NotStored      int64 // frames that could not be stored
}

// Cache is a directory of frames.
type Cache struct {
	cfg Config
	log *slog.Logger

	mu        sync.Mutex
	entries   map[string]*entry          // guarded by mu
	lru       list.List                  // of *entry, most recently used first; guarded by mu
	bytes     int64                      // guarded by mu
	flights   map[frameKey]*flight       // guarded by mu
	opened    list.List                  // of *entry whose file is open, most recently used first; guarded by mu
	memory    map[frameKey]*list.Element // guarded by mu
	memoryLRU list.List                  // of *memoryFrame, most recently used first; guarded by mu

	hits, misses, evicted, damaged, notStored atomic.Int64
}

// entry is one object. Cache.mu guards all fields but io. An open file stays open while the entry has users.
type entry struct {
	id       string
	path     string
	lruElem  *list.Element // in Cache.lru
	openElem *list.Element // in Cache.opened while file is set
	users    int
	loaded   bool   // marked is known: the file was opened once
	verified uint64 // the frames in marked that were verified
	marked   uint64 // frames that have a checksum
	bytes    int64
	removed  bool // it is not in the cache any more
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
	err  error // set before done is closed
}

// maxMemoryFrames is how many frames are kept in memory if the directory cannot store them.
const maxMemoryFrames = 128

// memoryFrame is a frame in memory.
type memoryFrame struct {
	key  frameKey
	data []byte
}

// Open opens the cache in a directory with the objects that it holds. It returns an error if the directory
// cannot be used at all. It removes damaged files of the cache.
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

// scan finds the objects in the directory.
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
			continue // removed meanwhile, or not a file of the cache
		}
		e := &entry{id: f.Name(), path: filepath.Join(c.cfg.Dir, f.Name()), bytes: allocatedBytes(info)}
		if !info.Mode().IsRegular() || info.Size() != fileBytes {
			c.damaged.Add(1)
			if err := os.RemoveAll(e.path); err != nil {
				c.log.Warn("cache file not removed", "file", e.path, "err", err)
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

// Stats returns the size and the counters of the cache.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Stats{Bytes: c.bytes, Objects: int64(len(c.entries)), Hits: c.hits.Load(), Misses: c.misses.Load(),
		Evicted: c.evicted.Load(), Damaged: c.damaged.Load(), NotStored: c.notStored.Load()}
}

// Close closes all files. The cache must not be used any more.
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

// acquire returns the entry of an object, with one more user and as the most recently used one. It returns
// nil if there is none and create is not set.
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

// release undoes acquire.
func (c *Cache) release(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.users--
	switch {
	case e.users > 0:
	case e.removed:
		c.closeFile(e)
	case e.marked == 0 && (e.loaded || e.bytes == 0): // no frame was stored
		c.remove(e)
	}
	c.enforceLimits()
}

// remove removes an entry and its file at once: the next use of the object starts a new entry. Current users
// keep the open file until they release the entry. The caller holds mu.
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
		c.log.Warn("cache file not removed", "file", e.path, "err", err)
	}
}

// closeFile closes an entry's file. The caller holds mu, and the entry has no users.
func (c *Cache) closeFile(e *entry) {
	if e.file == nil {
		return
	}
	if err := e.file.Close(); err != nil {
		c.log.Warn("cache file not closed", "file", e.path, "err", err)
	}
	e.file = nil
	c.opened.Remove(e.openElem)
}

// Evict frees disk space by removing the least recently used objects. It stops after that many bytes, and
// returns how many it freed. Objects in use stay.
func (c *Cache) Evict(bytes int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.bytes
	c.evictTo(before - bytes)
	return before - c.bytes
}

// evictTo removes unused objects until at most that many bytes are left. The caller holds mu.
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

// enforceLimits removes and closes unused objects until the cache is within its limits. The caller holds mu.
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
