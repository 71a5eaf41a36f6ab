package checkpointstore

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/vmm/checkpoint"
)

// TestFind checks that a checkpoint is used only if everything fits this host. Otherwise the image
// is restored from its device state.
func TestFind(t *testing.T) {
	w, err := Open(filepath.Join(t.TempDir(), "qemu"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(w.stub); err != nil || st.Mode().Perm() != 0o755 {
		t.Fatalf("restore stub: Stat() = %v, %v; want an executable file", st, err)
	}
	for name, c := range map[string]struct {
		spoil func(p *MonitorCheckpoint, dir string)
		want  bool
	}{
		"whole":         {func(*MonitorCheckpoint, string) {}, true},
		"other_boot":    {func(p *MonitorCheckpoint, _ string) { p.Process.Boot = "another" }, false},
		"other_format":  {func(p *MonitorCheckpoint, _ string) { p.Format++ }, false},
		"no_thread":     {func(p *MonitorCheckpoint, _ string) { p.Process.Threads = nil }, false},
		"content_short": {func(p *MonitorCheckpoint, _ string) { p.Process.Bytes += 4096 }, false},
		"program_changed": {func(p *MonitorCheckpoint, _ string) {
			p.Process.Files = []checkpoint.File{{Path: "/proc/self/exe", Bytes: 1}}
		}, false},
		"program_gone": {func(p *MonitorCheckpoint, _ string) {
			p.Process.Files = []checkpoint.File{{Path: "/nonexistent"}}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			image := t.TempDir()
			dir := filepath.Join(image, checkpointDir)
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			p := MonitorCheckpoint{
				Format:  checkpointFormat,
				Process: checkpoint.Checkpoint{Boot: w.boot, Threads: make([]checkpoint.Thread, 1), Bytes: 4096},
				FDSet:   2,
			}
			c.spoil(&p, dir)
			data, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, descriptionName), data, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, contentName), make([]byte, 4096), 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time from the cache
				got, err := w.Find(image)
				if err != nil || (got != nil) != c.want {
					t.Fatalf("Find() = %+v, %v; want a checkpoint: %v", got, err, c.want)
				}
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		if got, err := w.Find(t.TempDir()); got != nil || err != nil {
			t.Errorf("Find() = %v, %v; want nil, nil", got, err)
		}
	})
	t.Run("no_json", func(t *testing.T) {
		image := t.TempDir()
		if err := os.MkdirAll(filepath.Join(image, checkpointDir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(image, checkpointDir, descriptionName), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := w.Find(image); got != nil || err != nil {
			t.Errorf("Find() = %v, %v; want nil, nil", got, err)
		}
	})
	var none *Store
	if got, err := none.Find(t.TempDir()); got != nil || err != nil {
		t.Errorf("Find() of a nil store = %v, %v; want nil, nil", got, err)
	}
}

// TestReadAhead checks that a large file is read ahead completely, although one request reads only
// a part.
func TestReadAhead(t *testing.T) {
	path := filepath.Join(t.TempDir(), contentName)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const bytes = 16 << 20
	if _, err := f.Write(make([]byte, bytes)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	cached := func() uint64 {
		var have unix.Cachestat_t
		err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &have, 0)
		if errors.Is(err, unix.ENOSYS) {
			t.Skip("probe cachestat: this kernel cannot report cached pages")
		}
		if err != nil {
			t.Fatal(err)
		}
		return have.Cache
	}
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	deadline := time.After(time.Minute)
	for {
		if err := readAhead(path); err != nil { // the kernel may drop pages that it has read ahead
			t.Fatal(err)
		}
		if cached() == bytes/4096 {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("got %d pages read ahead, want %d", cached(), bytes/4096)
		}
	}
}

// TestLink checks that the description of a checkpoint outlives the image through its link, and that nothing else is
// taken for one.
func TestLink(t *testing.T) {
	p := newStorePair(t)
	from, err := p.from.Find(p.image)
	p.must(err)
	dir := t.TempDir()
	path := filepath.Join(dir, "base.json")
	p.must(from.Link(path))
	p.must(os.RemoveAll(p.image))
	got, err := p.from.ReadLink(path)
	if err != nil || got == nil || got.Process.Files[0] != from.Process.Files[0] {
		t.Errorf("ReadLink() = %+v, %v; want the checkpoint", got, err)
	}
	if got, err := p.from.ReadLink(filepath.Join(dir, "missing")); got != nil || err != nil {
		t.Errorf("ReadLink() of a missing file = %+v, %v; want nothing", got, err)
	}
	p.must(os.Symlink(path, filepath.Join(dir, "symlink")))
	p.must(unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	p.must(os.WriteFile(filepath.Join(dir, "damaged"), []byte(`{"format":2}`), 0o600))
	p.must(os.WriteFile(filepath.Join(dir, "large"), nil, 0o600))
	p.must(os.Truncate(filepath.Join(dir, "large"), maxDescription+1))
	for _, name := range []string{"symlink", "pipe", "damaged", "large"} {
		if got, err := p.from.ReadLink(filepath.Join(dir, name)); err == nil {
			t.Errorf("ReadLink() of %s = %+v, want an error", name, got)
		}
	}
}
