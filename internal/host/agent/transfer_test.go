package agent_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/agent"
	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
	"github.com/pandastack/pandastack/internal/lib/keyring"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/fake"
)

// fleet is two hosts over one object store.
type fleet struct {
	store *blobtest.Faulty
	a, b  *fixture
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{store: blobtest.NewFaulty(blobtest.NewMemory(), nil)}
	f.a, f.b = f.host(t, 1), f.host(t, 1)
	return f
}

// host starts a host of the fleet with a master key.
func (f *fleet) host(t *testing.T, key byte) *fixture {
	t.Helper()
	ring, err := keyring.New(bytes.Repeat([]byte{key}, 32))
	w := &fixture{t: t, dir: t.TempDir(), driver: fake.New()}
	w.must(err)
	vault, err := chunkstore.New(
		f.store,
		ring,
		chunkstore.Config{RetryDelay: time.Millisecond, ReadTimeout: time.Second},
	)
	w.must(err)
	kept, err := cache.Open(cache.Config{Dir: filepath.Join(w.dir, "chunks")})
	w.must(err)
	t.Cleanup(func() { w.must(errors.Join(kept.Close(), vault.Close())) })
	w.shared = &agent.Objects{Chunks: vault, Cache: kept}
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

// dataDisk is the file of a machine's data disk, which the guests here cannot see.
func (w *fixture) dataDisk(id hostapi.MachineID) string {
	found, err := filepath.Glob(filepath.Join(w.dir, "machines", "*", "disk-data.img"))
	w.must(err)
	for _, path := range found {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(path), "machine.json"))
		w.must(err)
		if bytes.Contains(text, []byte(`"id":"`+string(id)+`"`)) {
			return path
		}
	}
	w.t.Fatalf("machine %s has no data disk", id)
	return ""
}

// takeSnapshot makes a machine on host a, leaves a word in it, and takes a snapshot.
func (f *fleet) takeSnapshot(t *testing.T, id hostapi.SnapshotID, word string) {
	t.Helper()
	machine := hostapi.MachineID("m" + string(id))
	f.a.create(hostapi.Create{ID: machine, Template: "base"})
	f.a.run(machine, "echo "+word+" > word")
	f.a.must(os.WriteFile(f.a.dataDisk(machine), bytes.Repeat([]byte(word+"\n"), 1<<20/(len(word)+1)+1)[:1<<20], 0o600))
	_, err := f.a.host.TakeSnapshot(t.Context(), machine, id, map[string]string{"of": word})
	f.a.must(err)
}

func TestSnapshotMovesToAnotherHost(t *testing.T) {
	f := newFleet(t)
	f.takeSnapshot(t, "snp1", "hello")
	first, err := f.a.host.PushSnapshot(t.Context(), "ws", "snp1")
	f.a.must(err)
	again, err := f.a.host.PushSnapshot(t.Context(), "ws", "snp1")
	f.a.must(err)
	if first.Uploaded == 0 || again.Uploaded != 0 || again.Stored != first.Stored {
		t.Errorf("pushed %+v, again %+v", first, again)
	}
	pulled, err := f.b.host.PullSnapshot(t.Context(), "ws", "snp1", map[string]string{"of": "b"})
	f.b.must(err)
	if s := pulled.Snapshot; s.ID != "snp1" || s.Machine != "msnp1" || s.Template != "base" || s.Labels["of"] != "b" ||
		s.MemoryMiB != 64 {
		t.Errorf("pulled %+v", pulled)
	}
	if twice, err := f.b.host.PullSnapshot(t.Context(), "ws", "snp1", nil); err != nil || twice.Fetched != 0 {
		t.Errorf("pulled twice: %+v, %v", twice, err)
	}
	f.a.stop() // host a is gone
	f.b.create(hostapi.Create{ID: "child", Snapshot: "snp1"})
	if got := f.b.run("child", "cat word"); got != "hello" {
		t.Errorf("the machine on the other host says %q, want hello", got)
	}
	if got, err := os.ReadFile(f.b.dataDisk("child")); err != nil || len(got) != 1<<20 ||
		!bytes.HasPrefix(got, []byte("hello\nhello\n")) {
		t.Errorf("its data disk begins with %q, %v", got[:min(len(got), 20)], err)
	}
	f.b.must(f.b.host.DeletePushed(t.Context(), "ws", "snp1"))
	f.b.must(f.b.host.DeletePushed(t.Context(), "ws", "snp1"))
	f.b.must(f.b.host.DeleteSnapshot(t.Context(), "snp1"))
	if _, err := f.b.host.PullSnapshot(t.Context(), "ws", "snp1", nil); !errors.Is(err, hostapi.ErrNotFound) {
		t.Errorf("pull after it was deleted from the store: %v, want ErrNotFound", err)
	}
}

// The template is pushed once; what follows is pushed as a difference, also from a line of snapshots.
func TestOnlyDifferencesFollowTheTemplate(t *testing.T) {
	f := newFleet(t)
	f.takeSnapshot(t, "snp1", "one")
	_, err := f.a.host.PushSnapshot(t.Context(), "ws", "snp1")
	f.a.must(err)
	templates := func() (n int) {
		for _, k := range blobtest.Keys(t, f.store, "w/") {
			if strings.Contains(k, "/m/tpl") {
				n++
			}
		}
		return n
	}
	if templates() != 1 {
		t.Errorf("%d templates in the store, want 1", templates())
	}
	f.takeSnapshot(t, "snp2", "two")
	f.a.create(hostapi.Create{ID: "deep", Snapshot: "snp2"})
	_, err = f.a.host.TakeSnapshot(t.Context(), "deep", "snp3", nil)
	f.a.must(err)
	for workspace, id := range map[string]hostapi.SnapshotID{"ws": "snp2", "other": "snp3"} {
		_, err := f.a.host.PushSnapshot(t.Context(), workspace, id)
		f.a.must(err)
	}
	if templates() != 1 {
		t.Errorf("%d templates in the store, want 1", templates())
	}
	for workspace, id := range map[string]hostapi.SnapshotID{"ws": "snp2", "other": "snp3"} {
		_, err := f.b.host.PullSnapshot(t.Context(), workspace, id, nil)
		f.b.must(err)
		f.b.create(hostapi.Create{ID: hostapi.MachineID("c" + id), Snapshot: id})
		if got := f.b.run(hostapi.MachineID("c"+id), "cat word"); got != "two" {
			t.Errorf("machine of %s says %q, want two", id, got)
		}
	}
}

func TestTransfersAreRefused(t *testing.T) {
	f := newFleet(t)
	f.takeSnapshot(t, "snp1", "one")
	_, err := f.a.host.PushSnapshot(t.Context(), "ws", "snp1")
	f.a.must(err)
	stranger := f.host(t, 2)
	for name, c := range map[string]struct {
		do   func() error
		want error
		text string
	}{
		"push-unknown": {func() error {
			_, err := f.a.host.PushSnapshot(t.Context(), "ws",
				"nope")
			return err
		}, hostapi.ErrNotFound, ""},
		"push-no-space": {func() error {
			_, err := f.a.host.PushSnapshot(t.Context(), "",
				"snp1")
			return err
		}, hostapi.ErrInvalid, "workspace"},
		"push-bad-id": {func() error {
			_, err := f.a.host.PushSnapshot(t.Context(), "ws",
				"../x")
			return err
		}, hostapi.ErrInvalid, ""},
		"pull-unknown": {func() error {
			_, err := f.b.host.PullSnapshot(t.Context(), "ws", "nope",
				nil)
			return err
		}, hostapi.ErrNotFound, ""},
		"pull-of-others": {func() error {
			_, err := f.b.host.PullSnapshot(t.Context(), "other", "snp1",
				nil)
			return err
		}, hostapi.ErrNotFound, ""},
		"other-master-key": {func() error {
			_, err := stranger.host.PullSnapshot(t.Context(), "ws", "snp1",
				nil)
			return err
		}, hostapi.ErrNotFound, ""},
		"no-store": {func() error {
			_, err := newFixture(t).host.PushSnapshot(t.Context(), "ws",
				"snp1")
			return err
		}, hostapi.ErrUnsupported, "object_store.url"},
	} {
		err := c.do()
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %v that says %q", name, err, c.want, c.text)
		}
	}
}

// What is stored is for another processor, was changed, or is another workspace's.
func TestForeignManifestsAreRefused(t *testing.T) {
	f := newFleet(t)
	f.takeSnapshot(t, "snp1", "one")
	_, err := f.a.host.PushSnapshot(t.Context(), "ws", "snp1")
	f.a.must(err)
	f.b.incompatible = &vmm.MismatchError{Field: "processor", Image: "one", Host: "another-processor"}
	if _, err := f.b.host.PullSnapshot(t.Context(), "ws", "snp1", nil); !errors.Is(err, hostapi.ErrUnsupported) ||
		!strings.Contains(err.Error(), "another-processor") {
		t.Errorf("pull on another processor: %v, want ErrUnsupported that names it", err)
	}
	f.b.incompatible = nil
	key := ""
	for _, k := range blobtest.Keys(t, f.store, "w/") {
		if strings.HasSuffix(k, "/m/snp1") {
			key = k
		}
	}
	good, err := blobtest.Get(t.Context(), f.store, key, 0, -1)
	f.a.must(err)
	for name, c := range map[string]struct {
		at   int
		want error
		text string
	}{
		"tampered": {len(good) / 2, hostapi.ErrInvalid, "signed"}, "version": {4, hostapi.ErrUnsupported,
			"format"}, "workspace": {8, hostapi.ErrInvalid, "workspace"},
	} {
		bad := bytes.Clone(good)
		bad[c.at] ^= 1
		blobtest.Put(t, f.store, key, bad)
		if _, err := f.b.host.PullSnapshot(t.Context(), "ws", "snp1", nil); !errors.Is(err, c.want) ||
			!strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %v that says %q", name, err, c.want, c.text)
		}
	}
	blobtest.Put(t, f.store, key, good)
	if list, err := f.b.host.Snapshots(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("refused pulls left %v, %v", list, err)
	}
}

// Nothing is brought to a host whose disk is as full as it may be; what is here already is.
func TestPullsKeepTheDiskReserve(t *testing.T) {
	f := newFleet(t)
	f.takeSnapshot(t, "snp1", "one")
	_, err := f.a.host.PushSnapshot(t.Context(), "ws", "snp1")
	f.a.must(err)
	pulls := map[string]func(context.Context, string, hostapi.SnapshotID, map[string]string) (hostapi.PullResult,
		error){
		"pull":   f.b.host.PullSnapshot,
		"stream": f.b.host.StreamSnapshot,
	}
	f.b.diskFull.Store(true)
	for name, pull := range pulls {
		if _, err := pull(t.Context(), "ws", "snp1", nil); !errors.Is(err, hostapi.ErrNoSpace) {
			t.Errorf("%s to a full disk: %v, want ErrNoSpace", name, err)
		}
	}
	f.b.diskFull.Store(false)
	_, err = f.b.host.PullSnapshot(t.Context(), "ws", "snp1", nil)
	f.b.must(err)
	f.b.diskFull.Store(true)
	for name, pull := range pulls {
		if got, err := pull(t.Context(), "ws", "snp1", nil); err != nil || got.Snapshot.ID != "snp1" {
			t.Errorf("%s of what is here: %+v, %v", name, got, err)
		}
	}
}

// Nothing is built on a host whose disk is as full as it may be.
func TestBuildsKeepTheDiskReserve(t *testing.T) {
	w := newFixture(t)
	w.diskFull.Store(true)
	image := hostapi.Import{ID: "img1", SizeMiB: 1}
	if _, err := w.host.ImportImage(t.Context(), image, strings.NewReader("")); !errors.Is(err, hostapi.ErrNoSpace) {
		t.Errorf("import to a full disk: %v, want ErrNoSpace", err)
	}
	publish := hostapi.Publish{Name: "new", Image: "img1", VCPUs: 1, MemoryMiB: 64}
	if _, err := w.host.Publish(t.Context(), publish); !errors.Is(err, hostapi.ErrNoSpace) {
		t.Errorf("publish to a full disk: %v, want ErrNoSpace", err)
	}
	w.diskFull.Store(false)
	if _, err := w.host.ImportImage(t.Context(), image, strings.NewReader("")); err != nil {
		t.Errorf("import with space: %v, want none", err)
	}
}

// A store that fails anywhere leaves nothing on the host that pulls, and a push that can be repeated.
func TestFailedTransfersLeaveNothing(t *testing.T) {
	f := newFleet(t)
	f.takeSnapshot(t, "snp1", "one")
	broken := errors.New("broken")
	fail := func(op string, from int, fault blobtest.Fault) {
		f.store.SetFaults(func(c blobtest.Call) blobtest.Fault {
			if c.Op == op && c.N >= from {
				return fault
			}
			return blobtest.Fault{}
		})
	}
	for n := range 3 {
		fail("put", n, blobtest.Fault{Err: blob.ErrNoSpace})
		if _, err := f.a.host.PushSnapshot(t.Context(), "ws", "snp1"); !errors.Is(err, hostapi.ErrNoSpace) {
			t.Errorf("push to a store that is full after %d: %v, want ErrNoSpace", n, err)
		}
	}
	f.store.SetFaults(nil)
	_, err := f.a.host.PushSnapshot(t.Context(), "ws", "snp1")
	f.a.must(err)
	for n := range 4 {
		fail("get", n, blobtest.Fault{Err: broken})
		if _, err := f.b.host.PullSnapshot(t.Context(), "ws", "snp1", nil); err == nil {
			break // the whole took fewer requests
		} else if !errors.Is(err, broken) || n == 3 {
			t.Errorf("pull of which %d requests succeed: %v", n, err)
		}
		left, err := filepath.Glob(filepath.Join(f.b.dir, "drafts", "*"))
		if list, _ := f.b.host.Snapshots(t.Context()); err != nil || len(left) != 0 || len(list) != 0 {
			t.Errorf("a pull that failed left %v, %v, %v", left, list, err)
		}
	}
	f.store.SetFaults(nil)
	_, err = f.b.host.PullSnapshot(t.Context(), "ws", "snp1", nil)
	f.b.must(err)
	f.b.create(hostapi.Create{ID: "child", Snapshot: "snp1"})
	if got := f.b.run("child", "cat word"); got != "one" {
		t.Errorf("the machine says %q, want one", got)
	}
}
