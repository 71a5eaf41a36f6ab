package remote_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/host/snapshot/remote"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
	"github.com/pandastack/pandastack/internal/lib/keyring"
	"github.com/pandastack/pandastack/internal/vmm"
)

// host is one host with its snapshots and its view of the object store.
type host struct {
	t      *testing.T
	store  *snapshot.Store
	chunks *chunkstore.Store
	repo   *remote.Repository
	dir    string // of the snapshot store
}

func newHost(t *testing.T, objects blob.Store) *host {
	t.Helper()
	h := &host{t: t, dir: t.TempDir()}
	ring, err := keyring.New(bytes.Repeat([]byte{1}, 32))
	h.must(err)
	h.chunks, err = chunkstore.New(
		objects,
		ring,
		chunkstore.Config{RetryDelay: time.Millisecond, ReadTimeout: time.Second},
	)
	h.must(err)
	kept, err := cache.Open(cache.Config{Dir: t.TempDir()})
	h.must(err)
	t.Cleanup(func() { h.must(errors.Join(kept.Close(), h.chunks.Close())) })
	// Descriptions contain the sizes of snapshots. Two hosts that have the same template must have the same
	// size in it.
	all := func(path string) (apparent, own int64, err error) { return size, size, nil }
	h.store, err = snapshot.Open(h.dir, all, "snapshots", "templates")
	h.must(err)
	h.repo, err = remote.New(remote.Deps{
		Chunks: h.chunks, Cache: kept, Store: h.store,
		Clone: func(from, to string) error {
			data, err := os.ReadFile(from)
			return errors.Join(err, os.WriteFile(to, data, 0o600))
		},
		Public: func(ref snapshot.Ref) bool { return strings.HasPrefix(string(ref), "templates/") },
	})
	h.must(err)
	return h
}

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// commit makes a snapshot with the given memory; nil makes it remote-backed, without any content of the
// memory.
func (h *host) commit(snap snapshot.Snapshot, memory []byte) {
	h.t.Helper()
	d, err := h.store.Draft()
	h.must(err)
	path := filepath.Join(d.ImageDir(), "memory")
	h.must(os.WriteFile(path, memory, 0o600))
	if memory == nil {
		h.must(os.Truncate(path, size))
		snap = snap.WithOrigin([]byte("elsewhere"))
	}
	h.must(os.WriteFile(d.DiskPath(), nil, 0o600))
	h.must(os.Truncate(d.DiskPath(), 1<<20))
	snap.MemoryMiB, snap.Manifest = size>>20, vmm.Manifest{
		MemoryMiB: size >> 20,
		Files:     []vmm.File{{Name: "memory", Bytes: size}},
	}
	_, err = d.Commit(snap)
	h.must(errors.Join(err, d.Discard(), h.store.Release(snap.Ref)))
}

func (h *host) push(id string) remote.Stats {
	h.t.Helper()
	stats, err := h.repo.Push(h.t.Context(), "ws", chunkstore.ID(id), snapshot.Join("snapshots", id))
	h.must(err)
	return stats
}

const size = 8 << 20

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// templateAndMemories returns a template and the successive memories of its machine, each with some more
// bytes.
func templateAndMemories() (template snapshot.Snapshot, memories [4][]byte) {
	memories[0] = blobtest.Content(1, size)
	for i := 1; i < len(memories); i++ {
		memories[i] = bytes.Clone(memories[i-1])
		copy(memories[i][i<<20:], blobtest.Content(uint64(10+i), 400_000))
	}
	return snapshot.Snapshot{Ref: "templates/base/g1", Created: begin}, memories
}

func userSnapshot(name string, after int) snapshot.Snapshot {
	return snapshot.Snapshot{
		Ref:     snapshot.Join("snapshots", name),
		Machine: "m",
		Base:    "templates/base/g1",
		Created: begin.Add(time.Duration(after) * time.Hour),
	}
}

// A push stores the difference to the last snapshot of the machine that is in the store.
func TestPushStoresDifferenceToLastSnapshotOfMachine(t *testing.T) {
	h := newHost(t, blobtest.NewMemory())
	template, memory := templateAndMemories()
	h.commit(template, memory[0])
	for i, name := range []string{"one", "two", "three"} {
		h.commit(userSnapshot(name, i+1), memory[i+1])
	}
	h.push("one")
	if got := h.push("three").Dirty; got > 2*410_000 || got < 2*390_000 {
		t.Errorf("third snapshot: %d dirty bytes, want the changes since the first", got)
	}
	if got := h.push("two").Dirty; got > 410_000 || got < 390_000 {
		t.Errorf("second snapshot: %d dirty bytes, want the changes since the first", got)
	}
	for name, parent := range map[string]chunkstore.ID{"one": "tpl", "two": "one", "three": "one"} {
		from, err := h.repo.Open(t.Context(), "ws", chunkstore.ID(name))
		h.must(err)
		if m := from.Reader.Manifest(); !strings.HasPrefix(string(m.Parent), string(parent)) ||
			!strings.HasPrefix(string(from.Root), "tpl") {
			t.Errorf("%s: parent = %q, root = %q; want parent %q", name, m.Parent, from.Root, parent)
		}
	}
	// A snapshot that was deleted from the store is no base.
	h.must(h.repo.Delete(t.Context(), "ws", "three"))
	h.must(h.repo.Delete(t.Context(), "ws", "two"))
	h.commit(userSnapshot("four", 4), memory[3])
	h.push("four")
	if m, err := h.chunks.Open(t.Context(), "ws", "four"); err != nil || m.Parent != "one" {
		t.Errorf("manifest after others were deleted = %+v, %v; want the first snapshot as parent", m, err)
	}
}

// The manifests of a host's templates are loaded before a push needs them.
func TestTemplateManifestsAreCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := blobtest.NewFaulty(blobtest.NewMemory(), nil)
		a, b := newHost(t, objects), newHost(t, objects)
		template, memory := templateAndMemories()
		a.commit(template, memory[0])
		b.commit(template, memory[0])
		b.commit(snapshot.Snapshot{Ref: "templates/never/pushed", Created: begin}, memory[1])
		a.commit(userSnapshot("one", 1), memory[1])
		a.push("one")
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.repo.Run(ctx) }()
		synctest.Wait()
		before := objects.Count("get")
		from, err := b.repo.OpenWithLocalBase(t.Context(), "ws", "one")
		if err != nil {
			t.Fatal(err)
		}
		if n := objects.Count("get") - before; n != 1 {
			t.Errorf("got %d reads before a pull, want 1: the snapshot's manifest", n)
		}
		stop()
		b.must(errors.Join(from.Reader.Close(), <-ended))
	})
}

// A pull starts from a local snapshot: the parent, or else the common template. A remote-backed snapshot is
// no base.
func TestLocalContentIsNotFetched(t *testing.T) {
	objects := blobtest.NewMemory()
	a := newHost(t, objects)
	template, memory := templateAndMemories()
	a.commit(template, memory[0])
	a.commit(userSnapshot("one", 1), memory[1])
	a.commit(userSnapshot("two", 2), memory[2])
	a.push("one")
	a.push("two")
	for name, c := range map[string]struct {
		template, one []byte
		remoteBacked  bool
		most          int64
	}{
		"no-local-base":                     {nil, nil, false, 2 * size},
		"remote-backed-parent":              {nil, nil, true, 2 * size},
		"template":                          {memory[0], nil, false, 2 * 500_000},
		"remote-backed-parent-and-template": {memory[0], nil, true, 2 * 500_000},
		"parent-and-template":               {memory[0], memory[1], false, 500_000},
	} {
		t.Run(name, func(t *testing.T) {
			b := newHost(t, objects)
			if c.template != nil {
				b.commit(template, c.template)
			}
			if c.one != nil || c.remoteBacked {
				b.commit(userSnapshot("one", 1), c.one)
			}
			from, err := b.repo.OpenWithLocalBase(t.Context(), "ws", "two")
			b.must(err)
			got := make([]byte, size)
			b.must(from.Reader.ReadAt(t.Context(), "memory", got, 0))
			b.must(from.Reader.Close())
			if !bytes.Equal(got, memory[2]) {
				t.Error("reader with a local base: got other content than was pushed")
			}
			snap, stats, err := b.repo.Pull(t.Context(), "ws", "two", "snapshots/two", nil)
			b.must(err)
			got, err = os.ReadFile(filepath.Join(snap.Image().Dir, "memory"))
			if err != nil || !bytes.Equal(got, memory[2]) {
				t.Errorf("pulled memory: wrong content (%v)", err)
			}
			if stats.Fetched > c.most {
				t.Errorf("fetched %d bytes, want at most %d", stats.Fetched, c.most)
			}
		})
	}
}
