//go:build e2e

package restore_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/basebackup"
	"github.com/pandastack/pandastack/internal/control/database/replication"
	"github.com/pandastack/pandastack/internal/control/database/restore"
	"github.com/pandastack/pandastack/internal/control/database/wal"
	"github.com/pandastack/pandastack/internal/control/database/walrelay"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
	"github.com/pandastack/pandastack/internal/lib/keyring"
	"github.com/pandastack/pandastack/test/pglab"
)

// lab is a server with a relay and an archive.
type lab struct {
	*testing.T
	server  *pglab.Server
	store   *blobtest.MemoryStore
	archive *archive.Archive
	relay   *walrelay.Relay
}

func openArchive(t *testing.T, store *blobtest.MemoryStore, id string) *archive.Archive {
	t.Helper()
	ring, err := keyring.New(bytes.Repeat([]byte{1}, keyring.KeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	a, err := archive.New(store, ring, id, archive.Options{Retry: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func serverConfig(s *pglab.Server) replication.Config {
	return replication.Config{Dial: s.Dial, User: pglab.User, Password: pglab.Password}
}

// newLab starts a server and its relay.
func newLab(t *testing.T, settings ...string) *lab {
	l := &lab{T: t, server: pglab.New(t, settings...), store: blobtest.NewMemory()}
	l.archive = openArchive(t, l.store, "db1")
	l.relay = startRelay(t, l.server, l.archive, t.TempDir())
	return l
}

// startRelay runs a relay until the end of the test.
func startRelay(t *testing.T, s *pglab.Server, a *archive.Archive, dir string) *walrelay.Relay {
	t.Helper()
	r, err := walrelay.New(walrelay.Config{
		Server: serverConfig(s), Archive: a, Slot: "relay", Dir: dir, Retry: 10 * time.Millisecond,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return r
}

// now returns the position of the server.
func (l *lab) now() wal.LSN {
	l.Helper()
	at, err := wal.ParseLSN(l.server.Value("select pg_current_wal_flush_lsn()"))
	if err != nil {
		l.Fatal(err)
	}
	return at
}

// flush waits until all of the log is in the archive.
func (l *lab) flush() {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.Context(), time.Minute)
	defer cancel()
	if err := l.relay.Flush(ctx, l.now()); err != nil {
		l.Fatal(err)
	}
}

// backup takes a base backup.
func (l *lab) backup() archive.Base {
	l.Helper()
	b, err := basebackup.Take(l.Context(), serverConfig(l.server), l.archive, basebackup.Options{
		Variant: "test", Archived: func(ctx context.Context, _ wal.Timeline, at wal.LSN) error {
			return l.relay.Flush(ctx, at)
		},
	})
	if err != nil {
		l.Fatal(err)
	}
	return b
}

// restored restores a target into a new server.
func (l *lab) restored(t *testing.T, target restore.Target) *pglab.Server {
	t.Helper()
	plan, err := restore.Find(t.Context(), l.archive, target)
	if err != nil {
		t.Fatal(err)
	}
	s := pglab.Empty(t)
	if err := os.Mkdir(s.Data, 0o700); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(s.Data)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := plan.Write(t.Context(), restore.DirSink{Root: root}, restore.Options{}); err != nil {
		t.Fatal(err)
	}
	s.Own()
	s.Start()
	return s
}

// A database is restored to a time, a position, a transaction, a name and the end, with exactly the rows of then.
func TestPointInTime(t *testing.T) {
	l := newLab(t, "track_commit_timestamp=on")
	l.server.Exec("create table a (b int)")
	first := l.backup()
	l.server.Exec("insert into a select generate_series(1, 1000)")
	atTime := l.server.Value("select clock_timestamp()::text")
	at, err := time.Parse("2006-01-02 15:04:05.999999-07", atTime)
	if err != nil {
		t.Fatal(err)
	}
	position := l.now()
	l.server.Exec("insert into a select generate_series(1, 500)")
	xid := l.server.Value("with x as (insert into a values (1) returning 1) select txid_current() from x")
	l.server.Exec("insert into a values (2)")
	l.server.Value("select pg_create_restore_point('before the delete')")
	l.server.Exec("delete from a")
	l.server.Value("select pg_switch_wal()")
	l.server.Exec("insert into a select generate_series(1, 7)")
	l.flush()
	var id uint32
	for _, c := range xid {
		id = id*10 + uint32(c-'0')
	}
	for _, one := range []struct {
		name, want string
		target     restore.Target
	}{
		{"time", "1000", restore.Target{Time: at}},
		{"position", "1000", restore.Target{LSN: position}},
		{"transaction", "1501", restore.Target{XID: id}},
		{"name", "1502", restore.Target{Name: "before the delete"}},
		{"end", "7", restore.Target{Variant: "test"}},
		{"end-by-position", "7", restore.Target{LSN: l.now()}},
		{"covered-time", "7", restore.Target{Time: time.Now(), CoveredUntil: time.Now().Add(time.Second)}},
	} {
		t.Run(one.name, func(t *testing.T) {
			s := l.restored(t, one.target)
			if got := s.Value("select count(*) from a"); got != one.want {
				t.Errorf("%s rows, want %s", got, one.want)
			}
			s.Exec("insert into a values (1)") // it has been promoted
		})
	}
	for _, one := range []struct {
		name   string
		target restore.Target
		want   error
	}{
		{"before-the-base", restore.Target{Time: first.Finished.Add(-time.Second)}, restore.ErrTooEarly},
		{"position-before-the-base", restore.Target{LSN: first.Start}, restore.ErrTooEarly},
		{"future", restore.Target{Time: time.Now().Add(time.Hour)}, restore.ErrTooLate},
		{"future-position", restore.Target{LSN: l.now() + 1<<30}, restore.ErrTooLate},
		{"unknown-name", restore.Target{Name: "nothing"}, restore.ErrUnknown},
		{"unknown-transaction", restore.Target{XID: id + 1000}, restore.ErrUnknown},
		{"variant", restore.Target{Variant: "other"}, restore.ErrVariant},
	} {
		t.Run(one.name, func(t *testing.T) {
			if _, err := restore.Find(t.Context(), l.archive, one.target); !errors.Is(err, one.want) {
				t.Errorf("Find = %v, want %v", err, one.want)
			}
		})
	}
}

// A base backup of files that were cloned while the server runs is restored like one that was streamed, with 100 MiB of
// log. The test reports how long it takes.
func TestCloneAndMuchLog(t *testing.T) {
	l := newLab(t)
	l.server.Exec("create table a (b int, c text)")
	l.flush()
	conn := l.server.Connect()
	exec := func(sql string) [][]byte {
		t.Helper()
		results, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		return results[0].Rows[0]
	}
	exec("select pg_backup_start('clone', true)")
	clone := t.TempDir()
	if err := os.CopyFS(clone, os.DirFS(l.server.Data)); err != nil {
		t.Fatal(err)
	}
	stopped := exec("select lsn, labelfile from pg_backup_stop()")
	stop, err := wal.ParseLSN(string(stopped[0]))
	if err != nil {
		t.Fatal(err)
	}
	files := basebackup.Files{FS: os.DirFS(clone), Label: bytes.Clone(stopped[1]), Stop: stop}
	_, err = basebackup.Store(t.Context(), files, l.archive, basebackup.Options{
		Archived: func(ctx context.Context, _ wal.Timeline, at wal.LSN) error { return l.relay.Flush(ctx, at) },
	})
	if err != nil {
		t.Fatal(err)
	}
	began := l.now()
	for range 12 {
		l.server.Exec("insert into a select n, repeat(md5(n::text), 8) from generate_series(1, 30000) n")
	}
	at, size := l.now(), l.now()-began
	l.server.Exec("delete from a")
	l.flush()
	start := time.Now()
	s := l.restored(t, restore.Target{LSN: at})
	took := time.Since(start)
	if got := s.Value("select count(*) from a"); got != "360000" {
		t.Errorf("%s rows, want 360000", got)
	}
	t.Logf("restored %d MiB of log in %v", size>>20, took)
}
