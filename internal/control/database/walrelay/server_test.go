//go:build e2e

package walrelay_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/basebackup"
	"github.com/pandastack/pandastack/internal/control/database/replication"
	"github.com/pandastack/pandastack/internal/control/database/restore"
	"github.com/pandastack/pandastack/internal/control/database/wal"
	"github.com/pandastack/pandastack/internal/control/database/walrelay"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/keyring"
	"github.com/pandastack/pandastack/test/pglab"
)

func openArchive(t *testing.T, dir string) *archive.Archive {
	t.Helper()
	store, err := blob.Open(t.Context(), "file://"+dir, blob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
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

func serverConfig(s *pglab.Server) replication.Config {
	return replication.Config{Dial: s.Dial, User: pglab.User, Password: pglab.Password}
}

// running is a relay that runs.
type running struct {
	*walrelay.Relay
	stop func() // ends it and waits
}

func startRelay(t *testing.T, s *pglab.Server, a *archive.Archive, dir string, synchronous ...bool) *running {
	t.Helper()
	return startRelayAs(t, walrelay.Config{
		Server: serverConfig(s), Archive: a, Dir: dir, Retry: 10 * time.Millisecond,
		Synchronous: slices.Contains(synchronous, true), Partial: 100 * time.Millisecond,
	})
}

// startRelayAs starts a relay with other settings.
func startRelayAs(t *testing.T, cfg walrelay.Config) *running {
	t.Helper()
	cfg.Slot, cfg.StopLimit, cfg.Log = "relay", time.Minute, slog.New(slog.NewTextHandler(t.Output(), nil))
	r, err := walrelay.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return &running{r, stop}
}

func flush(t *testing.T, s *pglab.Server, r *running) {
	t.Helper()
	at, err := wal.ParseLSN(s.Value("select pg_current_wal_flush_lsn()"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := r.Flush(ctx, at); err != nil {
		t.Fatalf("%v; status %+v", err, r.Status())
	}
}

func take(t *testing.T, s *pglab.Server, r *running, a *archive.Archive) archive.Base {
	t.Helper()
	b, err := basebackup.Take(t.Context(), serverConfig(s), a, basebackup.Options{
		Archived: func(ctx context.Context, _ wal.Timeline, at wal.LSN) error { return r.Flush(ctx, at) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// restored starts a server on the end of the log in the archive.
func restored(t *testing.T, a *archive.Archive) *pglab.Server {
	t.Helper()
	plan, err := restore.Find(t.Context(), a, restore.Target{})
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

// killRounds is how often TestKilledRelayAndServer kills; the soak asks for more.
var killRounds = flag.Int("walrelay.rounds", 6, "rounds of TestKilledRelayAndServer")

// clients is how many clients work at once.
const clients = 4

// client moves money and inserts numbers, in one transaction each, and keeps those whose commit was confirmed.
func client(ctx context.Context, s *pglab.Server, from int, confirmed *atomic.Int64) {
	conn, err := s.TryConnect(ctx)
	if err != nil {
		return
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for n := from; ctx.Err() == nil; n++ {
		sql := fmt.Sprintf("begin; update accounts set balance = balance + 1 where id = %d; "+
			"insert into a values (%d); commit", rand.IntN(1000), n)
		if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
			return
		}
		confirmed.Store(int64(n))
	}
}

// wantIntact checks every table and every B-tree index of a server.
func wantIntact(t *testing.T, s *pglab.Server) {
	t.Helper()
	s.Exec("create extension amcheck")
	if got := s.Value(`select count(*) from pg_class c, lateral verify_heapam(c.oid)
		where c.relkind in ('r', 't', 'm')`); got != "0" {
		t.Errorf("%s rows of tables are damaged", got)
	}
	if got := s.Value(`select count(bt_index_check(c.oid, true)) > 100 from pg_index i
		join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam
		where a.amname = 'btree' and i.indisvalid`); got != "t" {
		t.Errorf("more than 100 indexes were checked: %s", got)
	}
}

// startProcess runs a relay in a process of its own. The returned function kills it.
func startProcess(t *testing.T, s *pglab.Server, dir string) (kill func()) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0])
	cmd.Env = append(os.Environ(),
		fmt.Sprintf("PANDASTACK_TEST_RELAY_SERVER=%s %s %s/spool %s/store", s.Socket(), pglab.User, dir, dir),
		"PANDASTACK_TEST_RELAY_PASSWORD="+pglab.Password)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	kill = func() {
		once.Do(func() {
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()
		})
	}
	t.Cleanup(kill)
	return kill
}

// In synchronous mode, every confirmed commit is in the restored database, after kills of the server and of the relay
// at random moments, and a final loss of the server with its data. What is restored is intact.
func TestKilledRelayAndServer(t *testing.T) {
	s := pglab.New(t, "synchronous_standby_names=relay")
	dir := t.TempDir()
	a := openArchive(t, dir+"/store")
	r := startRelay(t, s, a, dir+"/spool")
	s.Exec("create table a (b int primary key); create table accounts (id int primary key, balance int); " +
		"insert into accounts select n, 0 from generate_series(0, 999) n")
	take(t, s, r, a)
	r.stop()
	kill := startProcess(t, s, dir)
	random := rand.New(rand.NewPCG(1, 2))
	rounds := *killRounds
	confirmed := make([][clients]atomic.Int64, rounds+1) // the last number of each round and client
	first := func(round, n int) int { return (round*clients + n) * 100_000 }
	for round := range rounds + 1 {
		// Every round has numbers of its own: a commit that was not confirmed may be there.
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for n := range clients {
			confirmed[round][n].Store(-1)
			group.Go(func() { client(ctx, s, first(round, n), &confirmed[round][n]) })
		}
		target := int64(first(round, 0) + 5 + random.IntN(100))
		waitUntil(t, fmt.Sprintf("round %d", round), func() bool { return confirmed[round][0].Load() >= target })
		server := round == rounds || round%2 == 0
		if server {
			s.Kill()
		} else {
			kill()
		}
		cancel()
		group.Wait()
		switch {
		case round == rounds: // the server is gone for good
		case server:
			s.Start()
		default:
			kill = startProcess(t, s, dir)
		}
	}
	kill()
	startRelay(t, s, a, dir+"/spool").stop() // which brings the spool to the archive
	copied := restored(t, a)
	commits := 0
	for round := range rounds + 1 {
		for n := range clients {
			from, to := first(round, n), int(confirmed[round][n].Load())
			if to < from {
				continue
			}
			sql := fmt.Sprintf("select count(*) from a where b between %d and %d", from, to)
			if got, want := number(t, copied.Value(sql)), to-from+1; got != want {
				t.Errorf("restored: %d of %d confirmed rows of client %d in round %d", got, want, n, round)
			}
			commits += to - from + 1
		}
	}
	t.Logf("%d confirmed commits, %d kills", commits, rounds+1)
	wantIntact(t, copied)
	if v, err := a.Scrub(t.Context(), archive.Scrub{Share: 1}); err != nil || !v.Intact() {
		t.Errorf("Scrub = %+v, %v", v, err)
	}
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// waitUntil waits for a condition that another goroutine brings about.
func waitUntil(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	limit := time.After(3 * time.Minute)
	for !ok() {
		select {
		case <-ticker.C:
		case <-limit:
			t.Fatalf("timeout: %s", what)
		}
	}
}

// After a promotion the relay follows the server to its new timeline, and the archive restores it.
func TestPromotion(t *testing.T) {
	s := pglab.New(t)
	dir := t.TempDir()
	a := openArchive(t, dir+"/store")
	r := startRelay(t, s, a, dir+"/spool")
	s.Exec("create table a (b int); insert into a values (1)")
	take(t, s, r, a)
	s.Exec("insert into a values (2)")
	flush(t, s, r)
	r.stop()
	s.Kill()
	next := restored(t, a) // a failover: another server continues the same database
	next.Exec("insert into a values (3)")
	r = startRelay(t, next, a, dir+"/spool")
	flush(t, next, r)
	if got := r.Status().Timeline; got != 2 {
		t.Errorf("timeline %v, want 2", got)
	}
	r.stop()
	next.Kill()
	if got := restored(t, a).Value("select sum(b) from a"); got != "6" {
		t.Errorf("sum after two restores = %s, want 6", got)
	}
}

// A slot that the server has given up is made again; the hole is reported, and a new base backup ends it.
func TestLostSlot(t *testing.T) {
	s := pglab.New(t, "max_slot_wal_keep_size=64MB", "min_wal_size=32MB", "max_wal_size=64MB")
	dir := t.TempDir()
	a := openArchive(t, dir+"/store")
	r := startRelay(t, s, a, dir+"/spool")
	s.Exec("create table a (b text); insert into a values ('first')")
	take(t, s, r, a)
	r.stop()
	for range 8 {
		s.Exec("insert into a values ('x'); select pg_switch_wal()")
	}
	s.Exec("checkpoint")
	if got := s.Value("select wal_status from pg_replication_slots"); got != "lost" {
		t.Fatalf("the slot is %s, want lost", got)
	}
	r = startRelay(t, s, a, dir+"/spool")
	waitUntil(t, "the hole", func() bool { return r.Status().Hole != nil })
	s.Exec("insert into a values ('last')")
	flush(t, s, r)
	c, err := a.Catalog(t.Context())
	if err != nil || len(c.Holes()) == 0 {
		t.Errorf("holes %v, %v; want one", c.Holes(), err)
	}
	if _, err := restore.Find(t.Context(), a, restore.Target{}); !errors.Is(err, restore.ErrHole) {
		t.Errorf("restore over the hole: got %v, want ErrHole", err)
	}
	take(t, s, r, a)
	if got := restored(t, a).Value("select count(*) from a where b = 'last'"); got != "1" {
		t.Errorf("%s rows after the hole, want 1", got)
	}
}

// commits counts the commits per second of several clients, over a number of commits.
func commits(t *testing.T, s *pglab.Server, total int) float64 {
	t.Helper()
	began := time.Now()
	var group sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(total))
	for n := range 4 {
		conn, err := s.TryConnect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			defer conn.Close(t.Context())
			for left.Add(-1) >= 0 {
				sql := fmt.Sprintf("begin; update accounts set balance = balance + 1 where id = %d; "+
					"insert into history values (%d, now()); commit", rand.IntN(10_000), n)
				if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	return float64(total) / time.Since(began).Seconds()
}

// The test reports what a relay with the settings of a node costs a server that waits for the disk. It asserts
// nothing of the time.
func TestOverhead(t *testing.T) {
	s := pglab.New(t, "fsync=on")
	dir := t.TempDir()
	a := openArchive(t, dir+"/store")
	s.Exec("create table accounts (id int primary key, balance int);" +
		"create table history (client int, at timestamptz);" +
		"insert into accounts select n, 0 from generate_series(0, 9999) n")
	const total = 1500
	commits(t, s, total)
	var without, with, sync float64
	for range 3 { // alternating, for other programs use the host
		without += commits(t, s, total)
		cfg := walrelay.Config{Server: serverConfig(s), Archive: a, Dir: dir + "/spool"}
		r := startRelayAs(t, cfg)
		flush(t, s, r)
		with += commits(t, s, total)
		r.stop()
		cfg.Synchronous = true
		r = startRelayAs(t, cfg)
		flush(t, s, r)
		s.Exec("alter system set synchronous_standby_names = relay")
		s.Exec("select pg_reload_conf()")
		sync += commits(t, s, total)
		s.Exec("alter system reset synchronous_standby_names")
		s.Exec("select pg_reload_conf()")
		r.stop()
	}
	t.Logf("commits per second: %.0f without a relay, %.0f with one (%.2f), %.0f synchronous (%.2f)", without/3, with/3,
		with/without, sync/3, sync/without)
	if got := number(t, s.Value("select count(*) from history")); got != 10*total {
		t.Errorf("%d commits, want %d", got, 10*total)
	}
}
