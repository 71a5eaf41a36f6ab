package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Read fills p with the content of an object from off on if all of it is in the cache. It reports whether it
// did.
func (c *Cache) Read(o Object, off int, p []byte) bool {
	if o.check() != nil || off < 0 || off+len(p) > o.Bytes {
		return false
	}
	e := c.acquire(o, false)
	if e != nil {
		defer c.release(e)
	}
	return c.copy(e, o, off, p)
}

// copy is Read for a user of the entry, which may be nil.
func (c *Cache) copy(e *entry, o Object, off int, p []byte) bool {
	for len(p) > 0 {
		i, at := off/Frame, off%Frame
		n := min(len(p), o.frame(i)-at)
		if !c.read(e, o, i, at, p[:n]) && !c.readFromMemory(o, i, at, p[:n]) {
			return false
		}
		c.hits.Add(1)
		off, p = off+n, p[n:]
	}
	return true
}

// Piece is a requested part of an object.
type Piece struct {
	Off  int // in the object
	Into []byte
}

// maxFillAttempts bounds how often a frame may be dropped from memory between its fetch and its use.
const maxFillAttempts = 4

// Fill reads several pieces, ordered by offset, and fetches missing frames as Ensure does.
func (c *Cache) Fill(ctx context.Context, o Object, pieces []Piece, fetch Fetch) error {
	for _, x := range pieces {
		if x.Off < 0 || x.Off+len(x.Into) > o.Bytes {
			return fmt.Errorf("cache: %d bytes at %d exceed the object of %d bytes", len(x.Into), x.Off, o.Bytes)
		}
	}
	e, err := c.openEntry(o)
	if err != nil {
		return err
	}
	defer c.release(e)
	for range maxFillAttempts {
		missing := pieces[:0:0]
		for _, x := range pieces {
			if !c.copy(e, o, x.Off, x.Into) {
				missing = append(missing, x)
			}
		}
		if len(missing) == 0 {
			return nil
		}
		pieces = missing
		if err := c.ensureAll(ctx, e, o, pieces, fetch); err != nil {
			return err
		}
	}
	return fmt.Errorf("cache: frames of %s are evicted before they can be read", o.ID)
}

// ensureAll ensures the frames of pieces, with one call for adjacent pieces.
func (c *Cache) ensureAll(ctx context.Context, e *entry, o Object, pieces []Piece, fetch Fetch) error {
	first, end := 0, 0
	for _, x := range pieces {
		from, to := x.Off/Frame, (x.Off+len(x.Into)+Frame-1)/Frame
		if from > end {
			if err := c.ensure(ctx, e, o, first, end-first, fetch); err != nil {
				return err
			}
			first = from
		} else if end == 0 {
			first = from
		}
		end = max(end, to)
	}
	return c.ensure(ctx, e, o, first, end-first, fetch)
}

// read copies from a frame in an entry's file, starting at offset at in the frame.
func (c *Cache) read(e *entry, o Object, i, at int, p []byte) bool {
	if e == nil {
		return false
	}
	file, err := c.handle(e, false)
	if err != nil {
		c.discard(e, err)
		return false
	}
	c.mu.Lock()
	checked, claimed := e.verified>>i&1 == 1, e.marked>>i&1 == 1
	c.mu.Unlock()
	switch {
	case checked:
		if _, err := file.ReadAt(p, int64(i)*Frame+int64(at)); err != nil {
			c.discard(e, err)
			return false
		}
		return true
	case claimed:
		data, err := verify(file, o, i)
		if errors.Is(err, errChecksum) {
			c.dropFrame(e, file, i, err)
			return false
		}
		if err != nil {
			c.discard(e, err)
			return false
		}
		c.mu.Lock()
		e.verified |= 1 << i
		c.mu.Unlock()
		copy(p, data[at:])
		return true
	}
	return false
}

// dropFrame removes a frame that is not what was written.
func (c *Cache) dropFrame(e *entry, file *os.File, i int, why error) {
	c.damaged.Add(1)
	c.log.Warn("cached frame is damaged", "file", e.path, "frame", i, "err", why)
	if _, err := file.WriteAt(make([]byte, 8), maxObject+8*int64(i)); err != nil {
		c.log.Warn("damaged frame not removed from the cache", "file", e.path, "frame", i, "err", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.marked>>i&1 == 1 && !e.removed {
		e.bytes -= Frame
		c.bytes -= Frame
	}
	e.verified &^= 1 << i
	e.marked &^= 1 << i
}

// discard removes an entry whose file cannot be used.
func (c *Cache) discard(e *entry, why error) {
	if errors.Is(why, fs.ErrNotExist) {
		return // there is no file yet, or another user removed it before
	}
	c.damaged.Add(1)
	c.log.Warn("unusable cache file discarded", "file", e.path, "err", why)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(e)
}

// Ensure fetches the missing frames of a range into the cache, adjacent ones in one call of fetch. Of several
// concurrent callers one fetches a frame. Ensure returns when all frames are there, or the first error of a
// fetch. A failure to store frames is no error: Read then serves them from memory for a while.
func (c *Cache) Ensure(ctx context.Context, o Object, first, count int, fetch Fetch) error {
	e, err := c.openEntry(o)
	if err != nil {
		return err
	}
	defer c.release(e)
	return c.ensure(ctx, e, o, first, count, fetch)
}

// openEntry acquires an object's entry, with a usable file or none.
func (c *Cache) openEntry(o Object) (*entry, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	e := c.acquire(o, true)
	if _, err := c.handle(e, false); err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.discard(e, err)
		c.release(e)
		e = c.acquire(o, true)
	}
	return e, nil
}

func (c *Cache) ensure(ctx context.Context, e *entry, o Object, first, count int, fetch Fetch) error {
	if first < 0 || count < 0 || first+count > o.frames() {
		return fmt.Errorf("cache: frames %d to %d exceed the object of %d frames", first, first+count, o.frames())
	}
	for i := first; i < first+count; {
		n, theirs := c.startFetch(e, o, i, first+count-i)
		switch {
		case theirs != nil:
			// The result is looked up again.
			if err := waitFlight(ctx, theirs); err != nil {
				return err
			}
		case n == 0:
			i++
		default:
			if err := c.fetch(ctx, e, o, i, n, fetch); err != nil {
				return err
			}
			i += n
		}
	}
	return nil
}

// waitFlight waits for another caller's fetch. If that caller gave up, this is no error.
func waitFlight(ctx context.Context, f *flight) error {
	select {
	case <-f.done:
		if errors.Is(f.err, errFetchCanceled) {
			return nil
		}
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// errFetchCanceled is the result of a fetch whose caller went away.
var errFetchCanceled = errors.New("the caller that fetched the frame went away")

// startFetch claims up to limit frames, starting at frame i, that are missing and not being fetched. It
// returns 0 if frame i is there, and theirs if another caller is fetching frame i.
func (c *Cache) startFetch(e *entry, o Object, i, limit int) (n int, theirs *flight) {
	for ; n < limit; n++ {
		if c.has(e, o, i+n) {
			break
		}
		c.mu.Lock()
		key := frameKey{o.ID, i + n}
		f := c.flights[key]
		if f == nil {
			c.flights[key] = &flight{done: make(chan struct{})}
		}
		c.mu.Unlock()
		if f != nil {
			if n == 0 {
				return 0, f
			}
			break
		}
	}
	return n, nil
}

// has reports whether a valid frame is there.
func (c *Cache) has(e *entry, o Object, i int) bool {
	if c.readFromMemory(o, i, 0, nil) {
		return true
	}
	c.mu.Lock()
	checked, claimed := e.verified>>i&1 == 1 && !e.removed, e.marked>>i&1 == 1 && !e.removed
	c.mu.Unlock()
	return checked || claimed && c.read(e, o, i, 0, nil)
}

// fetch fetches claimed frames and wakes the waiting callers.
func (c *Cache) fetch(ctx context.Context, e *entry, o Object, first, count int, fetch Fetch) error {
	data, err := fetch(ctx, first, count)
	if err == nil {
		want := min(count*Frame, o.Bytes-first*Frame)
		if len(data) != want {
			err = fmt.Errorf("cache: fetch returned %d bytes, want %d", len(data), want)
		}
	}
	if err == nil {
		c.misses.Add(int64(count))
		if bad := c.storeFrames(e, o, first, count, data); bad != nil {
			c.notStored.Add(int64(count))
			c.log.Warn("frames not stored in the cache", "file", e.path, "err", bad)
			c.storeInMemory(o, first, count, data)
		}
	}
	shared := err
	if err != nil && ctx.Err() != nil {
		shared = errFetchCanceled
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := first; i < first+count; i++ {
		key := frameKey{o.ID, i}
		f := c.flights[key]
		delete(c.flights, key)
		f.err = shared
		close(f.done)
	}
	return err
}
