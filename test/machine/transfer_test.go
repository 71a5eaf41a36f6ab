//go:build vm

package machine

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/os/disk"
)

// secondHost starts a second host agent with a data directory and names of its own.
func secondHost(t *testing.T, a *lab) *lab {
	t.Helper()
	dir := a.dir + "-b"
	const guest = "pandastack-guest"
	err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o711))
	if err := errors.Join(err, disk.Clone(filepath.Join(a.dir, guest), filepath.Join(dir, guest))); err != nil {
		t.Fatal(err)
	}
	b, err := open(t.Context(), dir, &logger{t})
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

// TestForkOnAnotherHost forks a machine of host a to host b through the object store, while its parent continues:
// first streamed, then downloaded. Memory and disk arrive.
func TestForkOnAnotherHost(t *testing.T) {
	a := host(t)
	b := secondHost(t, a)
	a.create(t, hostapi.Create{ID: "mover"})
	t.Cleanup(func() { _ = a.Destroy(t.Context(), "mover", "end of the test") })
	push := func(id hostapi.SnapshotID) hostapi.PushResult {
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
	const change = "head -c 8000000 /dev/urandom > /run/m; head -c 8000000 /dev/urandom > /root/d; sync; " +
		"cat /run/m /root/d | sha256sum"
	sum := a.run(t, "mover", change)
	began := time.Now()
	second := push("moveone")
	pushed := time.Since(began)
	if _, err := b.StreamSnapshot(t.Context(), "ws", "moveone", nil); err != nil {
		t.Fatal(err)
	}
	b.create(t, hostapi.Create{ID: "moved", Snapshot: "moveone"})
	b.run(t, "moved", "true")
	t.Logf(
		"template and first snapshot: %+v; capture and push of a difference: %v, %+v; "+
			"cross-host fork to first exec: %v",
		first,
		pushed,
		second,
		time.Since(began),
	)
	if limit := second.Bytes + second.Bytes/5; second.Uploaded > limit {
		t.Errorf("%d bytes uploaded for %d new ones, want at most a fifth more", second.Uploaded, second.Bytes)
	}
	if got := b.run(t, "moved", "cat /run/m /root/d | sha256sum"); got != sum {
		t.Errorf("checksum on the other host = %s, want %s", got, sum)
	}
	if got := a.run(t, "mover", "cat /run/m /root/d | sha256sum"); got != sum {
		t.Errorf("checksum on the first host = %s, want %s", got, sum)
	}
	// The machine moves: it ends on one host and continues on the other.
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
		t.Errorf("output of the machine that moved = %q, want its word and checksum", got)
	}
	t.Logf("pull and first exec: %v", time.Since(began))
	for _, id := range []hostapi.SnapshotID{"movezero", "moveone", "movetwo"} {
		if err := a.DeleteSnapshot(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
}
