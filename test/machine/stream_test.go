//go:build vm

package machine

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
)

func TestMachineStreams(t *testing.T) {
	const (
		fill = "mkdir /mem && mount -t tmpfs tmpfs /mem && cat /usr/bin/* | head -c 8000000 > /mem/hot; " +
			"echo word > /root/word; cat /usr/bin/* | head -c 9000000 > /data/cold; sync"
		use = "wc -c < /mem/hot && cat /root/word && sha256sum < /data/cold"
	)
	testStreaming(t, withDataDisk, fill, use)
}

// TestStoreFailsUnderAMachine fails the object store while a machine waits for a download.
func TestStoreFailsUnderAMachine(t *testing.T) {
	store := newSlowStore()
	l := reopen(t, store)
	const snp = hostapi.SnapshotID("snpdead")
	l.create(t, hostapi.Create{ID: "dying"})
	l.run(t, "dying", "head -c 20000000 /dev/urandom > /dev/shm/x")
	if _, err := l.TakeSnapshot(t.Context(), "dying", snp, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := l.PushSnapshot(t.Context(), "ws", snp); err != nil {
		t.Fatal(err)
	}
	destroy(t, "dying")
	if err := l.DeleteSnapshot(t.Context(), snp); err != nil {
		t.Fatal(err)
	}
	l = reopen(t, store)
	store.faults.SetFaults(func(c blobtest.Call) blobtest.Fault {
		// The download has begun; the rest follows soon.
		if _, err := os.Stat(filepath.Join(l.dir, "snapshots", string(snp))); err == nil {
			return blobtest.Fault{Err: errors.New("no store")}
		}
		return blobtest.Fault{}
	})
	if _, err := l.StreamSnapshot(t.Context(), "ws", snp, nil); err != nil {
		t.Fatal(err)
	}
	_, err := l.Create(t.Context(), hostapi.Create{ID: "starved", Snapshot: snp})
	if err == nil {
		destroy(t, "starved")
		t.Fatal("create of a machine whose download fails: got no error")
	}
	t.Logf("create: %v", err)
	for _, part := range []string{"download of its snapshot failed", "no store"} {
		if !bytes.Contains([]byte(err.Error()), []byte(part)) {
			t.Errorf("create: got %q, want %q in it", err, part)
		}
	}
	if _, err := l.Get(t.Context(), "starved"); !errors.Is(err, hostapi.ErrNotFound) {
		t.Errorf("get of a machine that was not made: got %v, want ErrNotFound", err)
	}
	if err := l.DeleteSnapshot(t.Context(), snp); err != nil {
		t.Fatal(err)
	}
}
