package archive_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/wal"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

// A node that has lost a database to another one writes and removes nothing in its archive.
func TestFence(t *testing.T) {
	store, err := blob.Open(t.Context(), "file://"+t.TempDir(), blob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ring, err := keyring.New(bytes.Repeat([]byte{1}, keyring.KeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	node := func(fence int64) *archive.Archive {
		a, err := archive.New(store, ring, "db1", archive.Options{Fence: fence, Retry: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	segment := wal.Segment{Timeline: 1, Number: 1}
	writes := map[string]func(*archive.Archive) error{
		"segment": func(a *archive.Archive) error {
			return a.PutSegment(t.Context(), segment, []byte("log"), archive.Coverage{})
		},
		"partial":     func(a *archive.Archive) error { return a.RemovePartial(t.Context(), segment, 3) },
		"description": func(a *archive.Archive) error { return a.PutDescription(t.Context(), []byte("new")) },
	}
	first := node(0)
	if _, err := first.Description(t.Context()); !errors.Is(err, archive.ErrNoDescription) {
		t.Errorf("Description = %v, want ErrNoDescription", err)
	}
	if err := first.PutDescription(t.Context(), []byte("of the first")); err != nil {
		t.Fatal(err)
	}
	for want := int64(1); want < 4; want++ {
		before := node(want - 1)
		for name, write := range writes {
			if err := write(before); err != nil {
				t.Errorf("%s by the node with the number %d: %v", name, want-1, err)
			}
		}
		n, err := node(0).TakeFence(t.Context(), time.Now())
		if err != nil || n != want {
			t.Fatalf("TakeFence = %d, %v, want %d", n, err, want)
		}
		for _, lost := range []int64{0, want - 1} {
			if err := node(lost).Holds(t.Context()); !errors.Is(err, archive.ErrFenced) {
				t.Errorf("Holds of the node with the number %d = %v, want ErrFenced", lost, err)
			}
		}
		for name, write := range writes {
			if err := write(before); !errors.Is(err, archive.ErrFenced) {
				t.Errorf("%s by the node with the number %d = %v, want ErrFenced", name, want-1, err)
			}
		}
		if text, err := node(n).Description(t.Context()); err != nil || string(text) != "new" {
			t.Errorf("Description = %q, %v; want that of the node before", text, err)
		}
	}
	if err := node(3).RemoveAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := first.Holds(t.Context()); !errors.Is(err, archive.ErrFenced) {
		t.Errorf("Holds after the database was removed = %v, want ErrFenced", err)
	}
	if _, err := node(3).Description(t.Context()); !errors.Is(err, archive.ErrNoDescription) {
		t.Errorf("Description after the database was removed = %v, want none", err)
	}
}

// Descriptions hold credentials: the object store learns nothing of them, and none passes for that of another database.
func TestDescriptionIsSealed(t *testing.T) {
	dir := t.TempDir()
	store, err := blob.Open(t.Context(), "file://"+dir, blob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	open := func(key byte, id string) *archive.Archive {
		ring, err := keyring.New(bytes.Repeat([]byte{key}, keyring.KeyBytes))
		if err != nil {
			t.Fatal(err)
		}
		a, err := archive.New(store, ring, id, archive.Options{Retry: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if err := open(1, "db1").PutDescription(t.Context(), []byte("the password")); err != nil {
		t.Fatal(err)
	}
	var stored []byte
	err = store.List(t.Context(), "db/db1/description/", func(i blob.Info) error {
		r, err := store.Get(t.Context(), i.Key, 0, -1)
		if err != nil {
			return err
		}
		defer r.Close()
		buf := new(bytes.Buffer)
		_, err = buf.ReadFrom(r)
		stored = buf.Bytes()
		return errors.Join(err, store.Put(t.Context(), "db/db2/description/0000000000000000",
			bytes.NewReader(stored), int64(len(stored))))
	})
	if err != nil || len(stored) == 0 || bytes.Contains(stored, []byte("password")) {
		t.Errorf("stored %q, %v", stored, err)
	}
	for name, a := range map[string]*archive.Archive{
		"another key": open(2, "db1"), "another database": open(1, "db2"),
	} {
		if _, err := a.Description(t.Context()); !errors.Is(err, archive.ErrCorrupt) {
			t.Errorf("Description with %s = %v, want ErrCorrupt", name, err)
		}
	}
}
