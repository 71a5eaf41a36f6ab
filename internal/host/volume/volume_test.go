package volume_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/volume"
)

var errInjected = errors.New("injected")

// copyFile stands for a reflink. The content of these files is at their beginning.
func copyFile(src, dst string) error {
	f, err := os.Open(src)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	begin, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(dst, begin, 0o644), os.Truncate(dst, info.Size()))
}

// memoryDir returns a directory in memory if possible: these tests write many files durably.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "volume-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func config(dir string) volume.Config {
	return volume.Config{
		Dir: dir, Clone: copyFile, Grow: os.Truncate,
		Format: func(_ context.Context, out *os.File, sizeMiB int) error {
			_, err := out.WriteString("formatted")
			return errors.Join(err, out.Truncate(int64(sizeMiB)<<20))
		},
	}
}

func open(t *testing.T, c volume.Config) *volume.Store {
	t.Helper()
	s, err := volume.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Broken(); err != nil {
		t.Fatal(err)
	}
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, s *volume.Store, req volume.Request) volume.Volume {
	t.Helper()
	v, err := s.Create(t.Context(), req)
	must(t, err)
	return v
}

// entries returns the names in a directory.
func entries(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	must(t, err)
	var all []string
	for _, e := range list {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func TestCreateAndCopy(t *testing.T) {
	c := config(memoryDir(t))
	s := open(t, c)
	create(t, s, volume.Request{ID: "a", SizeMiB: 32, Group: "g", Labels: map[string]string{"k": "v"}})
	create(t, s, volume.Request{ID: "b", SizeMiB: 33, From: s.Path("a"), Dirty: true, Source: "x/y"})
	create(t, s, volume.Request{ID: "f", From: s.Path("a"), Source: "x/y", Frozen: true})
	for name, c := range map[string]struct {
		req  volume.Request
		want error
	}{
		"taken":   {volume.Request{ID: "a", SizeMiB: 32}, hostapi.ErrExists},
		"id":      {volume.Request{ID: "A/..", SizeMiB: 32}, hostapi.ErrInvalid},
		"small":   {volume.Request{ID: "c", SizeMiB: 31}, hostapi.ErrInvalid},
		"large":   {volume.Request{ID: "c", SizeMiB: volume.MaxMiB + 1}, hostapi.ErrInvalid},
		"smaller": {volume.Request{ID: "c", SizeMiB: 32, From: s.Path("b")}, hostapi.ErrInvalid},
		"missing": {volume.Request{ID: "c", From: s.Path("none")}, fs.ErrNotExist},
	} {
		if _, err := s.Create(t.Context(), c.req); !errors.Is(err, c.want) {
			t.Errorf("create of a volume, %s: got %v, want %v", name, err, c.want)
		}
	}
	s = open(t, c)
	if got := entries(t, c.Dir); got != "a b f" {
		t.Errorf("files of volumes = %s, want a b f", got)
	}
	b, err := s.Get("b")
	if err != nil || b.SizeMiB != 33 || !b.Dirty || b.Source != "" {
		t.Errorf("larger copy = %+v, %v; want no source: it is not as it was", b, err)
	}
	f, err := s.Get("f")
	if err != nil || f.SizeMiB != 32 || f.Source != "x/y" || !f.Frozen {
		t.Errorf("copy = %+v, %v; want the size and the source", f, err)
	}
	for id, size := range map[hostapi.VolumeID]int64{"a": 32, "b": 33, "f": 32} {
		info, err := os.Stat(s.Path(id))
		if err != nil || info.Size() != size<<20 || info.Mode() != 0o600 {
			t.Errorf("disk of volume %s = %v, %v; want %d MiB, readable for its owner alone", id, info, err, size)
		}
	}
	if _, err := s.Resize("f", 64); !errors.Is(err, hostapi.ErrInvalid) {
		t.Errorf("resize of a frozen volume: got %v, want ErrInvalid", err)
	}
	if _, err := s.Resize("b", 32); !errors.Is(err, hostapi.ErrInvalid) {
		t.Errorf("resize to less: got %v, want ErrInvalid", err)
	}
	must(t, s.Delete("b"))
	must(t, s.Delete("b"))
	if _, err := s.Get("b"); !errors.Is(err, hostapi.ErrNotFound) {
		t.Errorf("get of a deleted volume: got %v, want ErrNotFound", err)
	}
}

func TestOneWriter(t *testing.T) {
	c := config(memoryDir(t))
	s := open(t, c)
	create(t, s, volume.Request{ID: "a", SizeMiB: 32, Source: "x/y"})
	v, err := s.Attach("a", "m", 5)
	if err != nil || v.Count != 1 || v.Dirty || v.Source == "" {
		t.Fatalf("attach = %+v, %v; want the first writer, which has not run", v, err)
	}
	if _, err := s.Attach("a", "n", 6); !errors.Is(err, hostapi.ErrInUse) {
		t.Errorf("second writer: got %v, want ErrInUse", err)
	}
	if _, err := s.MarkDirty("a", "n"); !errors.Is(err, hostapi.ErrInUse) {
		t.Errorf("write of another machine: got %v, want ErrInUse", err)
	}
	if err := s.Delete("a"); !errors.Is(err, hostapi.ErrInUse) {
		t.Errorf("delete: got %v, want ErrInUse", err)
	}
	before, err := s.MarkDirty("a", "m")
	if err != nil || before.Dirty {
		t.Errorf("MarkDirty = %+v, %v; want the volume clean", before, err)
	}
	must(t, s.Detach("a", "n", true)) // not its writer: no effect
	s = open(t, c)
	if v, err = s.Get("a"); err != nil || v.Machine != "m" || !v.Dirty || v.Source != "" || v.Fence != 5 {
		t.Errorf("after a restart = %+v, %v; want writer m, dirty", v, err)
	}
	must(t, s.Sweep(func(m hostapi.MachineID, v hostapi.VolumeID) bool { return m == "m" && v == "a" }))
	if v, _ = s.Get("a"); v.Machine != "m" {
		t.Errorf("writer that has the volume = %q, want m", v.Machine)
	}
	must(t, s.Sweep(func(hostapi.MachineID, hostapi.VolumeID) bool { return false }))
	if v, _ = s.Get("a"); v.Machine != "" || !v.Dirty {
		t.Errorf("volume of a machine that is gone = %+v, want it detached and dirty", v)
	}
	if _, err := s.Attach("a", "n", 4); !errors.Is(err, hostapi.ErrInUse) {
		t.Errorf("a fence that is lower: got %v, want ErrInUse", err)
	}
	must(t, s.SetCheck("a", hostapi.VolumeCheck{Result: "damaged"}))
	if _, err := s.Attach("a", "n", 5); !errors.Is(err, hostapi.ErrInvalid) {
		t.Errorf("writer of a damaged volume: got %v, want ErrInvalid", err)
	}
	must(t, s.SetCheck("a", hostapi.VolumeCheck{Result: "repaired"}))
	if v, err = s.Attach("a", "n", 5); err != nil || v.Count != 2 {
		t.Errorf("second writer = %+v, %v; want count 2", v, err)
	}
	must(t, s.Detach("a", "n", true))
	if v, _ = s.Get("a"); v.Machine != "" || v.Dirty || v.Written.IsZero() {
		t.Errorf("volume that was unmounted = %+v, want it clean", v)
	}
}

// TestFailureAtEveryStep fails and kills every operation after each of its steps.
func TestFailureAtEveryStep(t *testing.T) {
	operations := map[string]struct {
		do func(s *volume.Store) error
		// done reports whether the effect of the operation is there.
		done func(s *volume.Store) bool
	}{
		"create": {
			func(s *volume.Store) error {
				_, err := s.Create(t.Context(), volume.Request{ID: "b", SizeMiB: 32})
				return err
			},
			func(s *volume.Store) bool { _, err := s.Get("b"); return err == nil },
		},
		"copy": {
			func(s *volume.Store) error {
				_, err := s.Create(t.Context(), volume.Request{ID: "b", From: s.Path("a")})
				return err
			},
			func(s *volume.Store) bool { _, err := s.Get("b"); return err == nil },
		},
		"resize": {
			func(s *volume.Store) error { _, err := s.Resize("a", 64); return err },
			func(s *volume.Store) bool {
				v, err := s.Get("a")
				info, statErr := os.Stat(s.Path("a"))
				return errors.Join(err, statErr) == nil && v.SizeMiB == 64 && info.Size() == 64<<20
			},
		},
		"delete": {
			func(s *volume.Store) error { return s.Delete("a") },
			func(s *volume.Store) bool { _, err := s.Get("a"); return err != nil },
		},
	}
	for name, o := range operations {
		for _, why := range []error{errInjected, volume.ErrAbandon} {
			for nth := 0; ; nth++ {
				c := config(memoryDir(t))
				create(t, open(t, c), volume.Request{ID: "a", SizeMiB: 32})
				steps, where := 0, ""
				c.OnStep = func(op, step string) error {
					if steps++; steps-1 != nth {
						return nil
					}
					where = op + "/" + step
					return why
				}
				s := open(t, c)
				err := o.do(s)
				if steps <= nth {
					if err != nil || !o.done(s) {
						t.Errorf("%s: got %v, done %v", name, err, o.done(s))
					}
					break
				}
				if !errors.Is(err, why) {
					t.Errorf("%s after %s: got %v, want %v", name, where, err, why)
				}
				if name == "create" || name == "copy" {
					if errors.Is(why, errInjected) && (o.done(s) || entries(t, c.Dir) != "a") {
						t.Errorf("%s failed after %s and left %s", name, where, entries(t, c.Dir))
					}
				}
				c.OnStep = nil
				s = open(t, c)
				if got := entries(t, c.Dir); strings.Contains(got, ".") || len(strings.Fields(got)) != len(s.List()) {
					t.Errorf("%s after %s: files %s of volumes %+v", name, where, got, s.List())
				}
				if !o.done(s) { // it can be repeated
					must(t, o.do(s))
				}
				if !o.done(s) {
					t.Errorf("%s after %s cannot be completed", name, where)
				}
			}
		}
	}
}

func TestDamagedRecordIsKept(t *testing.T) {
	c := config(memoryDir(t))
	create(t, open(t, c), volume.Request{ID: "a", SizeMiB: 32})
	record := filepath.Join(c.Dir, "a", "volume.json")
	must(t, os.WriteFile(record, []byte(`{"version": 99}`), 0o600))
	s, err := volume.Open(c)
	must(t, err)
	if _, err := s.Get("a"); !errors.Is(err, hostapi.ErrUnavailable) {
		t.Errorf("volume with a foreign record: got %v, want ErrUnavailable", err)
	}
	if err := s.Delete("a"); !errors.Is(err, hostapi.ErrUnavailable) {
		t.Errorf("delete: got %v, want ErrUnavailable", err)
	}
	if _, err := s.Create(t.Context(), volume.Request{ID: "a", SizeMiB: 32}); !errors.Is(err, hostapi.ErrExists) {
		t.Errorf("create: got %v, want ErrExists", err)
	}
	if _, err := os.Stat(record); err != nil {
		t.Error(err)
	}
}

// TestFormat makes a real file system.
func TestFormat(t *testing.T) {
	c := config(memoryDir(t))
	c.Format = nil
	s := open(t, c)
	create(t, s, volume.Request{ID: "a", SizeMiB: 32})
	data, err := os.ReadFile(s.Path("a"))
	if err != nil || len(data) != 32<<20 || data[1024+0x38] != 0x53 || data[1024+0x39] != 0xEF {
		t.Errorf("disk has %d bytes, %v; want a superblock of ext4", len(data), err)
	}
}
