package snapshot_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/vmm"
)

func open(t *testing.T, dir string) *snapshot.Store {
	t.Helper()
	s, err := snapshot.Open(dir, nil, "snapshots", "templates")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// commit makes a snapshot with a memory file, a small state file and a disk, and releases it.
func commit(t *testing.T, s *snapshot.Store, snap snapshot.Snapshot) snapshot.Snapshot {
	t.Helper()
	d, err := s.Draft()
	if err != nil {
		t.Fatal(err)
	}
	state, memory := []byte("state"), make([]byte, 2<<20)
	sum := sha256.Sum256(state)
	snap.Manifest.Files = []vmm.File{
		{Name: "state", Bytes: int64(len(state)), SHA256: hex.EncodeToString(sum[:])},
		{Name: "memory", Bytes: int64(len(memory))},
	}
	write(t, filepath.Join(d.ImageDir(), "state"), state)
	write(t, filepath.Join(d.ImageDir(), "memory"), memory)
	write(t, d.DiskPath(), make([]byte, 1<<20))
	got, err := d.Commit(snap)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Discard(); err != nil {
		t.Fatal(err)
	}
	return got
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestCommitIsFoundAgain(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	made := commit(
		t,
		s,
		snapshot.Snapshot{Ref: "templates/base/g1", VCPUs: 2, MemoryMiB: 64, Labels: map[string]string{"a": "b"}},
	)
	for _, s := range []*snapshot.Store{s, open(t, dir)} {
		got, err := s.Get(made.Ref)
		if err != nil || got.VCPUs != 2 || got.Labels["a"] != "b" || got.DiskMiB != 1 || !got.Disk || got.Bytes == 0 {
			t.Errorf("Get = %+v, %v; want the committed snapshot", got, err)
		}
		if err := snapshot.Verify(t.Context(), got); err != nil {
			t.Error(err)
		}
		if list := s.List("templates/base"); len(list) != 1 {
			t.Errorf("List(templates/base) = %v, want one snapshot", list)
		}
		if list := s.List("snapshots"); len(list) != 0 {
			t.Errorf("List of another area = %v, want none", list)
		}
	}
}

func TestDraftsAreSwept(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	d, err := s.Draft()
	if err != nil {
		t.Fatal(err)
	}
	write(t, d.DiskPath(), nil)
	open(t, dir)
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("files = %v, want none", left)
	}
}

func TestNamesAreRefused(t *testing.T) {
	s := open(t, t.TempDir())
	for _, ref := range []snapshot.Ref{
		"", "a", "snapshots/", "snapshots/../x", "/snapshots/a", "snapshots/.x", "drafts/a", "snapshots/A b",
	} {
		d, err := s.Draft()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Commit(snapshot.Snapshot{Ref: ref}); !errors.Is(err, snapshot.ErrInvalid) {
			t.Errorf("Commit(%q): got %v, want ErrInvalid", ref, err)
		}
	}
}

func TestNameIsTakenOnce(t *testing.T) {
	s := open(t, t.TempDir())
	var wg sync.WaitGroup
	var mu sync.Mutex
	var won int
	for range 8 {
		wg.Go(func() {
			d, err := s.Draft()
			if err != nil {
				t.Error(err)
				return
			}
			_, err = d.Commit(snapshot.Snapshot{Ref: "snapshots/x"})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won++
			case !errors.Is(err, snapshot.ErrExists):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("%d commits of one name succeeded, want 1", won)
	}
}

func TestHeldFilesOutliveDeletion(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarted=%v", restarted), func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			snap := commit(t, s, snapshot.Snapshot{Ref: "snapshots/x"})
			if err := s.GC(); err != nil {
				t.Fatal(err)
			}
			if err := s.Delete(snap.Ref); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Get(snap.Ref); !errors.Is(err, snapshot.ErrNotFound) {
				t.Errorf("Get of a deleted snapshot: got %v, want ErrNotFound", err)
			}
			if err := s.Delete(snap.Ref); !errors.Is(err, snapshot.ErrNotFound) {
				t.Errorf("second Delete: got %v, want ErrNotFound", err)
			}
			if restarted { // the reference is lost, and acquired again when the machine is found
				s = open(t, dir)
				if _, err := s.Acquire(snap.Ref); err != nil {
					t.Fatal(err)
				}
				if err := s.GC(); err != nil {
					t.Fatal(err)
				}
			}
			if err := snapshot.Verify(t.Context(), snap); err != nil {
				t.Errorf("Verify of an acquired snapshot: got %v, want nil", err)
			}
			if err := s.Release(snap.Ref); err != nil {
				t.Fatal(err)
			}
			if left := files(t, dir); len(left) != 0 {
				t.Errorf("files = %v, want none", left)
			}
			if err := s.Release(snap.Ref); err == nil {
				t.Error("Release without a reference: got nil, want an error")
			}
		})
	}
}

func TestAnonymousLivesWhileHeld(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	snap := commit(t, s, snapshot.Snapshot{Ref: "snapshots/x", Anonymous: true})
	if list := s.List("snapshots"); len(list) != 0 {
		t.Errorf("List = %v, want none", list)
	}
	if err := s.Release(snap.Ref); err != nil {
		t.Fatal(err)
	}
	if len(files(t, dir)) == 0 {
		t.Error("files were removed before GC was called")
	}
	if err := s.GC(); err != nil {
		t.Fatal(err)
	}
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("files = %v, want none", left)
	}
}

func TestConsumedIsDurable(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	snap := commit(t, s, snapshot.Snapshot{Ref: "snapshots/x", Anonymous: true})
	named := commit(t, s, snapshot.Snapshot{Ref: "snapshots/y"})
	if err := s.MarkConsumed(named.Ref); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("MarkConsumed of a named snapshot: got %v, want ErrNotFound", err)
	}
	for _, want := range []bool{false, true} {
		for _, s := range []*snapshot.Store{s, open(t, dir)} {
			if got, err := s.Get(snap.Ref); err != nil || got.Consumed() != want {
				t.Errorf("Consumed() = %v, %v; want %v", got.Consumed(), err, want)
			}
		}
		if err := s.MarkConsumed(snap.Ref); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDamageIsFound(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, s snapshot.Snapshot){
		"state-changed": func(t *testing.T, s snapshot.Snapshot) {
			write(t, filepath.Join(s.Image().Dir, "state"), []byte("stade"))
		},
		"memory-short": func(t *testing.T, s snapshot.Snapshot) {
			write(t, filepath.Join(s.Image().Dir, "memory"), []byte("x"))
		},
		"memory-missing": func(t *testing.T, s snapshot.Snapshot) {
			if err := os.Remove(filepath.Join(s.Image().Dir, "memory")); err != nil {
				t.Fatal(err)
			}
		},
		"disk-short": func(t *testing.T, s snapshot.Snapshot) { write(t, s.DiskPath(), nil) },
	} {
		t.Run(name, func(t *testing.T) {
			snap := commit(t, open(t, t.TempDir()), snapshot.Snapshot{Ref: "snapshots/x"})
			if err := snapshot.Check(snap); err != nil {
				t.Fatal(err)
			}
			harm(t, snap)
			var damaged *snapshot.DamagedError
			if err := snapshot.Check(snap); !errors.As(err, &damaged) {
				t.Errorf("Check: got %v, want a DamagedError", err)
			}
		})
	}
}

// TestUnreadableSnapshotIsKeptAndCanBeDeleted cuts off each record of a snapshot.
func TestUnreadableSnapshotIsKeptAndCanBeDeleted(t *testing.T) {
	for _, tt := range []struct {
		file, content string
		anonymous     bool
	}{
		{"snapshot.json", "", false}, {"snapshot.json", `{"version":1,`, false},
		{"snapshot.json", "\x00\x00\x00\x00", false}, {"snapshot.json", "", true}, {"snapshot.json", "{}", true},
		{"spent", "", true}, {"spent", "00", true},
	} {
		dir := t.TempDir()
		snap := commit(t, open(t, dir), snapshot.Snapshot{Ref: "snapshots/x", Anonymous: tt.anonymous})
		if _, err := os.Stat(filepath.Join(snap.Dir(), tt.file)); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(snap.Dir(), tt.file), []byte(tt.content))
		s := open(t, dir)
		var damaged *snapshot.DamagedError
		if _, err := s.Get(snap.Ref); !errors.As(err, &damaged) {
			t.Errorf("%+v: Get: got %v, want a DamagedError", tt, err)
		}
		if _, err := s.Acquire(snap.Ref); !errors.As(err, &damaged) {
			t.Errorf("%+v: Acquire: got %v, want a DamagedError", tt, err)
		}
		before := files(t, dir)
		if err := s.GC(); err != nil {
			t.Fatal(err)
		}
		if left := files(t, dir); !slices.Equal(left, before) {
			t.Errorf("%+v: after the collection there are the files %v, want %v", tt, left, before)
		}
		if err := s.Delete(snap.Ref); err != nil {
			t.Fatal(err)
		}
		if left := files(t, dir); len(left) != 0 {
			t.Errorf("%+v: after Delete there are the files %v, want none", tt, left)
		}
	}
}

// UpdateSize measures a snapshot whose own size has grown since it was made.
func TestUpdateSize(t *testing.T) {
	dir, own := t.TempDir(), int64(0)
	open := func() *snapshot.Store {
		t.Helper()
		s, err := snapshot.Open(dir, func(string) (int64, int64, error) { return 0, own, nil }, "snapshots")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	snap := commit(t, s, snapshot.Snapshot{Ref: "snapshots/one"})
	own = 10 // of each file, the description included
	for _, row := range []struct{ least, want int64 }{{0, 40}, {100, 100}} {
		if err := s.UpdateSize(snap.Ref, row.least); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*snapshot.Store{s, open()} {
			if got, err := s.Get(snap.Ref); err != nil || got.Bytes != row.want || len(got.Manifest.Files) != 2 {
				t.Errorf("Bytes = %d, want %d: %+v, %v", got.Bytes, row.want, got, err)
			}
		}
	}
	if err := s.Delete(snap.Ref); err != nil {
		t.Fatal(err)
	}
	if err := s.UpdateSize(snap.Ref, 0); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("UpdateSize of a deleted snapshot: got %v, want ErrNotFound", err)
	}
}
