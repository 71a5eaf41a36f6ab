package backup_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
	"github.com/pandastack/pandastack/internal/host/volume"
	"github.com/pandastack/pandastack/internal/host/volume/backup"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

const (
	mib     = 1 << 20
	sizeMiB = 32
	grace   = 72 * time.Hour
)

var (
	errInjected = errors.New("injected")
	errFull     = errors.New("the disk is full")
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// host is one of several hosts over one object store.
type host struct {
	*backup.Repository
	t       *testing.T
	dir     string
	chunks  *chunkstore.Store
	cache   *cache.Cache
	volumes *volume.Store
	onStep  func(step string) error
	onStore func(op, step string) error
	full    bool
}

// memoryDir returns a directory in memory if possible: these tests write many files durably.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "backup-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

// newHost makes a host with a master key.
func newHost(t *testing.T, store blob.Store, key byte) *host {
	t.Helper()
	h := &host{t: t, dir: memoryDir(t)}
	ring, err := keyring.New(bytes.Repeat([]byte{key}, 32))
	must(t, err)
	h.chunks, err = chunkstore.New(store, ring,
		chunkstore.Config{Attempts: 1, ReadTimeout: time.Minute, Grace: grace})
	must(t, err)
	t.Cleanup(func() { must(t, h.chunks.Close()) })
	h.cache, err = cache.Open(cache.Config{Dir: filepath.Join(h.dir, "cache")})
	must(t, err)
	t.Cleanup(func() { must(t, h.cache.Close()) })
	h.open()
	return h
}

// open opens the volumes, as after a restart.
func (h *host) open() {
	h.t.Helper()
	var err error
	h.volumes, err = volume.Open(volume.Config{
		Dir:   filepath.Join(h.dir, "volumes"),
		Clone: func(from, to string) error { return copyFile(h.t, from, to) }, Grow: os.Truncate,
		Own: func(path string) (int64, error) {
			info, err := os.Stat(path)
			if err != nil {
				return 0, err
			}
			return info.Size(), nil
		},
		Format: func(_ context.Context, out *os.File, sizeMiB int) error { return out.Truncate(int64(sizeMiB) * mib) },
		OnStep: func(op, step string) error {
			if h.onStore == nil {
				return nil
			}
			return h.onStore(op, step)
		},
	})
	must(h.t, err)
	h.Repository, err = backup.New(backup.Config{
		Chunks: h.chunks, Cache: h.cache, Volumes: h.volumes,
		Copy: func(_ context.Context, id hostapi.VolumeID) (string, volume.Volume, func() error, error) {
			return h.volumes.Copy(id)
		},
		Space: func(string, int) error {
			if h.full {
				return errFull
			}
			return nil
		},
		OnStep: func(step string) error {
			if h.onStep == nil {
				return nil
			}
			return h.onStep(step)
		},
	})
	must(h.t, err)
}

// copyFile stands for a reflink; holes stay holes.
func copyFile(t *testing.T, from, to string) error {
	t.Helper()
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = out.Write(written(t, from))
	return errors.Join(err, out.Truncate(info.Size()), out.Close())
}

// written returns the content of a file without the zeros at its end, in whole MiB.
func written(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	var all []byte
	part := make([]byte, mib)
	for at := int64(0); ; at += mib {
		switch n, err := f.ReadAt(part, at); {
		case n == 0 && err == io.EOF:
			return all
		case n < mib:
			t.Fatalf("%s: %d bytes at %d, %v", path, n, at, err)
		}
		if !bytes.Equal(part, zeros) {
			all = append(all, make([]byte, at-int64(len(all)))...)
			all = append(all, part...)
		}
	}
}

var zeros = make([]byte, mib)

// volume makes a volume that begins with data.
func (h *host) volume(id hostapi.VolumeID, data []byte) {
	h.t.Helper()
	_, err := h.volumes.Create(h.t.Context(), volume.Request{ID: id, SizeMiB: sizeMiB})
	must(h.t, err)
	h.write(id, 0, data)
}

func (h *host) write(id hostapi.VolumeID, at int64, data []byte) {
	h.t.Helper()
	f, err := os.OpenFile(h.volumes.Path(id), os.O_WRONLY, 0)
	must(h.t, err)
	_, err = f.WriteAt(data, at)
	must(h.t, errors.Join(err, f.Close()))
}

func (h *host) content(id hostapi.VolumeID) []byte {
	h.t.Helper()
	return written(h.t, h.volumes.Path(id))
}

func (h *host) backUp(id hostapi.VolumeID, as hostapi.BackupID) hostapi.BackupResult {
	h.t.Helper()
	out, err := h.Backup(h.t.Context(), "ws", id, as, nil)
	must(h.t, err)
	return out
}

// wantRestored restores a backup under an id of its own and compares it with data.
func (h *host) wantRestored(as hostapi.BackupID, data []byte) {
	h.t.Helper()
	id := hostapi.VolumeID("restored" + as)
	v, err := h.Restore(h.t.Context(), "ws", as, volume.Request{ID: id})
	must(h.t, err)
	info, err := os.Stat(h.volumes.Path(id))
	must(h.t, err)
	if got := h.content(id); info.Size() != int64(v.SizeMiB)*mib || !bytes.Equal(got, data) {
		h.t.Errorf("backup %s restored: %+v in %d bytes, with other content than was backed up", as, v, info.Size())
	}
	must(h.t, h.volumes.Delete(id))
}

// files lists what is in the directories of volumes and of bases.
func (h *host) files() string {
	h.t.Helper()
	var all []string
	for _, dir := range []string{"volumes", "volumes-bases"} {
		list, err := os.ReadDir(filepath.Join(h.dir, dir))
		must(h.t, err)
		for _, e := range list {
			if name := e.Name(); dir == "volumes" {
				all = append(all, name)
			} else {
				all = append(all, "base")
			}
		}
	}
	return strings.Join(all, " ")
}

func TestBackupsAreDifferences(t *testing.T) {
	store := blobtest.NewMemory()
	a, b := newHost(t, store, 1), newHost(t, store, 1)
	a.volume("v", blobtest.Content(1, 20*mib))
	labels := map[string]string{"k": "v"}
	first, err := a.Backup(t.Context(), "ws", "v", "one", labels)
	must(t, err)
	one := a.content("v")
	if first.Bytes != 20*mib || first.Uploaded < 20*mib || first.SizeMiB != sizeMiB || first.Stored < 20*mib {
		t.Errorf("first backup = %+v, want 20 MiB", first)
	}
	a.write("v", 10*mib+8192, blobtest.Content(2, 8192))
	_, err = a.volumes.Resize("v", sizeMiB+10)
	must(t, err)
	second := a.backUp("v", "two")
	two := a.content("v")
	if second.Bytes != 8192 || second.Uploaded > 100_000 || second.SizeMiB != sizeMiB+10 {
		t.Errorf("second backup = %+v, want the 8 KiB that changed", second)
	}
	a.open()
	if third := a.backUp("v", "three"); third.Bytes != 0 || third.Uploaded > 100_000 {
		t.Errorf("backup of what did not change, after a restart = %+v", third)
	}
	all, err := b.List(t.Context(), "ws")
	must(t, err)
	if len(all) != 3 || all[0].ID != "one" || !maps.Equal(all[0].Labels, labels) || all[0].Volume != "v" ||
		!all[0].Moment.Equal(first.Moment) || all[0].SizeMiB != sizeMiB || all[0].Stored != first.Stored {
		t.Errorf("backups = %+v, want three, as they were made", all)
	}
	for as, data := range map[hostapi.BackupID][]byte{"one": one, "two": two, "three": two} {
		b.wantRestored(as, data)
	}

	// What is restored has the base of its next backup; so do copies.
	_, err = b.Restore(t.Context(), "ws", "two", volume.Request{ID: "v2", SizeMiB: sizeMiB + 20})
	must(t, err)
	source, err := b.volumes.Get("v2")
	must(t, err)
	_, err = b.volumes.Create(t.Context(),
		volume.Request{ID: "v3", From: b.volumes.Path("v2"), Base: source.Base})
	must(t, err)
	must(t, b.volumes.Delete("v2"))
	b.write("v3", 0, blobtest.Content(3, 4096))
	if next := b.backUp("v3", "four"); next.Bytes != 4096 || next.Uploaded > 100_000 {
		t.Errorf("backup of a copy of what was restored = %+v, want 4 KiB", next)
	}
	a.wantRestored("four", b.content("v3"))

	// Each is complete by itself.
	for _, as := range []hostapi.BackupID{"one", "three", "three", "none"} {
		must(t, a.Delete(t.Context(), "ws", as))
	}
	store.Age(grace + time.Hour)
	_, err = a.chunks.GC(t.Context())
	must(t, err)
	a.wantRestored("two", two)
	for _, as := range []hostapi.BackupID{"two", "four"} {
		must(t, a.Delete(t.Context(), "ws", as))
	}
	store.Age(grace + time.Hour)
	_, err = a.chunks.GC(t.Context())
	must(t, err)
	if left := blobtest.Keys(t, store, ""); len(left) != 0 {
		t.Errorf("%d objects are left after all backups were deleted", len(left))
	}
	// The base is of a backup that is gone.
	if again := a.backUp("v", "five"); again.Uploaded < 19*mib {
		t.Errorf("backup without any other in the store = %+v, want all of it", again)
	}
	a.wantRestored("five", a.content("v"))
	must(t, a.volumes.Delete("v"))
	if got := a.files(); got != "" {
		t.Errorf("files after the volume was deleted: %s", got)
	}
}

// TestWithoutBase removes what a backup is compared with: whole chunks that did not change are not sent again.
func TestWithoutBase(t *testing.T) {
	h := newHost(t, blobtest.NewMemory(), 1)
	h.volume("v", blobtest.Content(1, 20*mib))
	h.volume("w", blobtest.Content(2, mib))
	h.backUp("w", "other")
	h.backUp("v", "one")
	if freed := h.volumes.Reclaim(sizeMiB * mib); freed != sizeMiB*mib || h.files() != "v w base" {
		t.Errorf("reclaimed %d bytes of one base, and files %s are left", freed, h.files())
	}
	if freed := h.volumes.Reclaim(1 << 40); freed != sizeMiB*mib || h.files() != "v w" {
		t.Errorf("reclaimed %d bytes, and files %s are left", freed, h.files())
	}
	h.write("v", 10*mib, blobtest.Content(3, 4096))
	if second := h.backUp("v", "two"); second.Uploaded < 4*mib || second.Uploaded > 5*mib {
		t.Errorf("backup without a base = %+v, want one chunk", second)
	}
	h.wantRestored("two", h.content("v"))
}

// TestScatteredBackupsAreStoredAgain rewrites a volume a little at a time, until chunks have too little that is used.
func TestScatteredBackupsAreStoredAgain(t *testing.T) {
	h := newHost(t, blobtest.NewMemory(), 1)
	data := blobtest.Content(1, 12*mib)
	h.volume("v", data)
	full := 0
	const rounds = 10
	for n := range rounds {
		fresh := blobtest.Content(uint64(100+n), 12*mib)
		for page := 0; page < len(fresh); page += chunkstore.PageSize {
			if fresh[page]&1 == 0 { // about half of the pages change, all over the volume
				copy(data[page:], fresh[page:page+chunkstore.PageSize])
			}
		}
		h.write("v", 0, data)
		out := h.backUp("v", hostapi.BackupID(fmt.Sprintf("b%d", n)))
		if out.Stored > 6*12*mib {
			t.Errorf("backup %d uses %d bytes of the store, for 12 MiB", n, out.Stored)
		}
		if out.Bytes >= 12*mib {
			full++
		}
	}
	if full < 2 || full > rounds/2 {
		t.Errorf("%d of %d backups were full, want the first and some others", full, rounds)
	}
	h.wantRestored("b9", h.content("v"))
}

func TestRepeatedBackup(t *testing.T) {
	h := newHost(t, blobtest.NewMemory(), 1)
	h.volume("v", blobtest.Content(1, mib))
	h.volume("w", nil)
	first := h.backUp("v", "one")
	was := h.content("v")
	h.write("v", 0, blobtest.Content(2, mib))
	again := h.backUp("v", "one")
	if !again.Moment.Equal(first.Moment) || again.Uploaded != 0 || again.Stored != first.Stored {
		t.Errorf("the same backup again = %+v, want %+v with nothing uploaded", again, first)
	}
	h.wantRestored("one", was)
	if _, err := h.Backup(t.Context(), "ws", "w", "one", nil); !errors.Is(err, hostapi.ErrExists) {
		t.Errorf("the id of another volume's backup: got %v, want ErrExists", err)
	}
}

func TestWhatCannotBeDone(t *testing.T) {
	store := blobtest.NewMemory()
	h, stranger := newHost(t, store, 1), newHost(t, store, 2)
	h.volume("v", blobtest.Content(1, mib))
	h.backUp("v", "one")
	restore := func(h *host, workspace string, as hostapi.BackupID, req volume.Request) func() error {
		return func() error { _, err := h.Restore(t.Context(), workspace, as, req); return err }
	}
	for name, c := range map[string]struct {
		do   func() error
		want error
	}{
		"unknown volume": {func() error {
			_, err := h.Backup(t.Context(), "ws", "none", "two", nil)
			return err
		}, hostapi.ErrNotFound},
		"bad id": {func() error {
			_, err := h.Backup(t.Context(), "ws", "v", "../two", nil)
			return err
		}, hostapi.ErrInvalid},
		"no workspace":         {func() error { _, err := h.List(t.Context(), ""); return err }, hostapi.ErrInvalid},
		"delete bad id":        {func() error { return h.Delete(t.Context(), "ws", "A") }, hostapi.ErrInvalid},
		"restore unknown":      {restore(h, "ws", "none", volume.Request{ID: "r"}), chunkstore.ErrNotFound},
		"restore bad id":       {restore(h, "ws", "/", volume.Request{ID: "r"}), hostapi.ErrInvalid},
		"of another workspace": {restore(h, "other", "one", volume.Request{ID: "r"}), chunkstore.ErrNotFound},
		"with another key":     {restore(stranger, "ws", "one", volume.Request{ID: "r"}), chunkstore.ErrNotFound},
		"restore to taken id":  {restore(h, "ws", "one", volume.Request{ID: "v"}), hostapi.ErrExists},
		"restore to a smaller": {
			restore(h, "ws", "one", volume.Request{ID: "r", SizeMiB: sizeMiB - 1}), hostapi.ErrInvalid,
		},
		"restore to a bad id":    {restore(h, "ws", "one", volume.Request{ID: "R"}), hostapi.ErrInvalid},
		"restore without a name": {restore(h, "", "one", volume.Request{ID: "r"}), hostapi.ErrInvalid},
	} {
		if err := c.do(); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	h.full = true
	if err := restore(h, "ws", "one", volume.Request{ID: "r"})(); !errors.Is(err, errFull) {
		t.Errorf("restore to a full disk: got %v, want its error", err)
	}
	if all, err := h.List(t.Context(), "other"); err != nil || len(all) != 0 {
		t.Errorf("backups of another workspace: %+v, %v", all, err)
	}
	if all, err := stranger.List(t.Context(), "ws"); err != nil || len(all) != 0 {
		t.Errorf("backups with another key: %+v, %v", all, err)
	}
	if got := h.files(); got != "v base" {
		t.Errorf("files = %s, want none of what failed", got)
	}
	// What another program stored for the workspace is no backup.
	meta := []byte(`{"version":2}`)
	_, _, err := h.chunks.Push(t.Context(), chunkstore.Push{Tenant: "ws/volumes", ID: "foreign", Meta: meta})
	must(t, err)
	if err := restore(h, "ws", "foreign", volume.Request{ID: "r"})(); !errors.Is(err, chunkstore.ErrVersion) {
		t.Errorf("restore of a foreign manifest: got %v, want ErrVersion", err)
	}
	if _, err := h.Backup(t.Context(), "ws", "v", "foreign", nil); !errors.Is(err, chunkstore.ErrVersion) {
		t.Errorf("backup over a foreign manifest: got %v, want ErrVersion", err)
	}
	// A manifest that was changed hides no other.
	for _, key := range blobtest.Keys(t, store, "") {
		if strings.HasSuffix(key, "/m/one") {
			data, err := blobtest.Get(t.Context(), store, key, 0, -1)
			must(t, err)
			data[len(data)/2] ^= 1
			blobtest.Put(t, store, key, data)
		}
	}
	h.write("v", 0, blobtest.Content(2, 4096))
	h.volumes.Reclaim(1 << 40)
	h.backUp("v", "two")
	if all, err := h.List(t.Context(), "ws"); err != nil || len(all) != 1 || all[0].ID != "two" {
		t.Errorf("backups beside one that was changed: %+v, %v", all, err)
	}
}

// TestFailureOfEveryRequest fails every request of every operation. Nothing is left, nothing is lost, and the operation
// can be repeated.
func TestFailureOfEveryRequest(t *testing.T) {
	operations := map[string]struct {
		do   func(h *host) error
		left string // after a failure
		done string // files after the operation
	}{
		"backup": {func(h *host) error {
			_, err := h.Backup(t.Context(), "ws", "v", "two", nil)
			return err
		}, "v base", "v base"},
		"restore": {func(h *host) error {
			_, err := h.Restore(t.Context(), "ws", "one", volume.Request{ID: "r"})
			return err
		}, "v base", "r v base base"},
		"delete": {func(h *host) error { return h.Delete(t.Context(), "ws", "one") }, "v base", "v base"},
		"list":   {func(h *host) error { _, err := h.List(t.Context(), "ws"); return err }, "v base", "v base"},
	}
	for name, o := range operations {
		for _, op := range []string{"get", "put", "stat", "list", "delete"} {
			for n := 0; ; n++ {
				store := blobtest.NewFaulty(blobtest.NewMemory(), nil)
				h := newHost(t, store, 1)
				h.volume("v", blobtest.Content(1, 2*mib))
				h.backUp("v", "one")
				one := h.content("v")
				h.write("v", mib, blobtest.Content(2, 4096))
				two := h.content("v")
				failed := false
				store.SetFaults(func(c blobtest.Call) blobtest.Fault {
					if c.Op != op || c.N != n {
						return blobtest.Fault{}
					}
					failed = true
					return blobtest.Fault{Err: errInjected}
				})
				err := o.do(h)
				store.SetFaults(nil)
				where := fmt.Sprintf("%s with failure of %s %d", name, op, n)
				if !failed {
					if err != nil || h.files() != o.done {
						t.Errorf("%s: got %v and files %s, want %s", name, err, h.files(), o.done)
					}
					break
				}
				if err != nil {
					if got := h.files(); got != o.left {
						t.Errorf("%s left %s, want %s", where, got, o.left)
					}
					if !errors.Is(err, errInjected) {
						t.Errorf("%s: got %v", where, err)
					}
					if all, err := h.List(t.Context(), "ws"); err != nil || len(all) != 1 {
						// A deletion that failed may have removed it.
						if name != "delete" || err != nil || len(all) != 0 {
							t.Errorf("%s: backups are %+v, %v; want the first", where, all, err)
						}
					}
					must(t, o.do(h))
				}
				if name != "delete" {
					h.wantRestored("one", one)
				}
				if name == "backup" {
					h.wantRestored("two", two)
				}
			}
		}
	}
}

// TestFailureAndKillAtEveryStep fails a backup and a restore after each of their steps, and kills the host there.
func TestFailureAndKillAtEveryStep(t *testing.T) {
	for _, op := range []string{"backup", "restore"} {
		for _, why := range []error{errInjected, volume.ErrAbandon} {
			for nth := 0; ; nth++ {
				h := newHost(t, blobtest.NewMemory(), 1)
				h.volume("v", blobtest.Content(1, 2*mib))
				h.backUp("v", "one")
				one := h.content("v")
				h.write("v", mib, blobtest.Content(2, 4096))
				two := h.content("v")
				steps, where := 0, ""
				step := func(name string) error {
					if steps++; steps-1 != nth {
						return nil
					}
					where = op + "/" + name
					return why
				}
				h.onStep = step
				h.onStore = func(op, s string) error { return step(op + "/" + s) }
				do := func() error {
					if op == "backup" {
						_, err := h.Backup(t.Context(), "ws", "v", "two", nil)
						return err
					}
					_, err := h.Restore(t.Context(), "ws", "one", volume.Request{ID: "r"})
					return err
				}
				err := do()
				h.onStep, h.onStore = nil, nil
				if where == "" {
					must(t, err)
					break
				}
				if errors.Is(why, volume.ErrAbandon) {
					if !errors.Is(err, why) {
						t.Errorf("killed after %s: got %v", where, err)
					}
					h.open()
				}
				want := map[string]string{"backup": "v base", "restore": "v base"}[op]
				if _, getErr := h.volumes.Get("r"); getErr == nil {
					want = "r v base base"
				}
				if got := h.files(); got != want {
					t.Errorf("ended after %s with %v: files %s, want %s", where, err, got, want)
				}
				if err != nil && !strings.HasPrefix(want, "r ") {
					must(t, do())
				}
				h.wantRestored("one", one)
				if op == "backup" {
					h.wantRestored("two", two)
					h.write("v", 3*mib, blobtest.Content(3, 4096))
					if next := h.backUp("v", "three"); next.Bytes > 8192 {
						t.Errorf("after %s the next backup has %d bytes, want at most what changed twice",
							where, next.Bytes)
					}
					h.wantRestored("three", h.content("v"))
				}
			}
		}
	}
}
