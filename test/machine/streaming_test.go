//go:build vm || slow

package machine

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/agent"
	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

// objectStore is the object store that the hosts of these tests share: in the same city, with 1 Gbit/s.
var objectStore = blobtest.NewShaped(blobtest.NewMemory(), 5*time.Millisecond, 125_000_000)

// openObjects opens the object store for a host.
func openObjects(dir string) (*agent.Objects, func() error, error) {
	ring, err := keyring.New(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		return nil, nil, err
	}
	vault, err := chunkstore.New(objectStore, ring, chunkstore.Config{})
	if err != nil {
		return nil, nil, err
	}
	kept, err := cache.Open(cache.Config{Dir: filepath.Join(dir, "chunks")})
	if err != nil {
		return nil, nil, errors.Join(err, vault.Close())
	}
	return &agent.Objects{
		Chunks: vault,
		Cache:  kept,
	}, func() error { return errors.Join(kept.Close(), vault.Close()) }, nil
}

// slowStore is an object store at the other end of a connection with 1 Gbit/s and 5 ms.
type slowStore struct {
	*blobtest.Shaped
	faults *blobtest.Faulty
}

func newSlowStore() *slowStore {
	faults := blobtest.NewFaulty(blobtest.NewMemory(), nil)
	return &slowStore{blobtest.NewShaped(faults, 5*time.Millisecond, 125_000_000), faults}
}

// reopen starts the shared host agent again, as a host that has read nothing of store.
func reopen(t *testing.T, store blob.Store) *lab {
	t.Helper()
	closeShared(t)
	ring, err := keyring.New(bytes.Repeat([]byte{1}, 32))
	if err != nil {
		t.Fatal(err)
	}
	cfg := chunkstore.Config{ReadTimeout: 5 * time.Second, RetryDelay: time.Millisecond}
	vault, err := chunkstore.New(store, ring, cfg)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := cache.Open(cache.Config{Dir: filepath.Join(t.TempDir(), "chunks")})
	if err != nil {
		t.Fatal(err)
	}
	objects = &agent.Objects{Chunks: vault, Cache: kept}
	l := host(t)
	objects = nil
	t.Cleanup(func() {
		closeShared(t) // before what it uses is closed
		if err := errors.Join(kept.Close(), vault.Close()); err != nil {
			t.Error(err)
		}
	})
	return l
}

// firstExec gets a snapshot with bring, makes a machine of it and runs a command in it. It returns how long that
// took.
func (l *lab) firstExec(
	t *testing.T,
	id hostapi.MachineID,
	snp hostapi.SnapshotID,
	shell, want string,
	bring func() error,
) time.Duration {
	t.Helper()
	began := time.Now()
	if bring != nil {
		if err := bring(); err != nil {
			t.Fatal(err)
		}
	}
	brought := time.Since(began)
	l.create(t, hostapi.Create{ID: id, Snapshot: snp})
	created := time.Since(began)
	if got := l.run(t, id, shell); got != want {
		t.Fatalf("output of %q = %q, want %q", shell, got, want)
	}
	took := time.Since(began)
	t.Logf("%s: brought after %v, created after %v, first exec after %v", id, brought, created, took)
	return took
}

// hasTrace reports whether a store has a trace.
func hasTrace(t *testing.T, store *slowStore) bool {
	t.Helper()
	found := 0
	err := store.faults.List(t.Context(), "", func(i blob.Info) error {
		found += bytes.Count([]byte(i.Key), []byte("/trace"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found > 0
}

// testStreaming starts machines from a snapshot of a machine of template on hosts that have nothing of it:
// downloaded first, streamed without a trace, streamed with a trace, and restored a second time. fill runs in the
// machine before the snapshot, use in all that are made from it.
func testStreaming(t *testing.T, template hostapi.TemplateName, fill, use string) {
	store := newSlowStore()
	l := reopen(t, store)
	const snp = hostapi.SnapshotID("snpstream")
	if err := l.Bake(t.Context(), template); err != nil {
		t.Fatal(err)
	}
	l.create(t, hostapi.Create{ID: "streamed", Template: template})
	l.run(t, "streamed", fill)
	want := l.run(t, "streamed", use)
	if _, err := l.TakeSnapshot(t.Context(), "streamed", snp, nil); err != nil {
		t.Fatal(err)
	}
	pushed, err := l.PushSnapshot(t.Context(), "ws", snp)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("pushed %d MiB as %d MiB", pushed.Bytes>>20, pushed.Uploaded>>20)
	destroy(t, "streamed")
	stream := func(l *lab) func() error {
		return func() error { _, err := l.StreamSnapshot(t.Context(), "ws", snp, nil); return err }
	}
	forget := func(l *lab) {
		t.Helper()
		if err := l.DeleteSnapshot(t.Context(), snp); err != nil {
			t.Fatal(err)
		}
	}

	forget(l)
	l = reopen(t, store)
	whole := l.firstExec(
		t,
		"pulled",
		snp,
		use,
		want,
		func() error { _, err := l.PullSnapshot(t.Context(), "ws", snp, nil); return err },
	)
	destroy(t, "pulled")
	forget(l)

	l = reopen(t, store)
	read := store.Read.Load()
	unknown := l.firstExec(t, "unknown", snp, use, want, stream(l))
	t.Logf("fetched %d MiB", (store.Read.Load()-read)>>20)
	wait(t, "a kept trace", func() bool { return hasTrace(t, store) })
	// A fork waits until everything is downloaded.
	forked, err := l.Fork(t.Context(), hostapi.Fork{Parent: "unknown", Children: []hostapi.Child{{ID: "child"}}})
	if err != nil || forked[0].Failure != nil {
		t.Fatal(forked, err)
	}
	t.Cleanup(func() { destroy(t, "child") })
	if got := l.run(t, "child", use); got != want {
		t.Errorf("output of a fork of a machine that streamed = %q, want %q", got, want)
	}
	gets := store.Gets.Load()
	second := l.firstExec(t, "second", snp, use, want, stream(l))
	if more := store.Gets.Load() - gets; more != 0 {
		t.Errorf("a second restore read %d times from the store, want 0", more)
	}
	for _, id := range []hostapi.MachineID{"unknown", "child", "second"} {
		destroy(t, id)
	}
	forget(l)

	l = reopen(t, store)
	read = store.Read.Load()
	traced := l.firstExec(t, "traced", snp, use, want, stream(l))
	t.Logf(
		"fetched %d MiB; whole %v, unknown %v, traced %v (%.0f %% of whole), second %v",
		(store.Read.Load()-read)>>20,
		whole,
		unknown,
		traced,
		100*traced.Seconds()/whole.Seconds(),
		second,
	)
	destroy(t, "traced")
	forget(l)
}
