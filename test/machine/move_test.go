//go:build vm

package machine

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/blob/blobtest"
	"github.com/pandastack/pandastack/internal/chunk"
	"github.com/pandastack/pandastack/internal/chunk/cache"
	"github.com/pandastack/pandastack/internal/disk"
	"github.com/pandastack/pandastack/internal/hostapi"
	"github.com/pandastack/pandastack/internal/hostd"
)

// objectStore is what the hosts of these tests share: a store in the same city on 1 Gbit/s.
var objectStore = blobtest.Shape(blobtest.Memory(), 5*time.Millisecond, 125_000_000)

// openObjects gives a host its part of the object store.
func openObjects(dir string) (*hostd.Objects, func() error, error) {
	ring, err := chunk.NewKeyring(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		return nil, nil, err
	}
	vault, err := chunk.New(objectStore, ring, chunk.Config{})
	if err != nil {
		return nil, nil, err
	}
	kept, err := cache.Open(cache.Config{Dir: filepath.Join(dir, "chunks")})
	if err != nil {
		return nil, nil, errors.Join(err, vault.Close())
	}
	return &hostd.Objects{Vault: vault, Cache: kept}, func() error { return errors.Join(kept.Close(), vault.Close()) }, nil
}

// another starts a second host agent with a data directory and names of its own.
func another(t *testing.T, a *lab) *lab {
	t.Helper()
	dir := a.dir + "-b"
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o711), disk.Clone(filepath.Join(a.dir, "pandastack-guest"), filepath.Join(dir, "pandastack-guest"))); err != nil {
		t.Fatal(err)
	}
	b, err := openAs(t.Context(), dir, "pmtesu", &logger{t})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(b.close(false), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return b
}

// A machine of host a goes on, and another one begins on host b where it was, from the object store: first
// while its content is coming, then from a pull. What was in memory and on disk is there.
func TestForkOnAnotherHost(t *testing.T) {
	a := host(t)
	b := another(t, a)
	a.create(t, hostapi.Create{ID: "mover"})
	t.Cleanup(func() { _ = a.Destroy(t.Context(), "mover", "end of the test") })
	push := func(id hostapi.SnapshotID) hostapi.Pushed {
		t.Helper()
		if _, err := a.TakeSnapshot(t.Context(), "mover", id, nil); err != nil {
			t.Fatal(err)
		}
		p, err := a.PushSnapshot(t.Context(), "ws", id)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := push("movezero") // with the template
	const change = "head -c 8000000 /dev/urandom > /run/m; head -c 8000000 /dev/urandom > /root/d; sync; cat /run/m /root/d | sha256sum"
	sum := a.run(t, "mover", change)
	began := time.Now()
	second := push("moveone")
	pushed := time.Since(began)
	if _, err := b.StreamSnapshot(t.Context(), "ws", "moveone", nil); err != nil {
		t.Fatal(err)
	}
	b.create(t, hostapi.Create{ID: "moved", Snapshot: "moveone"})
	b.run(t, "moved", "true")
	t.Logf("template and first snapshot: %+v; capture and push of a difference: %v, %+v; cross-host fork to first exec: %v",
		first, pushed, second, time.Since(began))
	if limit := second.Bytes + second.Bytes/5; second.Uploaded > limit {
		t.Errorf("%d bytes uploaded for %d new ones", second.Uploaded, second.Bytes)
	}
	if got := b.run(t, "moved", "cat /run/m /root/d | sha256sum"); got != sum {
		t.Errorf("the other host has %s, want %s", got, sum)
	}
	if got := a.run(t, "mover", "cat /run/m /root/d | sha256sum"); got != sum {
		t.Errorf("the first host has %s, want %s", got, sum)
	}
	// It moves: the same machine ends here and goes on there.
	a.run(t, "mover", "echo last > /run/word")
	push("movetwo")
	if err := a.Destroy(t.Context(), "mover", "it moves"); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	if _, err := b.PullSnapshot(t.Context(), "ws", "movetwo", nil); err != nil {
		t.Fatal(err)
	}
	b.create(t, hostapi.Create{ID: "mover", Snapshot: "movetwo"})
	if got := b.run(t, "mover", "cat /run/word; cat /run/m /root/d | sha256sum"); got != "last\n"+sum {
		t.Errorf("the machine that moved says %q", got)
	}
	t.Logf("pull and first exec: %v", time.Since(began))
	for _, id := range []hostapi.SnapshotID{"movezero", "moveone", "movetwo"} {
		if err := a.DeleteSnapshot(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
}
