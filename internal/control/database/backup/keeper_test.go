//go:build e2e

package backup_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/database/restore"
	"github.com/pandastack/pandastack/internal/control/database/walrelay"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
	"github.com/pandastack/pandastack/internal/lib/keyring"
	"github.com/pandastack/pandastack/test/pglab"
)

const id = "dbs1"

// lab is what keepers, one after the other, work with.
type lab struct {
	*testing.T
	server *pglab.Server
	dir    string
	db     *store.DB
	memory *blobtest.MemoryStore
	// trusted is set if the server asks for no password.
	trusted bool

	mu      sync.Mutex
	failing error            // of all writes to the object store; guarded by mu
	put     func(key string) // called before each; guarded by mu
}

func newLab(t *testing.T, settings ...string) *lab {
	l := &lab{T: t, server: pglab.New(t, settings...), dir: t.TempDir(), memory: blobtest.NewMemory()}
	var err error
	l.db, err = store.Open(t.Context(), store.Config{DSN: filepath.Join(l.dir, "store.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.db.Close(); err != nil {
			t.Error(err)
		}
	})
	err = l.db.Write(t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
		return tx.InsertDatabase(ctx, &store.Database{ID: id, Workspace: "wsp1", State: store.DatabaseReady})
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// flaky is the object store, whose writes can be made to fail.
type flaky struct {
	blob.Store
	l *lab
}

// Put implements blob.Store.
func (f flaky) Put(ctx context.Context, key string, r io.Reader, size int64) error {
	f.l.mu.Lock()
	err, put := f.l.failing, f.l.put
	f.l.mu.Unlock()
	if put != nil {
		put(key)
	}
	if err != nil {
		return err
	}
	return f.Store.Put(ctx, key, r, size)
}

func (l *lab) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failing = err
}

// keeper is one that runs.
type keeper struct {
	*backup.Keeper
	stop func()
}

// keep runs a keeper until the end of the test, or stop.
func (l *lab) keep(change func(*backup.Config)) keeper {
	l.Helper()
	ring, err := keyring.New(bytes.Repeat([]byte{1}, keyring.KeyBytes))
	if err != nil {
		l.Fatal(err)
	}
	cfg := backup.Config{
		Store: l.db, Blobs: flaky{l.memory, l}, Ring: ring, Dir: filepath.Join(l.dir, "spool"),
		Log: slog.New(slog.NewTextHandler(l.Output(), nil)), Interval: 20 * time.Millisecond,
		Partial: 50 * time.Millisecond,
	}
	if change != nil {
		change(&cfg)
	}
	k, err := backup.New(cfg)
	if err != nil {
		l.Fatal(err)
	}
	ctx, cancel := context.WithCancel(l.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			l.Error(err)
		}
	})
	l.Cleanup(stop)
	return keeper{k, stop}
}

func (l *lab) primary(synchronous bool) backup.Primary {
	p := backup.Primary{Database: id, Synchronous: synchronous, Dial: l.server.Dial}
	if !l.trusted {
		p.User, p.Password = pglab.User, pglab.Password
	}
	return p
}

func (l *lab) begin(k keeper, synchronous bool) {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.Context(), time.Minute)
	defer cancel()
	if err := k.Begin(ctx, l.primary(synchronous)); err != nil {
		l.Fatal(err)
	}
}

func (l *lab) flush(k keeper) {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.Context(), time.Minute)
	defer cancel()
	if err := k.Flush(ctx, id); err != nil {
		l.Fatal(err)
	}
}

// waitFor waits for a status.
func (l *lab) waitFor(k keeper, what string, ok func(backup.Status) bool) backup.Status {
	l.Helper()
	var s backup.Status
	l.wait(what, func() bool {
		var err error
		if s, err = k.Status(l.Context(), id); err != nil {
			l.Fatal(err)
		}
		return ok(s)
	})
	return s
}

// wait waits for a condition that another goroutine or process brings about.
func (l *lab) wait(what string, ok func() bool) {
	l.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	limit := time.After(2 * time.Minute)
	for !ok() {
		select {
		case <-ticker.C:
		case <-limit:
			l.Fatalf("timeout: %s", what)
		}
	}
}

// replaceable is a server whose data directory can be replaced.
type replaceable struct{ *pglab.Server }

// Replace implements backup.Server.
func (r replaceable) Replace(_ context.Context, write func(restore.Sink) error) error {
	if err := os.RemoveAll(r.Data); err != nil {
		return err
	}
	if err := os.Mkdir(r.Data, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(r.Data)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := write(restore.DirSink{Root: root}); err != nil {
		return err
	}
	r.Own()
	return r.TryStart()
}

// Check implements backup.Server.
func (replaceable) Check(context.Context) error { return nil }

// restored restores a target into a new server.
func (l *lab) restored(k keeper, target restore.Target) *pglab.Server {
	l.Helper()
	s := pglab.Empty(l)
	ctx, cancel := context.WithTimeout(l.Context(), 2*time.Minute)
	defer cancel()
	_, err := k.Restore(ctx, backup.RestoreRequest{
		From: id, Target: target, Into: replaceable{s}, User: pglab.User, Password: pglab.Password,
	})
	if err != nil {
		l.Fatal(err)
	}
	return s
}

func (l *lab) equal(s *pglab.Server, sql, want string) {
	l.Helper()
	if got := s.Value(sql); got != want {
		l.Errorf("%s: %s, want %s", sql, got, want)
	}
}

// The keeper backs up a database, continues in another process, restores its end and moments, and removes it.
func TestKeeper(t *testing.T) {
	l := newLab(t)
	k := l.keep(nil)
	l.begin(k, false)
	l.begin(k, false)
	l.waitFor(k, "the first base backup", func(s backup.Status) bool { return !s.Based.IsZero() })
	l.server.Exec("create table a (b int); insert into a values (1)")
	moment, err := time.Parse("2006-01-02 15:04:05.999999-07", l.server.Value("select clock_timestamp()::text"))
	if err != nil {
		t.Fatal(err)
	}
	l.server.Exec("insert into a values (2)")
	l.flush(k)
	k.stop()
	l.server.Exec("insert into a values (3)")
	k = l.keep(nil)
	if err := k.Flush(t.Context(), id); !errors.Is(err, backup.ErrNotRunning) {
		t.Errorf("Flush before Begin = %v, want ErrNotRunning", err)
	}
	l.begin(k, false)
	l.equal(l.restored(k, restore.Target{}), "select sum(b) from a", "6")
	copied := l.restored(k, restore.Target{Time: moment})
	l.equal(copied, "select sum(b) from a", "1")
	before, err := k.Status(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Take(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if after, err := k.Status(t.Context(), id); err != nil || !after.Based.After(before.Based) {
		t.Errorf("Status after Take = %+v, %v; want a base backup after %v", after, err, before.Based)
	}
	if c, err := k.Contents(t.Context(), id); err != nil || len(c.Windows) != 1 || c.Windows[0].ToTime.IsZero() {
		t.Errorf("Windows = %+v, %v; want one with its time", c.Windows, err)
	}
	for range 2 {
		if err := k.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	err = l.memory.List(t.Context(), "", func(i blob.Info) error { return fmt.Errorf("%s is left", i.Key) })
	if _, serr := os.Stat(filepath.Join(l.dir, "spool", id)); err != nil || !errors.Is(serr, os.ErrNotExist) {
		t.Errorf("after Remove: %v, spool %v; want nothing", err, serr)
	}
	if _, err := k.Status(t.Context(), id); !errors.Is(err, backup.ErrNotRunning) {
		t.Errorf("Status after Remove = %v, want ErrNotRunning", err)
	}
}

// trust makes the server ask for no password, as in a guest.
func (l *lab) trust() {
	l.Helper()
	hba := filepath.Join(l.server.Data, "pg_hba.conf")
	if err := os.WriteFile(hba, []byte("local all all trust\nlocal replication all trust\n"), 0o600); err != nil {
		l.Fatal(err)
	}
	l.server.Stop()
	l.server.Start()
	l.trusted = true
}

// A server that asks for no password, as in a guest, is backed up.
func TestWithoutPassword(t *testing.T) {
	l := newLab(t)
	l.trust()
	k := l.keep(nil)
	l.begin(k, true)
	l.waitFor(k, "a base backup", func(s backup.Status) bool { return !s.Based.IsZero() })
}

// In synchronous mode commits wait while the relay is away; they end when it is back, or when the mode is changed.
func TestSynchronous(t *testing.T) {
	l := newLab(t)
	k := l.keep(nil)
	l.begin(k, true)
	l.server.Exec("create table a (b int)")
	commit := func(n int) <-chan struct{} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			conn, err := l.server.TryConnect(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close(context.WithoutCancel(t.Context()))
			if _, err := conn.Exec(t.Context(), fmt.Sprintf("insert into a values (%d)", n)); err != nil {
				t.Error(err)
			}
		}()
		l.wait("the commit to wait", func() bool {
			return l.server.Value("select count(*) from pg_stat_activity where wait_event = 'SyncRep'") == "1"
		})
		select {
		case <-done:
			t.Error("the commit has not waited for the relay")
		default:
		}
		return done
	}
	if err := k.End(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	one := commit(1)
	l.begin(k, true)
	<-one
	if err := k.End(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	two := commit(2)
	l.begin(k, false)
	<-two
	l.equal(l.server, "select current_setting('synchronous_standby_names')", "")
	l.begin(k, true)
	l.equal(l.server, "select current_setting('synchronous_standby_names')", backup.SlotName(id))
}

// What a copy of another database's server has of its replication goes: its slots, and that commits wait for its relay.
func TestInherited(t *testing.T) {
	l := newLab(t, "wal_level=replica")
	other := backup.SlotName("dbs10")
	for _, name := range []string{other, backup.SlotName(id) + "_1", "of_the_user"} {
		l.server.Exec("select pg_create_physical_replication_slot('" + name + "')")
	}
	l.server.Exec("alter system set synchronous_standby_names = '" + other + "'")
	l.server.Exec("select pg_reload_conf()")
	k := l.keep(nil)
	l.begin(k, false)
	l.server.Exec("create table a (b int)") // does not wait
	l.equal(l.server, "select string_agg(slot_name, ' ' order by slot_name) from pg_replication_slots",
		"of_the_user pandastack_dbs1 pandastack_dbs1_1")
}

// What was confirmed in synchronous mode is restored although the server is gone and the object store did not take it.
func TestSpoolOfLostServer(t *testing.T) {
	l := newLab(t)
	k := l.keep(nil)
	l.begin(k, true)
	l.server.Exec("create table a (b int)")
	l.waitFor(k, "a base backup", func(s backup.Status) bool { return !s.Based.IsZero() })
	l.fail(blob.ErrDenied)
	l.server.Exec("insert into a select generate_series(1, 1000)")
	l.server.Kill()
	if err := os.RemoveAll(l.server.Data); err != nil {
		t.Fatal(err)
	}
	k.stop() // with the host's program
	l.fail(nil)
	k = l.keep(nil)
	l.equal(l.restored(k, restore.Target{}), "select count(*) from a", "1000")
}

// The same, while the relay still runs.
func TestLostServer(t *testing.T) {
	l := newLab(t)
	k := l.keep(nil)
	l.begin(k, true)
	l.server.Exec("create table a (b int)")
	l.waitFor(k, "a base backup", func(s backup.Status) bool { return !s.Based.IsZero() })
	l.server.Exec("insert into a select generate_series(1, 1000)")
	l.server.Kill()
	l.equal(l.restored(k, restore.Target{}), "select count(*) from a", "1000")
}

// A hole in the log leads to a base backup at once.
func TestHole(t *testing.T) {
	l := newLab(t, "min_wal_size=32MB", "max_wal_size=64MB")
	k := l.keep(func(c *backup.Config) { c.SlotMiB = 64 })
	l.begin(k, false)
	l.server.Exec("create table a (b text)")
	first := l.waitFor(k, "a base backup", func(s backup.Status) bool { return !s.Based.IsZero() }).Based
	if err := k.End(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		l.server.Exec("insert into a values ('x'); select pg_switch_wal()")
	}
	l.server.Exec("checkpoint")
	l.equal(l.server, "select wal_status from pg_replication_slots", "lost")
	l.begin(k, false)
	l.waitFor(k, "another base backup", func(s backup.Status) bool { return s.Based.After(first) })
	l.equal(l.restored(k, restore.Target{}), "select count(*) from a", "8")
}

// A base backup that is ordered while another one is taken is not forgotten.
func TestOrderedMeanwhile(t *testing.T) {
	l := newLab(t)
	k := l.keep(nil)
	l.begin(k, false)
	first := l.waitFor(k, "a base backup", func(s backup.Status) bool { return !s.Based.IsZero() }).Based
	order := sync.OnceFunc(func() { // as the keeper does for a hole
		err := l.db.Write(t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
			return tx.UpdateDatabaseBackups(ctx, &store.DatabaseBackups{Database: id, BaseDue: 1}, "base_due")
		})
		if err != nil {
			t.Error(err)
		}
	})
	l.mu.Lock()
	l.put = func(key string) {
		if strings.HasSuffix(key, "/meta") {
			order()
		}
	}
	l.mu.Unlock()
	b, err := k.Take(t.Context(), id)
	if err != nil || !b.Finished.After(first) {
		t.Fatalf("Take = %+v, %v", b, err)
	}
	l.waitFor(k, "the base backup that was ordered", func(s backup.Status) bool {
		return s.Based.After(b.Finished) && s.BaseDue.After(b.Finished)
	})
}

// A server with another log than before is not backed up, and the status and the error of Begin say so.
func TestDiverged(t *testing.T) {
	l := newLab(t)
	k := l.keep(nil)
	l.begin(k, false)
	l.flush(k)
	if err := k.End(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	l.server = pglab.New(t)
	err := k.Begin(t.Context(), l.primary(true))
	if err == nil || !strings.Contains(err.Error(), string(walrelay.Diverged)) {
		t.Errorf("Begin with another server = %v, want an error with %s", err, walrelay.Diverged)
	}
	s, err := k.Status(t.Context(), id)
	if err != nil || s.Relay.State != walrelay.Diverged || s.Relay.ConnectError == "" {
		t.Errorf("Status = %+v, %v; want %s with a reason", s, err, walrelay.Diverged)
	}
}

// Without a server, Begin says so, and starts nothing.
func TestNoServer(t *testing.T) {
	l := newLab(t)
	k := l.keep(nil)
	refused := errors.New("nothing listens")
	p := l.primary(true)
	p.Dial = func(context.Context) (net.Conn, error) { return nil, refused }
	if err := k.Begin(t.Context(), p); !errors.Is(err, refused) {
		t.Errorf("Begin without a server = %v, want %v", err, refused)
	}
	if _, err := k.Status(t.Context(), id); !errors.Is(err, backup.ErrNotRunning) {
		t.Errorf("Status = %v, want ErrNotRunning", err)
	}
}
