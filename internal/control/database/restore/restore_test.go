package restore_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/manifest"
	"github.com/pandastack/pandastack/internal/control/database/restore"
	"github.com/pandastack/pandastack/internal/control/database/wal"
	"github.com/pandastack/pandastack/internal/control/database/wal/waltest"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func memoryArchive(t testing.TB, store *blobtest.MemoryStore) *archive.Archive {
	t.Helper()
	ring, err := keyring.New(bytes.Repeat([]byte{1}, keyring.KeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	a, err := archive.New(store, ring, "db1", archive.Options{Retry: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// history is a log whose transactions end one per minute.
type history struct {
	log     *waltest.Log
	commits []wal.LSN // start of the commit of transaction 100+i at noon + i minutes
	ends    []wal.LSN
	named   wal.LSN // end of the restore point
}

func makeHistory() *history {
	h := &history{log: waltest.New(7, 2)}
	for i := range 6 {
		h.log.Data(1000)
		h.commits = append(h.commits, h.log.Commit(uint32(100+i), noon.Add(time.Duration(i)*time.Minute)))
		h.ends = append(h.ends, h.log.End())
		if i == 3 {
			h.log.RestorePoint("here", noon.Add(3*time.Minute))
			h.named = h.log.End()
		}
		if i%2 == 1 {
			h.log.Switch()
		}
	}
	return h
}

func putLog(t *testing.T, a *archive.Archive, l *waltest.Log, skip uint64) {
	t.Helper()
	for n := uint64(l.Start()) / wal.SegmentBytes; ; n++ {
		s := wal.Segment{Timeline: l.Timeline, Number: n}
		if s.Start() >= l.End() {
			return
		}
		if n == skip {
			continue
		}
		covered := archive.Coverage{At: noon.Add(10 * time.Minute)}
		if err := a.PutSegment(t.Context(), s, l.Segment(n), covered); err != nil {
			t.Fatal(err)
		}
	}
}

func putBase(t *testing.T, a *archive.Archive, start, stop wal.LSN, finished time.Time) archive.Base {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	var err error
	for _, dir := range []string{"pg_wal/", "base/"} {
		err = errors.Join(err, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o700}))
	}
	for name, text := range map[string]string{
		"PG_VERSION": "16\n", "base/1": "data",
		"postgresql.auto.conf": "# comment\nwork_mem = '4MB'\nsynchronous_standby_names = 'relay'\n" +
			"recovery_target_xid = '1'\n",
	} {
		err = errors.Join(err,
			w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: 0o600}))
		_, err2 := io.WriteString(w, text)
		err = errors.Join(err, err2)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	m, names, err := manifest.Collect(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	text, err := m.Format(names, finished)
	if err != nil {
		t.Fatal(err)
	}
	base := a.NewBase(t.Context(), archive.NewBaseID(1, start))
	if _, err := base.Write(out.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := base.Upload(); err != nil {
		t.Fatal(err)
	}
	b := archive.Base{System: 7, Timeline: 1, Start: start, Stop: stop, Finished: finished, Variant: "npm-16"}
	if err := base.Commit(t.Context(), &b, text); err != nil {
		t.Fatal(err)
	}
	return b
}

// What the archive gets after a plan was made is not restored, although it replaces an object that the plan uses.
func TestLogThatGrows(t *testing.T) {
	h, a := makeHistory(), memoryArchive(t, blobtest.NewMemory())
	putLog(t, a, h.log, uint64(h.commits[4])/wal.SegmentBytes)
	putBase(t, a, h.log.Start()+40, h.commits[0], noon.Add(-time.Minute))
	last := wal.SegmentAt(1, h.commits[4])
	put := func(end wal.LSN) int {
		t.Helper()
		data := h.log.Segment(last.Number)[:end-last.Start()]
		if err := a.PutSegment(t.Context(), last, data, archive.Coverage{}); err != nil {
			t.Fatal(err)
		}
		return len(data)
	}
	bytes := put(h.ends[4])
	target := restore.Target{Time: noon.Add(4*time.Minute + time.Second), CoveredUntil: noon.Add(5 * time.Minute)}
	plan, err := restore.Find(t.Context(), a, target)
	if err != nil || plan.End != h.ends[4] {
		t.Fatalf("Find = %+v, %v; want the end %v", plan, err, h.ends[4])
	}
	put(h.ends[5])
	if err := a.RemovePartial(t.Context(), last, bytes); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := plan.Write(t.Context(), restore.DirSink{Root: root}, restore.Options{}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "pg_wal", last.String()))
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range got[bytes:] {
		if c != 0 {
			t.Fatalf("the segment has log at %v, after the plan's end %v", last.Start()+wal.LSN(bytes+i), plan.End)
		}
	}
}

// Every kind of target is resolved to the position after exactly what it includes.
func TestFind(t *testing.T) {
	h, a := makeHistory(), memoryArchive(t, blobtest.NewMemory())
	putLog(t, a, h.log, 0)
	early := putBase(t, a, h.log.Start()+40, h.commits[0], noon.Add(-time.Minute))
	late := putBase(t, a, h.ends[2], h.commits[3], noon.Add(150*time.Second))
	minute := func(n float64) time.Time { return noon.Add(time.Duration(n * float64(time.Minute))) }
	next := func(i int) wal.LSN { return h.ends[i] } // the record after a commit begins at its end
	for _, one := range []struct {
		name   string
		target restore.Target
		base   archive.Base
		stop   wal.LSN
	}{
		{"time", restore.Target{Time: minute(1.5)}, early, h.commits[2]},
		{"time-of-a-commit", restore.Target{Time: minute(1)}, early, h.commits[2]},
		{"late-time", restore.Target{Time: minute(3.5)}, late, h.commits[4]},
		{"after-the-last", restore.Target{Time: minute(9)}, late, 0},
		{"covered", restore.Target{Time: minute(20), CoveredUntil: minute(30)}, late, 0},
		{"position", restore.Target{LSN: h.ends[0]}, early, h.ends[0]},
		{"end", restore.Target{LSN: h.log.End()}, late, 0},
		{"transaction", restore.Target{XID: 100}, early, next(0)},
		{"last-transaction", restore.Target{XID: 105}, late, next(5)},
		{"name", restore.Target{Name: "here"}, late, h.named},
		{"latest", restore.Target{}, late, 0},
	} {
		t.Run(one.name, func(t *testing.T) {
			plan, err := restore.Find(t.Context(), a, one.target)
			if err != nil {
				t.Fatal(err)
			}
			if plan.Base.ID != one.base.ID {
				t.Errorf("base from %v, want %v", plan.Base.Start, one.base.Start)
			}
			if plan.Stop != one.stop {
				t.Errorf("Stop = %v, want %v", plan.Stop, one.stop)
			}
		})
	}
	for _, one := range []struct {
		name   string
		target restore.Target
		want   error
	}{
		{"before", restore.Target{Time: minute(-2)}, restore.ErrTooEarly},
		{"position-before", restore.Target{LSN: h.log.Start() + 1}, restore.ErrTooEarly},
		{"after", restore.Target{Time: minute(11)}, restore.ErrTooLate},
		{"position-after", restore.Target{LSN: h.log.End() + wal.SegmentBytes}, restore.ErrTooLate},
		{"name", restore.Target{Name: "nowhere"}, restore.ErrUnknown},
		{"transaction", restore.Target{XID: 9}, restore.ErrUnknown},
		{"variant", restore.Target{Variant: "debian-13"}, restore.ErrVariant},
	} {
		t.Run("no-"+one.name, func(t *testing.T) {
			if _, err := restore.Find(t.Context(), a, one.target); !errors.Is(err, one.want) {
				t.Errorf("Find = %v, want %v", err, one.want)
			}
		})
	}
	if _, err := restore.Find(t.Context(), a, restore.Target{XID: 1, Name: "x"}); err == nil {
		t.Error("two targets: got nil, want an error")
	}
}

// A hole before the target, or a missing base, is an error and never a restore to something else.
func TestHole(t *testing.T) {
	h, a := makeHistory(), memoryArchive(t, blobtest.NewMemory())
	if _, err := restore.Find(t.Context(), a, restore.Target{}); !errors.Is(err, restore.ErrNoBase) {
		t.Errorf("without a base: got %v, want ErrNoBase", err)
	}
	putLog(t, a, h.log, 3)
	putBase(t, a, h.log.Start()+40, h.commits[0], noon.Add(-time.Minute))
	for _, target := range []restore.Target{{}, {Time: noon.Add(9 * time.Minute)}, {LSN: h.ends[4]}} {
		if _, err := restore.Find(t.Context(), a, target); !errors.Is(err, restore.ErrHole) {
			t.Errorf("%v: got %v, want ErrHole", target, err)
		}
	}
	if plan, err := restore.Find(t.Context(), a, restore.Target{Time: noon.Add(30 * time.Second)}); err != nil ||
		plan.Stop != h.commits[1] {
		t.Errorf("a target before the hole: %v", err)
	}
}

// The data directory has the files of the base, the segments, and the settings of the recovery in place of older ones.
func TestWrite(t *testing.T) {
	h, a := makeHistory(), memoryArchive(t, blobtest.NewMemory())
	putLog(t, a, h.log, 0)
	putBase(t, a, h.log.Start()+40, h.commits[0], noon.Add(-time.Minute))
	plan, err := restore.Find(t.Context(), a, restore.Target{XID: 101})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	sink := restore.DirSink{Root: root}
	opt := restore.Options{Settings: []restore.Setting{{"cluster_name", "it's"}}, Reset: []string{"work_mem"}}
	if err := errors.Join(plan.Write(t.Context(), sink, opt), sink.Sync()); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := errors.Join(plan.Write(t.Context(), restore.TarSink{W: w}, opt), w.Close()); err != nil {
		t.Fatal(err)
	}
	inTar := map[string]string{}
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		inTar[strings.TrimSuffix(h.Name, "/")] = string(text)
	}
	onDisk := map[string]string{}
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		if err != nil || name == "." {
			return err
		}
		if d.IsDir() {
			onDisk[name] = ""
			return nil
		}
		text, err := os.ReadFile(path)
		onDisk[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(inTar, onDisk) {
		t.Error("the tar archive and the directory differ")
	}
	if onDisk["base/1"] != "data" || onDisk["pg_wal/000000010000000000000002"] != string(h.log.Segment(2)) {
		t.Error("the base or the log has other content")
	}
	want := "# comment\nrestore_command = 'false'\nrecovery_target_timeline = '1'\n" +
		"recovery_target_action = 'promote'\nrecovery_target_lsn = '" + plan.Stop.String() + "'\n" +
		"recovery_target_inclusive = 'off'\ncluster_name = 'it''s'\n"
	if got := onDisk["postgresql.auto.conf"]; got != want {
		t.Errorf("settings:\n%s\nwant\n%s", got, want)
	}
	if _, ok := onDisk["recovery.signal"]; !ok {
		t.Error("recovery.signal is missing")
	}
	bad := restore.Options{Settings: []restore.Setting{{"a", "b\nc = d"}}}
	if err := plan.Write(t.Context(), sink, bad); err == nil {
		t.Error("a setting with a line break: got nil, want an error")
	}
}

// A base that was changed in the store is never written as if it were whole.
func TestDamagedBase(t *testing.T) {
	memory := blobtest.NewMemory()
	store := blobtest.NewFaulty(memory, nil)
	h, a := makeHistory(), memoryArchive(t, memory)
	putLog(t, a, h.log, 0)
	putBase(t, a, h.log.Start()+40, h.commits[0], noon.Add(-time.Minute))
	ring, err := keyring.New(bytes.Repeat([]byte{1}, keyring.KeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	faulty, err := archive.New(store, ring, "db1", archive.Options{Retry: time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := restore.Find(t.Context(), faulty, restore.Target{})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"/tar/", "/manifest", "/wal/"} {
		for name, fault := range map[string]blobtest.Fault{
			"short": {Short: 20}, "error": {Err: io.ErrClosedPipe},
		} {
			store.SetFaults(func(c blobtest.Call) blobtest.Fault {
				if strings.Contains(c.Key, part) {
					return fault
				}
				return blobtest.Fault{}
			})
			w := tar.NewWriter(io.Discard)
			if err := plan.Write(t.Context(), restore.TarSink{W: w}, restore.Options{}); err == nil {
				t.Errorf("%s of %s: got nil, want an error", name, part)
			}
		}
	}
}
