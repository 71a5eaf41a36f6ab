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

// parcels is two hosts in one: an image that is packed, and where it is unpacked.
type parcels struct {
	*testing.T
	from, to *Store
	program  string // a file that the processes map
	origin   string // directory of an image whose process is whole
	image    string // of one whose process lies over that
}

const overStart = 1 << 40

func newParcels(t *testing.T) *parcels {
	t.Helper()
	p := &parcels{T: t, program: filepath.Join(t.TempDir(), "program"), origin: t.TempDir(), image: t.TempDir()}
	for _, s := range []**Store{&p.from, &p.to} {
		var err error
		*s, err = Open(filepath.Join(t.TempDir(), "qemu"), slog.New(slog.DiscardHandler))
		p.must(err)
	}
	p.must(os.WriteFile(p.program, []byte("code"), 0o755))
	p.keep(p.origin, 4096, nil)
	base, err := ContentOf(filepath.Join(p.origin, processDir, contentName))
	p.must(err)
	p.keep(p.image, 2*4096, base)
	return p
}

func (p *parcels) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// keep writes a process into an image: its own content, over base unless that is nil.
func (p *parcels) keep(image string, bytes int, base *Content) {
	p.Helper()
	file, err := checkpoint.Describe(p.program)
	p.must(err)
	d := Process{Format: processFormat, Set: 3, Base: base, Image: checkpoint.Image{
		Boot: p.from.boot, Threads: make([]checkpoint.Thread, 1), Bytes: 4096, Files: []checkpoint.File{file},
		Areas: []checkpoint.Area{
			{Start: overStart, End: overStart + 4096, Backing: checkpoint.Stored},
			{Start: overStart + 4096, End: overStart + 2*4096, Backing: checkpoint.Zero},
		},
	}}
	if base != nil {
		d.Over = []checkpoint.Span{{Start: overStart, End: overStart + uint64(bytes)}}
	}
	dir := filepath.Join(image, processDir)
	p.must(os.Mkdir(dir, 0o700))
	p.must(os.WriteFile(filepath.Join(dir, contentName), content(bytes), 0o400))
	p.must(d.write(dir))
}

func content(n int) []byte { return bytes.Repeat([]byte{byte(n >> 10)}, n) }

func (p *parcels) pack(image string) *vmm.Parcel {
	p.Helper()
	parcel, err := p.from.Pack(image)
	if err != nil || parcel == nil {
		p.Fatalf("got %v, %v", parcel, err)
	}
	p.Cleanup(func() { p.must(parcel.Content.Close()) })
	return parcel
}

// deliver is how what was packed of the image comes.
func (p *parcels) deliver() vmm.Delivery {
	own, origin := p.pack(p.image), p.pack(p.origin)
	return vmm.Delivery{About: own.About, Bring: func(_ context.Context, first bool, to io.WriterAt) (int64, error) {
		from := own
		if first {
			from = origin
		}
		return io.Copy(io.NewOffsetWriter(to, 0), io.NewSectionReader(from.Content, 0, 1<<20))
	}}
}

// A process goes along with its image, over the content that is here already or comes, too.
func TestUnpack(t *testing.T) {
	for name, near := range map[string]bool{"near": true, "far": false} {
		t.Run(name, func(t *testing.T) {
			p := newParcels(t)
			from, brought := p.deliver(), 0
			bring := from.Bring
			from.Bring = func(ctx context.Context, origin bool, to io.WriterAt) (int64, error) {
				if origin {
					brought++
				}
				return bring(ctx, origin, to)
			}
			if near { // the other host has the template with what it has learnt
				here, whole := t.TempDir(), p.pack(p.origin)
				p.must(
					p.to.Unpack(
						t.Context(),
						here,
						vmm.Delivery{
							About: whole.About,
							Bring: func(ctx context.Context, _ bool, to io.WriterAt) (int64, error) {
								return bring(ctx, true, to)
							},
						},
					),
				)
				from.Near = here
			}
			for range 2 { // the second image finds the content
				dir := t.TempDir()
				for range 2 { // and the second time all is there
					p.must(p.to.Unpack(t.Context(), dir, from))
				}
				got, err := p.to.Find(dir)
				if err != nil || got == nil || got.Set != 3 || got.Ahead != 0 || got.Image.Boot != p.to.boot {
					t.Fatalf("got %+v, %v", got, err)
				}
				for path, want := range map[string]int{got.content: 4096, got.over: 2 * 4096} {
					if data, err := os.ReadFile(path); err != nil || !bytes.Equal(data, content(want)) {
						t.Errorf("%s: %d bytes, %v", path, len(data), err)
					}
				}
			}
			if want := map[bool]int{true: 0, false: 1}[near]; brought != want {
				t.Errorf("the content below was brought %d times, want %d", brought, want)
			}
		})
	}
}

// What was packed on a host whose clock says more than this one's gets a clock that goes on from there.
func TestUnpackLaterClock(t *testing.T) {
	p := newParcels(t)
	from := p.deliver()
	now, err := clock()
	p.must(err)
	from.About = p.changed(from.About, func(in *parcel) { in.Clock = now + 1000*time.Hour })
	dir := t.TempDir()
	err = p.to.Unpack(t.Context(), dir, from)
	if other, ok := errors.AsType[*vmm.MismatchError](err); ok && other.Field == "clock" {
		t.Skipf("probe time namespaces: a process cannot have another clock here: %v", err)
	}
	p.must(err)
	got, err := p.to.Find(dir)
	if err != nil || got == nil || got.Ahead < 999*time.Hour || got.Ahead > 1000*time.Hour {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func (p *parcels) changed(about []byte, change func(*parcel)) []byte {
	p.Helper()
	var in parcel
	p.must(json.Unmarshal(about, &in))
	change(&in)
	out, err := json.Marshal(in)
	p.must(err)
	return out
}

// What does not fit, or is not what was packed, leaves the image as it was, and nothing else behind.
func TestUnpackRefuses(t *testing.T) {
	dead := errors.New("the store is dead")
	for name, c := range map[string]struct {
		about  func(*parcel)
		bring  bringing // what comes in place of what should
		before func(p *parcels)
		want   string
	}{
		"another_host":    {about: func(in *parcel) { in.Host = "another" }, want: "kernel and processor"},
		"another_program": {before: func(p *parcels) { p.must(os.WriteFile(p.program, []byte("other"), 0o755)) }, want: "image does not fit this host: "},
		"no_program":      {before: func(p *parcels) { p.must(os.Remove(p.program)) }, want: "no such file"},
		"pipe": {before: func(p *parcels) {
			p.must(os.Remove(p.program))
			p.must(unix.Mkfifo(p.program, 0o600))
		}, want: "is no regular file"},
		"another_format": {about: func(in *parcel) { in.Format++ }, want: "format 3, want 2"},
		"no_thread":      {about: func(in *parcel) { in.Image.Threads = nil }, want: "0 threads"},
		"sums_missing":   {about: func(in *parcel) { in.Sums = nil }, want: "0 sums of 1 files"},
		"sum_is_a_path":  {about: func(in *parcel) { in.Sum = strings.Repeat("../", 21) + "x" }, want: "sum "},
		"relative_path":  {about: func(in *parcel) { in.Image.Files[0].Path = "a/../b" }, want: `file "a/../b"`},
		"too_large":      {about: func(in *parcel) { in.Image.Bytes = 2 << 30 }, want: "at most"},
		"spans_overlap":  {about: func(in *parcel) { in.Over = append(in.Over, in.Over...) }, want: "out of order"},
		"clock":          {about: func(in *parcel) { in.Clock = -1 }, want: "a clock at"},
		"own_cut":        {bring: cut(false), want: "bytes of content came"},
		"own_dead":       {bring: die(false, dead), want: dead.Error()},
		"below_cut":      {bring: cut(true), want: "bytes of content came"},
		"below_dead":     {bring: die(true, dead), want: dead.Error()},
		"below_lies":     {bring: func(bool, io.WriterAt) (int64, error) { return 4096, nil }, want: "it has the sum"},
		"whole_lies":     {about: func(in *parcel) { in.Whole, in.Over, in.Image.Bytes = true, nil, 2*4096 }, want: "the content that came has the sum"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newParcels(t)
			from := p.deliver()
			if c.about != nil {
				from.About = p.changed(from.About, c.about)
			}
			if c.before != nil {
				c.before(p)
			}
			bring := from.Bring
			from.Bring = func(ctx context.Context, origin bool, to io.WriterAt) (int64, error) {
				if c.bring != nil {
					if n, err := c.bring(origin, to); n > 0 || err != nil {
						return n, err
					}
				}
				return bring(ctx, origin, to)
			}
			dir := t.TempDir()
			err := p.to.Unpack(t.Context(), dir, from)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q in it", err, c.want)
			}
			for _, place := range []string{dir, p.to.contents} {
				left, err := os.ReadDir(place)
				if err != nil || place == dir && len(left) > 0 {
					t.Errorf("left in %s: %v, %v", place, left, err)
				}
				for _, e := range left {
					if strings.HasSuffix(e.Name(), ".part") {
						t.Errorf("left: %s", e.Name())
					}
				}
			}
			if got, err := p.to.Find(dir); got != nil || err != nil {
				t.Errorf("found %+v, %v", got, err)
			}
		})
	}
}

// bringing writes something else than what should come, and answers how much; nothing: what should come does.
type bringing func(origin bool, to io.WriterAt) (int64, error)

func cut(origin bool) bringing {
	return func(of bool, to io.WriterAt) (int64, error) {
		if of != origin {
			return 0, nil
		}
		n, err := to.WriteAt(content(4095), 0)
		return int64(n), err
	}
}

func die(origin bool, with error) bringing {
	return func(of bool, to io.WriterAt) (int64, error) {
		if of != origin {
			return 0, nil
		}
		_, err := to.WriteAt(content(4095), 0)
		return 0, errors.Join(err, with)
	}
}

// Contents of other boots go when the driver is made, and the oldest when there are too many.
func TestContentsAreBounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "qemu")
	old := filepath.Join(dir, contentsName+"another")
	if err := os.MkdirAll(old, 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("contents of another boot: %v", err)
	}
	for i := range maxContents + 3 {
		path := filepath.Join(w.contents, string(rune('a'+i)))
		at := time.Unix(int64(i), 0)
		if err := errors.Join(os.WriteFile(path, nil, 0o400), os.Chtimes(path, at, at), w.thin(path)); err != nil {
			t.Fatal(err)
		}
	}
	left, err := os.ReadDir(w.contents)
	if err != nil || len(left) != maxContents || left[0].Name() != "d" {
		t.Errorf("left: %v, %v", left, err)
	}
}

// FuzzParcel holds when nothing that comes from elsewhere is taken for more than it is.
func FuzzParcel(f *testing.F) {
	f.Add(
		[]byte(
			`{"format":2,"host":"x","image":{"threads":[{}],"bytes":4096,"files":[{"path":"/x"}],"areas":[{"start":1099511627776,"end":1099511631872,"backing":"stored"}]},"sums":["` + strings.Repeat(
				"0",
				64,
			) +
				`"],"sum":"` + strings.Repeat(
				"f",
				64,
			) + `","over":[{"Start":1099511627776,"End":1099511631872}],"clock":5}`,
		),
	)
	f.Fuzz(func(t *testing.T, about []byte) {
		p, bytes, err := parseParcel(about)
		if err != nil {
			return
		}
		if bytes < 0 || bytes > maxContent || p.Image.Check() != nil || len(p.Sums) != len(p.Image.Files) ||
			filepath.Base(p.Sum) != p.Sum {
			t.Errorf("%d bytes, %+v", bytes, p)
		}
		if p.Whole {
			return
		}
		// What comes with it is put over a content of the size that it says, and nothing else is read.
		below := io.NewSectionReader(zeros{}, 0, p.Image.Bytes)
		to := checkpoint.NewDelta(&p.Image, p.Over, below).Back(io.NewOffsetWriter(discard{}, 0))
		if _, err := to.WriteAt(make([]byte, min(bytes, 1<<20)), max(0, bytes-1<<20)); err != nil {
			t.Errorf("%v: %+v", err, p)
		}
	})
}

type zeros struct{}

func (zeros) ReadAt(p []byte, _ int64) (int, error) { clear(p); return len(p), nil }

type discard struct{}

func (discard) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
