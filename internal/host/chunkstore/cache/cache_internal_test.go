package cache

import (
	"bytes"
	"os"
	"testing"
)

// opened returns an empty cache that is closed with the test.
func opened(t *testing.T) *Cache {
	t.Helper()
	c, err := Open(Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// A reader that found no file, and reports that after others have filled one, removes nothing.
func TestStaleNotExistKeepsNewEntry(t *testing.T) {
	c := opened(t)
	o, data := Object{"object0001", 100}, bytes.Repeat([]byte("x"), 100)
	reader, keeper := c.acquire(o, true), c.acquire(o, true)
	_, missing := c.handle(reader, false)
	if missing == nil {
		t.Fatal("handle of a new entry: got nil, want fs.ErrNotExist")
	}
	if err := c.storeFrames(keeper, o, 0, 1, data); err != nil {
		t.Fatal(err)
	}
	c.discard(reader, missing)
	c.release(reader)
	c.release(keeper)
	got := make([]byte, len(data))
	if !c.Read(o, 0, got) || !bytes.Equal(got, data) {
		t.Error("Read of a stored object = false or other content, want the content")
	}
	if s := c.Stats(); s.Objects != 1 || s.Damaged != 0 {
		t.Errorf("Stats() = %+v, want one object and no damage", s)
	}
}

// A file that is removed while it is closed is noticed, and its frames are fetched again.
func TestRemovedFile(t *testing.T) {
	c := opened(t)
	o, data := Object{"object0001", 100}, bytes.Repeat([]byte("x"), 100)
	e := c.acquire(o, true)
	if err := c.storeFrames(e, o, 0, 1, data); err != nil {
		t.Fatal(err)
	}
	c.release(e)
	c.mu.Lock()
	c.closeFile(e)
	c.mu.Unlock()
	if err := os.Remove(e.path); err != nil {
		t.Fatal(err)
	}
	if c.Read(o, 0, make([]byte, 1)) {
		t.Error("Read of a removed file = true, want false")
	}
	if s := c.Stats(); s.Objects != 0 || s.Bytes != 0 || s.Damaged != 1 {
		t.Errorf("Stats() = %+v, want an empty cache and one damage", s)
	}
	e = c.acquire(o, true)
	defer c.release(e)
	if err := c.storeFrames(e, o, 0, 1, data); err != nil {
		t.Error(err)
	}
}
