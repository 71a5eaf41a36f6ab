package archive_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/manifest"
	"github.com/pandastack/pandastack/internal/control/database/wal"
	"github.com/pandastack/pandastack/internal/control/database/wal/waltest"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// rig is an archive in memory.
type rig struct {
	*testing.T
	memory *blobtest.MemoryStore
	store  *blobtest.Faulty
	a      *archive.Archive
}

func open(t *testing.T, store blob.Store, key byte, id string) *archive.Archive {
	t.Helper()
	ring, err := keyring.New(bytes.Repeat([]byte{key}, keyring.KeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	a, err := archive.New(store, ring, id, archive.Options{Retry: time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, memory: blobtest.NewMemory()}
	r.store = blobtest.NewFaulty(r.memory, nil)
	r.a = open(t, r.store, 1, "db1")
	return r
}

// smallLog returns a log of several segments that compress well.
func smallLog(segments int) *waltest.Log {
	l := waltest.New(7, 2)
	for range segments {
		l.Commit(1, noon)
		l.Switch()
	}
	l.Commit(2, noon)
	return l
}

// putLog stores the segments of a log, those in skip aside.
func (g *rig) putLog(l *waltest.Log, skip ...uint64) {
	g.Helper()
	for n := uint64(l.Start()) / wal.SegmentBytes; ; n++ {
		s := wal.Segment{Timeline: l.Timeline, Number: n}
		if s.Start() >= l.End() {
			return
		}
		if slices.Contains(skip, n) {
			continue
		}
		data := l.Segment(n)
		name := "db/db1/00000001/wal/" + s.String() + ".zst"
		if stored := complete[name]; stored != nil && len(data) == wal.SegmentBytes {
			blobtest.Put(g.T, g.memory, name, stored)
			continue
		}
		if err := g.a.PutSegment(g.Context(), s, data, archive.Coverage{At: noon}); err != nil {
			g.Fatal(err)
		}
		if len(data) < wal.SegmentBytes {
			continue
		}
		stored, err := blobtest.Get(g.Context(), g.memory, name, 0, -1)
		if err != nil {
			g.Fatal(err)
		}
		complete[name] = stored
	}
}

// complete has the complete segments of smallLog as they are stored: they are equal in all tests, and slow to make.
var complete = map[string][]byte{}

// putBase stores a base with one file.
func (g *rig) putBase(start, stop wal.LSN, finished time.Time) archive.Base {
	g.Helper()
	b, err := putBase(g.Context(), g.a, start, stop, finished)
	if err != nil {
		g.Fatal(err)
	}
	return b
}

func putBase(ctx context.Context, a *archive.Archive, start, stop wal.LSN, finished time.Time) (archive.Base, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	text := []byte("16\n")
	err1 := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "PG_VERSION", Size: int64(len(text)), Mode: 0o600})
	_, err2 := w.Write(text)
	if err := errors.Join(err1, err2, w.Close()); err != nil {
		return archive.Base{}, err
	}
	m, names, err := manifest.Collect(bytes.NewReader(out.Bytes()))
	if err != nil {
		return archive.Base{}, err
	}
	listed, err := m.Format(names, finished)
	if err != nil {
		return archive.Base{}, err
	}
	base := a.NewBase(ctx, archive.NewBaseID(1, start))
	if _, err := base.Write(out.Bytes()); err != nil {
		return archive.Base{}, errors.Join(err, base.Discard(ctx))
	}
	b := archive.Base{System: 7, Timeline: 1, Start: start, Stop: stop, Started: finished, Finished: finished, Files: 1}
	err = base.Upload()
	if err == nil {
		err = base.Commit(ctx, &b, listed)
	}
	if err != nil {
		return b, errors.Join(err, base.Discard(ctx))
	}
	return b, nil
}

func (g *rig) catalog() *archive.Catalog {
	g.Helper()
	c, err := g.a.Catalog(g.Context())
	if err != nil {
		g.Fatal(err)
	}
	return c
}

// A segment, its first bytes and a history come back as they were stored; the longest of several is listed.
func TestSegments(t *testing.T) {
	g, l := newRig(t), smallLog(1)
	s := wal.Segment{Timeline: 1, Number: 2}
	full := l.Segment(2)
	var first archive.Entry
	for _, n := range []int{1000, 9000, wal.SegmentBytes} {
		if err := g.a.PutSegment(t.Context(), s, full[:n], archive.Coverage{At: noon}); err != nil {
			t.Fatal(err)
		}
		e := g.catalog().Segments[s]
		if n == 1000 {
			first = e
		}
		data, c, err := g.a.ReadSegment(t.Context(), e)
		if err != nil || e.Bytes != n || !bytes.Equal(data, full[:n]) || !c.At.Equal(noon) {
			t.Errorf("%d bytes: got %d, listed as %d, covered %v, %v", n, len(data), e.Bytes, c.At, err)
		}
	}
	if err := g.a.RemovePartial(t.Context(), s, 1000); err != nil {
		t.Fatal(err)
	}
	if data, _, err := g.a.ReadSegment(t.Context(), first); err != nil || !bytes.HasPrefix(data, full[:1000]) {
		t.Errorf("an entry that was replaced since: %d bytes, %v; want the longer one", len(data), err)
	}
	keys := blobtest.Keys(t, g.memory, "")
	want := []string{
		"db/db1/00000001/wal/000000010000000000000002.00002328.partial.zst",
		"db/db1/00000001/wal/000000010000000000000002.zst",
	}
	if !slices.Equal(keys, want) {
		t.Errorf("keys %v, want %v", keys, want)
	}
	if err := g.a.PutHistory(t.Context(), 2, []byte("1\t0/2000100\tx\n")); err != nil {
		t.Fatal(err)
	}
	if got := g.catalog().Newest(); got != 2 {
		t.Errorf("Newest = %v, want 2", got)
	}
	if err := g.a.PutHistory(t.Context(), 2, []byte("3\t0/1\tx\n")); err == nil {
		t.Error("an invalid history: got nil, want an error")
	}
}

// An object that was changed, cut, moved or sealed with another key is refused as damaged.
func TestTampering(t *testing.T) {
	g, l := newRig(t), smallLog(2)
	g.putLog(l)
	s := wal.Segment{Timeline: 1, Number: 2}
	e := g.catalog().Segments[s]
	key := "db/db1/00000001/wal/" + s.String() + ".zst"
	other := "db/db1/00000001/wal/" + s.Next().String() + ".zst"
	good, err := blobtest.Get(t.Context(), g.memory, key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(good, l.Segment(2)[:24]) {
		t.Error("the object contains the log in the clear")
	}
	moved, err := blobtest.Get(t.Context(), g.memory, other, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Clone(good)
	changed[len(changed)/2] ^= 1
	for name, data := range map[string][]byte{
		"changed": changed, "cut": good[:len(good)-1], "moved": moved, "empty": {},
	} {
		blobtest.Put(t, g.memory, key, data)
		if _, _, err := g.a.ReadSegment(t.Context(), e); !errors.Is(err, archive.ErrCorrupt) {
			t.Errorf("%s: got %v, want ErrCorrupt", name, err)
		}
	}
	blobtest.Put(t, g.memory, key, good)
	if _, _, err := open(t, g.memory, 2, "db1").ReadSegment(t.Context(), e); !errors.Is(err, archive.ErrCorrupt) {
		t.Errorf("another master key: got %v, want ErrCorrupt", err)
	}
}

// Windows are what can be restored; a missing segment splits them and is a hole.
func TestWindowsAndHoles(t *testing.T) {
	g, l := newRig(t), smallLog(6)
	g.putLog(l, 5)
	at := func(n uint64) wal.LSN { return wal.LSN(n*wal.SegmentBytes) + 100 }
	first := g.putBase(at(2), at(2)+50, noon)
	g.putBase(at(4), at(6), noon.Add(time.Hour)) // lacks segment 5
	second := g.putBase(at(6), at(7), noon.Add(2*time.Hour))
	c := g.catalog()
	windows, err := c.Windows(0)
	if err != nil || len(windows) != 2 {
		t.Fatalf("windows %v, %v; want 2", windows, err)
	}
	if w := windows[0]; w.Base != first.ID || w.From != first.Stop || w.To != at(5)-100 {
		t.Errorf("first window %+v", w)
	}
	if w := windows[1]; w.Base != second.ID || w.To != l.End() {
		t.Errorf("second window %+v, want up to %v", w, l.End())
	}
	if err := g.a.FillTimes(t.Context(), windows); err != nil || !windows[1].ToTime.Equal(noon) {
		t.Errorf("time of the end %v, %v; want %v", windows[1].ToTime, err, noon)
	}
	hole := archive.Hole{Timeline: 1, From: at(5) - 100, To: at(6) - 100}
	if got := c.Holes(); len(got) != 1 || got[0] != hole {
		t.Errorf("holes %v, want %v", got, hole)
	}
	v, err := g.a.Scrub(t.Context(), archive.Scrub{Share: 1})
	if err != nil || v.Intact() || len(v.Holes) != 1 || len(v.Damage) != 1 || v.Bases != 3 {
		t.Errorf("Scrub = %+v, %v; want the hole, and the base without its log", v, err)
	}
}

// A retention keeps every moment of its period restorable, and removes what only older moments need.
func TestRetention(t *testing.T) {
	at := func(n uint64) wal.LSN { return wal.LSN(n*wal.SegmentBytes) + 100 }
	day := 24 * time.Hour
	for _, one := range []struct {
		name      string
		retention archive.Retention
		bases     int // that stay
		first     uint64
	}{
		{"two-days", archive.Retention{Period: 2 * day}, 3, 4},
		{"everything", archive.Retention{Period: 100 * day}, 5, 2},
		{"newest", archive.Retention{}, 1, 6},
		{"count", archive.Retention{Count: 4}, 4, 3},
		{"half-a-day", archive.Retention{Period: day / 2}, 2, 5},
	} {
		t.Run(one.name, func(t *testing.T) {
			g, l := newRig(t), smallLog(5)
			g.putLog(l)
			for n := uint64(2); n < 7; n++ {
				g.putBase(at(n), at(n)+10, noon.Add(time.Duration(n)*day))
			}
			now := noon.Add(6 * day)
			done, err := g.a.Collect(t.Context(), one.retention, now)
			if err != nil {
				t.Fatal(err)
			}
			c := g.catalog()
			if len(c.Bases) != one.bases || len(done.Bases) != 5-one.bases {
				t.Errorf("%d bases stay, %d go; want %d to stay", len(c.Bases), len(done.Bases), one.bases)
			}
			first := uint64(100)
			for s := range c.Segments {
				first = min(first, s.Number)
			}
			if first != one.first || len(c.Holes()) != 0 {
				t.Errorf("the log begins with segment %d, holes %v; want %d and none", first, c.Holes(), one.first)
			}
			if again, err := g.a.Collect(t.Context(), one.retention, now); err != nil || len(again.Bases) != 0 {
				t.Errorf("a second Collect removed %v, %v", again.Bases, err)
			}
		})
	}
}

// Retention does not rely on a base that cannot be restored.
func TestRetentionKeepsBaseBeforeBrokenOne(t *testing.T) {
	g, l := newRig(t), smallLog(3)
	g.putLog(l, 3)
	at := func(n uint64) wal.LSN { return wal.LSN(n*wal.SegmentBytes) + 100 }
	good := g.putBase(at(2), at(2)+10, noon)
	g.putBase(at(3), at(4), noon.Add(time.Hour)) // its log is missing
	done, err := g.a.Collect(t.Context(), archive.Retention{}, noon.Add(2*time.Hour))
	if err != nil || len(done.Bases) != 0 || g.catalog().Bases[0].ID != good.ID {
		t.Errorf("Collect removed %v, %v; want nothing", done.Bases, err)
	}
}

// With a failure of any request of a base backup, no base is listed and nothing stays; of Collect, what is listed can
// be restored.
func TestFailureOfEveryRequest(t *testing.T) {
	injected := errors.New("injected")
	failFrom := func(n int) func(blobtest.Call) blobtest.Fault {
		count := 0
		return func(c blobtest.Call) blobtest.Fault {
			if c.Op != "delete" && c.Op != "put" {
				return blobtest.Fault{}
			}
			count++
			if count > n && count <= n+4 { // all attempts of one request
				return blobtest.Fault{Err: injected}
			}
			return blobtest.Fault{}
		}
	}
	at := func(n uint64) wal.LSN { return wal.LSN(n*wal.SegmentBytes) + 100 }
	for n := 0; ; n++ {
		g := newRig(t)
		g.store.SetFaults(failFrom(n))
		_, err := putBase(t.Context(), g.a, at(2), at(2)+10, noon)
		g.store.SetFaults(nil)
		bases := g.catalog().Bases
		if err == nil {
			if len(bases) != 1 || n != 3 {
				t.Errorf("%d requests, %d bases", n, len(bases))
			}
			break
		}
		if len(bases) != 0 || len(blobtest.Keys(t, g.memory, "")) != 0 {
			t.Errorf("failure of request %d left %v", n, blobtest.Keys(t, g.memory, ""))
		}
	}
	for n, done := 0, false; !done; n++ {
		g, l := newRig(t), smallLog(2)
		g.putLog(l)
		for k := uint64(2); k < 4; k++ {
			g.putBase(at(k), at(k)+10, noon.Add(time.Duration(k)*time.Hour))
		}
		g.store.SetFaults(failFrom(n))
		_, err := g.a.Collect(t.Context(), archive.Retention{}, noon.Add(9*time.Hour))
		g.store.SetFaults(nil)
		done = err == nil
		c := g.catalog()
		for _, b := range c.Bases {
			if !c.Complete(b) {
				t.Errorf("after a failure of request %d, base %s lacks its log", n, b.ID)
			}
		}
		if _, err := g.a.Collect(t.Context(), archive.Retention{}, noon.Add(99*time.Hour)); err != nil {
			t.Fatal(err)
		}
		if got := len(g.catalog().Bases); got != 1 {
			t.Errorf("%d bases after the next Collect, want 1", got)
		}
	}
}

// What a killed writer left is removed a day later, and not before: it may still be written.
func TestAbandonedBase(t *testing.T) {
	g := newRig(t)
	base := g.a.NewBase(t.Context(), archive.NewBaseID(1, 100))
	if _, err := base.Write([]byte("part")); err != nil {
		t.Fatal(err)
	}
	if err := base.Upload(); err != nil {
		t.Fatal(err)
	}
	if _, err := g.a.Collect(t.Context(), archive.Retention{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if got := len(blobtest.Keys(t, g.memory, "")); got != 1 {
		t.Errorf("%d objects an hour later, want 1", got)
	}
	done, err := g.a.Collect(t.Context(), archive.Retention{}, time.Now().Add(25*time.Hour))
	if err != nil || done.Objects != 1 || len(blobtest.Keys(t, g.memory, "")) != 0 {
		t.Errorf("Collect a day later: %+v, %v", done, err)
	}
}

// A scrub finds a damaged segment and a damaged base, and says which.
func TestScrub(t *testing.T) {
	g, l := newRig(t), smallLog(2)
	g.putLog(l)
	g.putBase(l.Start()+100, l.Start()+120, noon)
	if v, err := g.a.Scrub(t.Context(), archive.Scrub{Share: 1}); err != nil || !v.Intact() || v.Segments != 3 {
		t.Fatalf("Scrub of an intact archive = %+v, %v", v, err)
	}
	if v, err := g.a.Scrub(t.Context(), archive.Scrub{}); err != nil || v.Segments != 1 || v.Bases != 1 {
		t.Errorf("the smallest sample = %+v, %v; want the newest base and segment", v, err)
	}
	corrupt := func(part string) {
		g.store.SetFaults(func(c blobtest.Call) blobtest.Fault {
			if c.Op != "get" || !strings.Contains(c.Key, part) {
				return blobtest.Fault{}
			}
			return blobtest.Fault{Corrupt: func(data []byte) []byte {
				return append(data[:len(data)-1], data[len(data)-1]^1)
			}}
		})
	}
	for _, part := range []string{"000000010000000000000003", "/tar/", "/manifest", "/meta"} {
		corrupt(part)
		v, err := g.a.Scrub(t.Context(), archive.Scrub{Share: 1})
		if err != nil || len(v.Damage) != 1 || !strings.Contains(fmt.Sprint(v.Damage), part) {
			t.Errorf("damage of %s: %+v, %v", part, v, err)
		}
	}
	g.store.SetFaults(func(c blobtest.Call) blobtest.Fault { return blobtest.Fault{Err: io.ErrClosedPipe} })
	if _, err := g.a.Scrub(t.Context(), archive.Scrub{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Scrub of a dead store: got %v, want its error", err)
	}

}

func TestNamesAreChecked(t *testing.T) {
	ring, err := keyring.New(make([]byte, keyring.KeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"", "a/b", "A", "..", strings.Repeat("a", 65)} {
		if _, err := archive.New(blobtest.NewMemory(), ring, id, archive.Options{}); err == nil {
			t.Errorf("id %q: got nil, want an error", id)
		}
	}
}
