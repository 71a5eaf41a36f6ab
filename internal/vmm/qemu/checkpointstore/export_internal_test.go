package checkpointstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/checkpoint"
)

// storePair is an exporting and an importing host on one machine.
type storePair struct {
	*testing.T
	from, to *Store
	program  string // a file that the checkpoints map
	origin   string // directory of an image whose checkpoint has a complete pages file
	image    string // directory of an image whose checkpoint is a delta to it
}

const overStart = 1 << 40

func newStorePair(t *testing.T) *storePair {
	t.Helper()
	p := &storePair{T: t, program: filepath.Join(t.TempDir(), "program"), origin: t.TempDir(), image: t.TempDir()}
	for _, s := range []**Store{&p.from, &p.to} {
		var err error
		*s, err = Open(filepath.Join(t.TempDir(), "qemu"), slog.New(slog.DiscardHandler))
		p.must(err)
	}
	p.must(os.WriteFile(p.program, []byte("code"), 0o755))
	p.save(p.origin, 4096, nil)
	base, err := ContentOf(filepath.Join(p.origin, checkpointDir, contentName))
	p.must(err)
	p.save(p.image, 2*4096, base)
	return p
}

func (p *storePair) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// save writes a checkpoint into an image: its own content, as a delta to base unless base is nil.
func (p *storePair) save(image string, bytes int, base *Content) {
	p.Helper()
	file, err := checkpoint.StatFile(p.program)
	p.must(err)
	d := MonitorCheckpoint{Format: checkpointFormat, FDSet: 3, Base: base, Process: checkpoint.Checkpoint{
		Boot: p.from.boot, Threads: make([]checkpoint.Thread, 1), Bytes: 4096, Files: []checkpoint.File{file},
		VMAs: []checkpoint.VMA{
			{Start: overStart, End: overStart + 4096, Backing: checkpoint.Stored},
			{Start: overStart + 4096, End: overStart + 2*4096, Backing: checkpoint.Zero},
		},
	}}
	if base != nil {
		d.Delta = []checkpoint.Span{{Start: overStart, End: overStart + uint64(bytes)}}
	}
	dir := filepath.Join(image, checkpointDir)
	p.must(os.Mkdir(dir, 0o700))
	p.must(os.WriteFile(filepath.Join(dir, contentName), testContent(bytes), 0o400))
	p.must(d.write(dir))
}

func testContent(n int) []byte { return bytes.Repeat([]byte{byte(n >> 10)}, n) }

func (p *storePair) export(image string) *vmm.Checkpoint {
	p.Helper()
	exported, err := p.from.Export(image)
	if err != nil || exported == nil {
		p.Fatalf("got %v, %v", exported, err)
	}
	p.Cleanup(func() { p.must(exported.Content.Close()) })
	return exported
}

// deliver returns a source for the exported bundle of the image.
func (p *storePair) deliver() vmm.CheckpointSource {
	own, origin := p.export(p.image), p.export(p.origin)
	return vmm.CheckpointSource{
		Description: own.Description,
		Fetch: func(_ context.Context, first bool, to io.WriterAt) (int64, error) {
			from := own
			if first {
				from = origin
			}
			return io.Copy(io.NewOffsetWriter(to, 0), io.NewSectionReader(from.Content, 0, 1<<20))
		},
	}
}

// TestImport imports a checkpoint whose base exists on this host, and one whose base is fetched.
func TestImport(t *testing.T) {
	for name, local := range map[string]bool{"near": true, "far": false} {
		t.Run(name, func(t *testing.T) {
			p := newStorePair(t)
			from, fetched := p.deliver(), 0
			fetch := from.Fetch
			from.Fetch = func(ctx context.Context, origin bool, to io.WriterAt) (int64, error) {
				if origin {
					fetched++
				}
				return fetch(ctx, origin, to)
			}
			if local { // the other host has a checkpoint of the template
				here, whole := t.TempDir(), p.export(p.origin)
				p.must(
					p.to.Import(
						t.Context(),
						here,
						vmm.CheckpointSource{
							Description: whole.Description,
							Fetch: func(ctx context.Context, _ bool, to io.WriterAt) (int64, error) {
								return fetch(ctx, true, to)
							},
						},
					),
				)
				from.LocalBase = here
			}
			for range 2 { // the second image finds the base
				dir := t.TempDir()
				for range 2 { // the second import does nothing
					p.must(p.to.Import(t.Context(), dir, from))
				}
				got, err := p.to.Find(dir)
				if err != nil || got == nil || got.FDSet != 3 || got.ClockOffset != 0 || got.Process.Boot != p.to.boot {
					t.Fatalf("Find() = %+v, %v; want the imported checkpoint", got, err)
				}
				for path, want := range map[string]int{got.contentPath: 4096, got.deltaPath: 2 * 4096} {
					if data, err := os.ReadFile(path); err != nil || !bytes.Equal(data, testContent(want)) {
						t.Errorf("%s contains %d bytes, %v; want test content of %d bytes", path, len(data), err, want)
					}
				}
			}
			if want := map[bool]int{true: 0, false: 1}[local]; fetched != want {
				t.Errorf("the base was fetched %d times, want %d", fetched, want)
			}
		})
	}
}

// TestImportWithLaterClock checks that a checkpoint from a host whose clock is ahead gets a clock
// offset.
func TestImportWithLaterClock(t *testing.T) {
	p := newStorePair(t)
	from := p.deliver()
	now, err := hostUptime()
	p.must(err)
	from.Description = p.editBundle(from.Description, func(in *bundle) { in.Clock = now + 1000*time.Hour })
	dir := t.TempDir()
	err = p.to.Import(t.Context(), dir, from)
	if other, ok := errors.AsType[*vmm.MismatchError](err); ok && other.Field == "clock" {
		t.Skipf("probe time namespaces: time namespaces are not supported: %v", err)
	}
	p.must(err)
	got, err := p.to.Find(dir)
	if err != nil || got == nil || got.ClockOffset < 999*time.Hour || got.ClockOffset > 1000*time.Hour {
		t.Fatalf("Find() = %+v, %v; want the imported checkpoint", got, err)
	}
}

func (p *storePair) editBundle(description []byte, change func(*bundle)) []byte {
	p.Helper()
	var in bundle
	p.must(json.Unmarshal(description, &in))
	change(&in)
	out, err := json.Marshal(in)
	p.must(err)
	return out
}

// TestImportRefuses checks that a refused bundle leaves the image unchanged and no other files.
func TestImportRefuses(t *testing.T) {
	dead := errors.New("the store is unavailable")
	for name, c := range map[string]struct {
		about  func(*bundle)
		bring  contentSource // replaces the real content
		before func(p *storePair)
		want   string
	}{
		"another_host": {about: func(in *bundle) { in.Fingerprint = "another" }, want: "kernel and processor"},
		"another_program": {before: func(p *storePair) { p.must(os.WriteFile(p.program, []byte("other"), 0o755)) },
			want: "image does not fit this host: "},
		"no_program": {before: func(p *storePair) { p.must(os.Remove(p.program)) }, want: "no such file"},
		"pipe": {before: func(p *storePair) {
			p.must(os.Remove(p.program))
			p.must(unix.Mkfifo(p.program, 0o600))
		}, want: "is not a regular file"},
		"another_format": {about: func(in *bundle) { in.Format++ }, want: "format 3, want 2"},
		"no_thread":      {about: func(in *bundle) { in.Process.Threads = nil }, want: "0 threads"},
		"hashes_missing": {about: func(in *bundle) { in.FileHashes = nil }, want: "0 hashes for 1 files"},
		"hash_is_a_path": {about: func(in *bundle) { in.ContentHash = strings.Repeat("../", 21) + "x" },
			want: "invalid hash "},
		"relative_path": {about: func(in *bundle) { in.Process.Files[0].Path = "a/../b" },
			want: `file path "a/../b"`},
		"too_large": {about: func(in *bundle) { in.Process.Bytes = 2 << 30 }, want: "at most"},
		"spans_overlap": {about: func(in *bundle) { in.Delta = append(in.Delta, in.Delta...) },
			want: "not sorted"},
		"clock":               {about: func(in *bundle) { in.Clock = -1 }, want: "out of range"},
		"content_truncated":   {bring: truncatedSource(false), want: "bytes of content, want"},
		"content_unavailable": {bring: failingSource(false, dead), want: dead.Error()},
		"base_truncated":      {bring: truncatedSource(true), want: "bytes of content, want"},
		"base_unavailable":    {bring: failingSource(true, dead), want: dead.Error()},
		"base_differs": {bring: func(bool, io.WriterAt) (int64, error) { return 4096, nil },
			want: "it has the hash"},
		"full_content_differs": {about: func(in *bundle) { in.Full, in.Delta, in.Process.Bytes = true, nil, 2*4096 },
			want: "the received pages file has the hash"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newStorePair(t)
			from := p.deliver()
			if c.about != nil {
				from.Description = p.editBundle(from.Description, c.about)
			}
			if c.before != nil {
				c.before(p)
			}
			fetch := from.Fetch
			from.Fetch = func(ctx context.Context, origin bool, to io.WriterAt) (int64, error) {
				if c.bring != nil {
					if n, err := c.bring(origin, to); n > 0 || err != nil {
						return n, err
					}
				}
				return fetch(ctx, origin, to)
			}
			dir := t.TempDir()
			err := p.to.Import(t.Context(), dir, from)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("Import() = %v, want an error with %q", err, c.want)
			}
			for _, place := range []string{dir, p.to.contentDir} {
				left, err := os.ReadDir(place)
				if err != nil || place == dir && len(left) > 0 {
					t.Errorf("%s contains %v, %v; want nothing", place, left, err)
				}
				for _, e := range left {
					if strings.HasSuffix(e.Name(), ".part") {
						t.Errorf("got leftover file %s, want none", e.Name())
					}
				}
			}
			if got, err := p.to.Find(dir); got != nil || err != nil {
				t.Errorf("Find() = %+v, %v; want nil, nil", got, err)
			}
		})
	}
}

// contentSource writes something other than the real content and returns how much. If it is nil,
// the real content is used.
type contentSource func(origin bool, to io.WriterAt) (int64, error)

func truncatedSource(origin bool) contentSource {
	return func(of bool, to io.WriterAt) (int64, error) {
		if of != origin {
			return 0, nil
		}
		n, err := to.WriteAt(testContent(4095), 0)
		return int64(n), err
	}
}

func failingSource(origin bool, with error) contentSource {
	return func(of bool, to io.WriterAt) (int64, error) {
		if of != origin {
			return 0, nil
		}
		_, err := to.WriteAt(testContent(4095), 0)
		return 0, errors.Join(err, with)
	}
}

// TestContentsAreBounded checks that pages files of earlier boots are removed by Open, and the
// oldest if there are too many.
func TestContentsAreBounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "qemu")
	old := filepath.Join(dir, contentDirPrefix+"another")
	if err := os.MkdirAll(old, 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pages file of an earlier boot: Stat() = %v, want not exist", err)
	}
	for i := range maxContents + 3 {
		path := filepath.Join(w.contentDir, string(rune('a'+i)))
		at := time.Unix(int64(i), 0)
		if err := errors.Join(os.WriteFile(path, nil, 0o400), os.Chtimes(path, at, at), w.evict(path)); err != nil {
			t.Fatal(err)
		}
	}
	left, err := os.ReadDir(w.contentDir)
	if err != nil || len(left) != maxContents || left[0].Name() != "d" {
		t.Errorf("got pages files %v, %v; want the %d newest", left, err, maxContents)
	}
}

// FuzzBundle checks that arbitrary descriptions are refused or used within their limits.
func FuzzBundle(f *testing.F) {
	f.Add(
		[]byte(
			`{"format":2,"host":"x","image":{"threads":[{}],"bytes":4096,"files":[{"path":"/x"}],` +
				`"areas":[{"start":1099511627776,"end":1099511631872,"backing":"stored"}]},"sums":["` +
				strings.Repeat("0", 64) +
				`"],"sum":"` + strings.Repeat("f", 64) +
				`","over":[{"Start":1099511627776,"End":1099511631872}],"clock":5}`,
		),
	)
	f.Fuzz(func(t *testing.T, description []byte) {
		p, bytes, err := parseBundle(description)
		if err != nil {
			return
		}
		if bytes < 0 || bytes > maxContent || p.Process.Validate() != nil ||
			len(p.FileHashes) != len(p.Process.Files) ||
			filepath.Base(p.ContentHash) != p.ContentHash {
			t.Errorf("parseBundle accepted %d bytes for %+v", bytes, p)
		}
		if p.Full {
			return
		}
		// Decode the content over a base of the declared size; nothing else may be read.
		below := io.NewSectionReader(zeros{}, 0, p.Process.Bytes)
		to := checkpoint.NewXORDelta(&p.Process, p.Delta, below).Decoder(io.NewOffsetWriter(discard{}, 0))
		if _, err := to.WriteAt(make([]byte, min(bytes, 1<<20)), max(0, bytes-1<<20)); err != nil {
			t.Errorf("decode for %+v: %v", p, err)
		}
	})
}

type zeros struct{}

func (zeros) ReadAt(p []byte, _ int64) (int, error) { clear(p); return len(p), nil }

type discard struct{}

func (discard) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
