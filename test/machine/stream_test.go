//go:build vm

package machine

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/blob/blobtest"
)

func TestMachineStreams(t *testing.T) {
	testStreaming(t, withDataDisk, "mkdir /mem && mount -t tmpfs tmpfs /mem && cat /usr/bin/* | head -c 8000000 > /mem/hot; "+
		"echo word > /root/word; cat /usr/bin/* | head -c 9000000 > /data/cold; sync", "wc -c < /mem/hot && cat /root/word && sha256sum < /data/cold")
}

// TestStoreFailsUnderAMachine has a machine wait for content that does not come any more.
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
		if _, err := os.Stat(filepath.Join(l.dir, "snapshots", string(snp))); err == nil { // begun; the rest comes soon
			return blobtest.Fault{Err: errors.New("the store is gone")}
		}
		return blobtest.Fault{}
	})
	if _, err := l.StreamSnapshot(t.Context(), "ws", snp, nil); err != nil {
		t.Fatal(err)
	}
	_, err := l.Create(t.Context(), hostapi.Create{ID: "starved", Snapshot: snp})
	if err == nil {
		destroy(t, "starved")
		t.Fatal("a machine of which nothing comes was made")
	}
	t.Logf("create: %v", err)
	for _, part := range []string{"download of its snapshot failed", "the store is gone"} {
		if !bytes.Contains([]byte(err.Error()), []byte(part)) {
			t.Errorf("create says %q, without %q", err, part)
		}
	}
	if _, err := l.Get(t.Context(), "starved"); !errors.Is(err, hostapi.ErrNotFound) {
		t.Errorf("a machine that was not made is there: %v", err)
	}
	if err := l.DeleteSnapshot(t.Context(), snp); err != nil {
		t.Fatal(err)
	}
}
