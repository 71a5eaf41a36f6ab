package walrelay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/replication"
	"github.com/pandastack/pandastack/internal/control/database/wal"
	"github.com/pandastack/pandastack/internal/control/database/wal/waltest"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// rig is a relay over a spool and a store, without a server.
type rig struct {
	*testing.T
	dir   string
	store *blobtest.Faulty
	a     *archive.Archive
	step  func(string) error
}

func archiveOf(store blob.Store) (*archive.Archive, error) {
	ring, err := keyring.New(bytes.Repeat([]byte{1}, keyring.KeyBytes))
	if err != nil {
		return nil, err
	}
	return archive.New(store, ring, "db1", archive.Options{Retry: time.Microsecond})
}

func newArchive(t testing.TB, store blob.Store) *archive.Archive {
	t.Helper()
	a, err := archiveOf(store)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, dir: t.TempDir(), store: blobtest.NewFaulty(blobtest.NewMemory(), nil)}
	r.a, r.step = newArchive(t, r.store), func(string) error { return nil }
	return r
}

func relayConfig(a *archive.Archive, dir string) Config {
	return Config{
		Server: replication.Config{
			Dial: func(context.Context) (net.Conn, error) { return nil, errors.New("no server") },
		},
		Synchronous: true, Slot: "relay", Archive: a, Dir: dir, Retry: time.Millisecond,
		Log: slog.New(slog.DiscardHandler),
	}
}

func (g *rig) relay() *Relay {
	g.Helper()
	r, err := newRelay(relayConfig(g.a, g.dir), func(name string) error { return g.step(name) })
	if err != nil {
		g.Fatal(err)
	}
	return r
}

// feed is a stream of a log from a position on, in messages of some size.
type feed struct {
	log    *waltest.Log
	at, to wal.LSN
	chunk  int
	acked  wal.LSN
}

var errEnd = errors.New("the stream ends here")

// Next implements source.
func (f *feed) Next() (replication.Message, error) {
	if f.at >= f.to {
		return replication.Message{}, errEnd
	}
	end := min(f.at+wal.LSN(f.chunk), f.to)
	m := replication.Message{Start: f.at, Data: f.log.Bytes(f.at, end), ServerEnd: f.log.End(), Sent: noon}
	f.at = end
	return m, nil
}

// Buffered implements source.
func (f *feed) Buffered() bool { return false }

// Acknowledge implements source.
func (f *feed) Acknowledge(_, flushed wal.LSN, _ time.Time) error {
	f.acked = max(f.acked, flushed)
	return nil
}

// run connects a relay to the log, from where its spool ends up to a position, and returns what it acknowledged.
func run(r *Relay, l *waltest.Log, to wal.LSN) (wal.LSN, error) {
	at, err := r.spool.position()
	if err != nil {
		return 0, err
	}
	if at.at == 0 {
		at = position{l.Timeline, l.Start(), l.Start()}
	}
	f := &feed{log: l, at: at.at, to: to, chunk: 2 << 20}
	r.update(func(s *Status) { s.stream(at) })
	err = r.receive(f, at)
	if !errors.Is(err, errEnd) {
		return f.acked, errors.Join(err, r.spool.close())
	}
	r.mu.Lock()
	r.active = false
	r.mu.Unlock()
	return f.acked, r.spool.close()
}

// sampleLog has a complete segment and a part of another.
func sampleLog() *waltest.Log {
	l := waltest.New(7, 2)
	l.Fill(l.Start() + wal.SegmentBytes + 2<<20)
	l.Commit(5, noon)
	return l
}

// checkArchive compares the log in the archive with the one that was sent, up to a position.
func (g *rig) checkArchive(l *waltest.Log, to wal.LSN) {
	g.Helper()
	c, err := g.a.Catalog(g.Context())
	if err != nil {
		g.Fatal(err)
	}
	path, err := c.Path(0)
	if err != nil {
		g.Fatal(err)
	}
	entries, end := c.Chain(path, l.Start())
	if end < to {
		g.Fatalf("the archive ends at %v, want %v", end, to)
	}
	for _, e := range entries {
		data, _, err := g.a.ReadSegment(g.Context(), e)
		if err != nil {
			g.Fatal(err)
		}
		if !bytes.Equal(data, l.Bytes(e.Segment.Start(), e.End())) {
			g.Errorf("segment %v has other content", e.Segment)
		}
	}
}

// upload runs one pass of a new uploader.
func upload(ctx context.Context, r *Relay) error {
	u := &uploader{r: r, partial: map[wal.Segment]int{}, histories: map[wal.Timeline]bool{}}
	return u.pass(ctx, true)
}

// What was acknowledged gets into the archive, also over a new relay on the same spool, and the spool is emptied.
func TestRelay(t *testing.T) {
	g, l := newRig(t), sampleLog()
	r := g.relay()
	half := l.Start() + wal.SegmentBytes + 1<<20
	acked, err := run(r, l, half)
	if err != nil || acked != half {
		t.Fatalf("acknowledged %v, %v; want %v", acked, err, half)
	}
	if err := upload(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	g.checkArchive(l, half-60_100) // a record that is not whole is left out of a segment that no stream has open
	r = g.relay()
	if got := r.Status().Flushed; got < half-60_100 || got > half {
		t.Errorf("Flushed after a restart = %v, want about %v", got, half)
	}
	if acked, err := run(r, l, l.End()); err != nil || acked != l.End() {
		t.Fatalf("acknowledged %v, %v; want %v", acked, err, l.End())
	}
	if err := upload(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	g.checkArchive(l, l.End())
	if got := r.Status().Uploaded; got != l.End() {
		t.Errorf("Uploaded = %v, want %v", got, l.End())
	}
	all, err := r.spool.files()
	if err != nil || len(all) != 1 || !all[0].partial {
		t.Errorf("the spool has %v, %v; want the last segment alone", all, err)
	}
}

// A server that sends another log than before is noticed, and nothing that was received is lost.
func TestDivergedLog(t *testing.T) {
	g, l := newRig(t), sampleLog()
	to := l.Start() + 1<<20
	if _, err := run(g.relay(), l, to); err != nil {
		t.Fatal(err)
	}
	other := waltest.New(7, 2)
	other.Data(10)
	other.Fill(to + 1<<20)
	r := g.relay()
	if _, err := run(r, other, to); !errors.Is(err, errDiverged) {
		t.Fatalf("another log: got %v, want errDiverged", err)
	}
	if err := upload(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	g.checkArchive(l, to-60_100)
}

// What a crash of the host left of unacknowledged bytes is replaced.
func TestTornTail(t *testing.T) {
	g, l := newRig(t), sampleLog()
	to := l.Start() + 1<<20
	if _, err := run(g.relay(), l, to); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(g.dir, wal.SegmentAt(1, l.Start()).String()+partialSuffix)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(bytes.Repeat([]byte{0xAB}, 100_000))
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	r := g.relay()
	if acked, err := run(r, l, l.End()); err != nil || acked != l.End() {
		t.Fatalf("acknowledged %v, %v; want %v", acked, err, l.End())
	}
	if err := upload(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	g.checkArchive(l, l.End())
}

// A segment that the server ended early continues where its end was received, and its empty rest is not missed.
func TestSwitchOfSegments(t *testing.T) {
	g, l := newRig(t), waltest.New(7, 2)
	l.Commit(5, noon)
	start := l.Switch()
	end := l.End()
	l.Commit(6, noon)
	for _, to := range []wal.LSN{start + 24, start + 8192, end} {
		r := g.relay()
		if acked, err := run(r, l, to); err != nil || acked != to {
			t.Fatalf("acknowledged %v, %v; want %v", acked, err, to)
		}
		if got := g.relay().Status().Flushed; got > to {
			t.Errorf("Flushed after a restart = %v, more than %v", got, to)
		}
		if err := upload(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		g.checkArchive(l, start+24)
	}
}

// waitingFeed sends one message, and the next when the first is acknowledged.
type waitingFeed struct {
	feed
	sent         bool
	acknowledged chan wal.LSN
}

// Next implements source.
func (f *waitingFeed) Next() (replication.Message, error) {
	if f.sent {
		f.at = <-f.acknowledged
		return replication.Message{}, errEnd
	}
	f.sent = true
	return f.feed.Next()
}

// Acknowledge implements source.
func (f *waitingFeed) Acknowledge(_, flushed wal.LSN, _ time.Time) error {
	f.acknowledged <- flushed
	return nil
}

// A relay that is not synchronous acknowledges a little later, also if nothing more arrives.
func TestDelayedAcknowledgement(t *testing.T) {
	g, l := newRig(t), sampleLog()
	r := g.relay()
	r.cfg.Synchronous = false
	to := l.Start() + 1<<20
	f := &waitingFeed{feed: feed{log: l, at: l.Start(), to: to, chunk: 1 << 20}, acknowledged: make(chan wal.LSN, 1)}
	if err := r.receive(f, position{1, l.Start(), l.Start()}); !errors.Is(err, errEnd) || f.at != to {
		t.Errorf("receive = %v, acknowledged %v; want %v", err, f.at, to)
	}
	if got := r.Status(); got.Flushed != to {
		t.Errorf("Flushed = %v, want %v", got.Flushed, to)
	}
	if err := r.spool.close(); err != nil {
		t.Fatal(err)
	}
	// What is pending when the stream ends is made durable as well.
	rest := &feed{log: l, at: l.Start(), to: to + 1<<20, chunk: 1 << 20}
	if err := r.receive(rest, position{1, l.Start(), l.Start()}); !errors.Is(err, errEnd) || rest.acked != 0 {
		t.Errorf("receive = %v, acknowledged %v; want nothing", err, rest.acked)
	}
	if got := r.Status(); got.Flushed != rest.to {
		t.Errorf("Flushed at the end = %v, want %v", got.Flushed, rest.to)
	}
	if err := r.spool.close(); err != nil {
		t.Fatal(err)
	}
}

// After a failure of any step and a new relay on what is left, the archive has all that was acknowledged.
func TestFailureOfEveryStep(t *testing.T) {
	l := sampleLog()
	injected := errors.New("injected")
	for fail := 0; ; fail++ {
		g := newRig(t)
		n, failed := 0, ""
		g.step = func(name string) error {
			if n++; n == fail+1 {
				failed = name
				return injected
			}
			return nil
		}
		r := g.relay()
		acked, err := run(r, l, l.End())
		if err == nil {
			err = upload(t.Context(), r)
		}
		if failed == "" {
			if err != nil || fail < 15 {
				t.Fatalf("%d steps, %v", fail, err)
			}
			return
		}
		if !errors.Is(err, injected) {
			t.Fatalf("step %d, %s: got %v, want the failure", fail, failed, err)
		}
		g.step = func(string) error { return nil }
		r = g.relay()
		again, err := run(r, l, l.End())
		if err != nil || max(acked, again) != l.End() {
			t.Fatalf("after a failure of step %d, %s: acknowledged %v, %v", fail, failed, again, err)
		}
		if err := upload(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		g.checkArchive(l, l.End())
	}
}

// With a store that fails, the spool grows to its limit; then the relay takes nothing more, and goes on when the store
// does.
func TestDeadStore(t *testing.T) {
	g, l := newRig(t), sampleLog()
	g.store.SetFaults(func(c blobtest.Call) blobtest.Fault {
		return blobtest.Fault{Err: errors.New("the store is dead")}
	})
	r := g.relay()
	r.cfg.SpoolBytes = wal.SegmentBytes + 1<<20 // the first segment, and no room for another
	acked, err := run(r, l, l.End())
	if !errors.Is(err, errSpoolFull) || acked <= l.Start() || acked >= l.End() {
		t.Fatalf("acknowledged %v, %v; want what has room in the spool, and errSpoolFull", acked, err)
	}
	if err := upload(t.Context(), r); err == nil {
		t.Fatal("upload to a dead store: got nil, want an error")
	}
	if ok, err := r.hasRoom(); ok || err != nil {
		t.Errorf("hasRoom = %v, %v; want none", ok, err)
	}
	g.store.SetFaults(nil)
	if err := upload(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if acked, err = run(r, l, l.End()); err != nil || acked != l.End() {
		t.Fatalf("acknowledged %v, %v; want %v", acked, err, l.End())
	}
	if err := upload(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	g.checkArchive(l, l.End())
}

// A relay without a server says so, brings its spool to the archive when it stops, and Flush ends with its context.
func TestStopUploads(t *testing.T) {
	g, l := newRig(t), sampleLog()
	if _, err := run(g.relay(), l, l.End()); err != nil {
		t.Fatal(err)
	}
	r := g.relay()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	if err := r.Flush(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	g.checkArchive(l, l.End())
	late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := r.Flush(late, l.End()+1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Flush beyond the end: got %v, want the deadline", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if s := r.Status(); s.State != Stopped || s.UploadLag() != 0 {
		t.Errorf("status = %+v, want stopped and uploaded", s)
	}
	if err := r.Flush(t.Context(), l.End()+1); err == nil {
		t.Error("Flush of a stopped relay: got nil, want an error")
	}
}

// The first bytes of a segment of an ended timeline stay in the archive, and the next timeline continues.
func TestNextTimeline(t *testing.T) {
	g, l := newRig(t), sampleLog()
	r := g.relay()
	if _, err := run(r, l, l.End()); err != nil {
		t.Fatal(err)
	}
	next := l.Fork(2)
	at := l.End()
	next.Fill(at + wal.SegmentBytes)
	if err := r.spool.saveHistory(2, []byte("1\t"+at.String()+"\tpromoted\n")); err != nil {
		t.Fatal(err)
	}
	start := wal.SegmentAt(2, at).Start()
	if err := r.spool.begin(2, start); err != nil {
		t.Fatal(err)
	}
	if acked, err := run(r, next, next.End()); err != nil || acked != next.End() {
		t.Fatalf("acknowledged %v, %v; want %v", acked, err, next.End())
	}
	if err := upload(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	g.checkArchive(next, next.End())
	c, err := g.a.Catalog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if e := c.Segments[wal.SegmentAt(1, at)]; e.End() != at || !e.Partial() {
		t.Errorf("the archive has %v of the last segment of timeline 1, want up to %v", e, at)
	}
	if c.Newest() != 2 || len(c.Holes()) != 0 {
		t.Errorf("newest timeline %v, holes %v", c.Newest(), c.Holes())
	}
}

func TestConfig(t *testing.T) {
	a := newArchive(t, blobtest.NewMemory())
	for name, change := range map[string]func(*Config){
		"slot": func(c *Config) { c.Slot = "No" }, "archive": func(c *Config) { c.Archive = nil },
		"spool": func(c *Config) { c.SpoolBytes = 1 }, "dir": func(c *Config) { c.Dir = "" },
		"dial": func(c *Config) { c.Server.Dial = nil },
	} {
		cfg := relayConfig(a, t.TempDir())
		change(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: got nil, want an error", name)
		}
	}
	if _, err := New(relayConfig(a, t.TempDir())); err != nil {
		t.Error(err)
	}
}

// A gap in what the server sends ends the stream: no byte is acknowledged that was not received.
func TestGapInStream(t *testing.T) {
	g, l := newRig(t), sampleLog()
	r := g.relay()
	f := &feed{log: l, at: l.Start() + 1, to: l.End(), chunk: 1000}
	if err := r.receive(f, position{1, l.Start(), l.Start()}); err == nil || errors.Is(err, io.EOF) || f.acked != 0 {
		t.Errorf("receive = %v, acknowledged %v; want an error and nothing", err, f.acked)
	}
}
