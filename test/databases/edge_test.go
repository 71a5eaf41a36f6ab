//go:build e2e

package databases

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pandastack/pandastack/internal/ingress/pgedge"
	"github.com/pandastack/pandastack/internal/lib/budget"
	"github.com/pandastack/pandastack/test/pgclients"
)

const (
	suffix = "db.test"
	host   = "db1." + suffix
	// limit is how long a client may take on a busy machine.
	limit = 2 * time.Minute
)

// lab is an edge before a real server.
type lab struct {
	*database
	edge    *pgedge.Server
	port    uint16
	cert    tls.Certificate
	roots   *x509.CertPool
	caFile  string
	limiter *pgedge.Limiter

	mu     sync.Mutex
	events []pgedge.Event
}

func (l *lab) Endpoint(_ context.Context, id string) (pgedge.Endpoint, error) {
	if id != "db1" {
		return nil, pgedge.ErrNoEndpoint
	}
	return l.database, nil
}

func newLab(t testing.TB) *lab {
	t.Helper()
	l := &lab{
		database: newDatabase(t),
		limiter:  pgedge.NewLimiter(pgedge.Limits{DrainTimeout: time.Second, FreeFailures: 50}),
	}
	l.authority(t)
	var err error
	l.edge, err = pgedge.New(pgedge.Config{
		Suffix: suffix, TLS: &tls.Config{Certificates: []tls.Certificate{l.cert}}, Resolver: l,
		MockSecret: []byte("0123456789abcdef"), Limiter: l.limiter, Log: slog.New(slog.DiscardHandler),
		Buffers: budget.New(budget.Config{
			Name: "buffers", Total: 64 << 20, Levels: []budget.Level{{Name: "endpoint"}},
		}),
		Observe: func(e pgedge.Event) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.events = append(l.events, e)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.port = netip.MustParseAddrPort(listener.Addr().String()).Port()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- l.edge.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	return l
}

// authority makes a certificate for the endpoints, which signs itself.
func (l *lab) authority(t testing.TB) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, DNSNames: []string{"*." + suffix},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	l.cert = tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: leaf}
	l.roots = x509.NewCertPool()
	l.roots.AddCert(leaf)
	l.caFile = filepath.Join(t.TempDir(), "ca.pem")
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	if err := os.WriteFile(l.caFile, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// conninfo returns a connection string of libpq, with more parameters.
func (l *lab) conninfo(more ...string) string {
	return fmt.Sprintf("host=%s hostaddr=127.0.0.1 port=%d user=%s password='%s' dbname=%s sslmode=verify-full "+
		"sslrootcert=%s connect_timeout=60 %s",
		host, l.port, owner, password, owner, l.caFile, strings.Join(more, " "))
}

// run runs a client and returns what it printed.
func run(t testing.TB, env []string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Env = append(cmd.Env, "HOME="+t.TempDir(), "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// psql runs a statement.
func psql(t testing.TB, program []string, conninfo, sql string) (string, error) {
	t.Helper()
	return run(t, nil, append(program, "-X", "-At", "-v", "VERBOSITY=verbose", "-d", conninfo, "-c", sql)...)
}

// programs are the psql of two versions.
func programs(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{"17": pgclients.Psql(t, "psql")}
	if out, err := exec.CommandContext(t.Context(), "psql", "--version").Output(); err == nil {
		found[strings.Fields(strings.TrimPrefix(string(out), "psql (PostgreSQL) "))[0]] = []string{"psql"}
	} else {
		t.Log("probe psql: this host has no psql of its own, so only version 17 runs")
	}
	return found
}

func TestPsql(t *testing.T) {
	l := newLab(t)
	l.Exec(`SET password_encryption = 'scram-sha-256'; CREATE ROLE made_in_sql LOGIN PASSWORD 'sql'`)
	for version, program := range programs(t) {
		t.Run(version, func(t *testing.T) {
			modern := version == "17"
			for _, test := range []struct {
				name, more, want string
				fails, modern    bool
			}{
				{name: "plain", want: "1"},
				{name: "pooler", more: "host=db1-pooler." + suffix, want: "1"},
				{name: "channel-binding", more: "channel_binding=require", want: "1"},
				{name: "no-channel-binding", more: "channel_binding=disable", want: "1"},
				{name: "option", more: "sslmode=require sslsni=0 options=endpoint%3Ddb1", want: "1"},
				{name: "option-setting", want: "1",
					more: `sslmode=require sslsni=0 options='-c endpoint=db1 -c work_mem=5MB'`},
				{name: "replication", more: "replication=database", want: "1"},
				{name: "direct-tls", more: "sslnegotiation=direct", want: "1", modern: true},
				{name: "made-in-sql", more: "user=made_in_sql password=sql", want: "1"},
				{name: "wrong-password", more: "password=wrong", fails: true,
					want: `FATAL:  password authentication failed for user "pandastack"`},
				{name: "wrong-password-in-sql", more: "user=made_in_sql password=wrong", fails: true,
					want: `FATAL:  password authentication failed for user "made_in_sql"`},
				{name: "unknown-name", more: "host=db2." + suffix, fails: true,
					want: `FATAL:  password authentication failed for user "pandastack"`},
				{name: "plain-tcp", more: "sslmode=disable", fails: true, want: "this server requires TLS"},
				{name: "no-name", more: "sslmode=require sslsni=0", fails: true,
					want: "FATAL:  the connection does not name a database"},
				{name: "no-replica", more: "host=db1-ro." + suffix, fails: true,
					want: "FATAL:  the database has no read-only server"},
				{name: "no-such-database", more: "dbname=none", fails: true,
					want: `database "none" does not exist`},
			} {
				if test.modern && !modern {
					continue
				}
				t.Run(test.name, func(t *testing.T) {
					got, err := psql(t, program, l.conninfo(test.more), "select 1")
					if (err != nil) != test.fails || !strings.Contains(got, test.want) ||
						!test.fails && got != test.want {
						t.Errorf("psql printed %q, %v, want %q", got, err, test.want)
					}
				})
			}
		})
	}
}

// A sleeping server is started by a login, and not by anything less.
func TestWake(t *testing.T) {
	l := newLab(t)
	l.sleep()
	program := pgclients.Psql(t, "psql")
	for _, more := range []string{"password=wrong", "user=made_in_sql", "sslmode=disable", "host=db2." + suffix} {
		if got, err := psql(t, program, l.conninfo(more), "select 1"); err == nil {
			t.Errorf("%s: psql printed %q", more, got)
		}
	}
	if n, _ := l.counts(); n != 0 {
		t.Fatalf("the server was woken %d times without a login", n)
	}
	if got, err := psql(t, program, l.conninfo("channel_binding=require"), "select 1"); err != nil || got != "1" {
		t.Fatalf("psql printed %q, %v", got, err)
	}
	if n, _ := l.counts(); n != 1 {
		t.Errorf("the server was woken %d times, want once", n)
	}
}

// pgbench with simple, extended and prepared queries, and with a connection for each transaction.
func TestPgbench(t *testing.T) {
	if _, err := exec.LookPath("pgbench"); err != nil {
		t.Skip("probe pgbench: it is not installed on this host")
	}
	l := newLab(t)
	for _, args := range [][]string{
		{"-i", "-q", "-s", "1"},
		{"-c", "4", "-j", "2", "-t", "50", "-M", "prepared"},
		{"-c", "2", "-t", "20", "-M", "extended", "-S"},
		{"-c", "2", "-t", "5", "-C"},
	} {
		command := append([]string{"pgbench"}, args...)
		if got, err := run(t, nil, append(command, l.conninfo())...); err != nil {
			t.Fatalf("pgbench %v: %v\n%s", args, err, got)
		}
	}
}

// pg_dump and pg_restore of another version than the server's.
func TestDump(t *testing.T) {
	l := newLab(t)
	program := pgclients.Psql(t, "psql")
	const fill = "create table rows as select n, repeat('x', 100) as body from generate_series(1, 100000) n"
	if got, err := psql(t, program, l.conninfo(), fill); err != nil {
		t.Fatalf("%v\n%s", err, got)
	}
	dump := filepath.Join(t.TempDir(), "dump")
	command := append(pgclients.Psql(t, "pg_dump"), "-Fc", "-f", dump, "-d", l.conninfo())
	if got, err := run(t, nil, command...); err != nil {
		t.Fatalf("pg_dump: %v\n%s", err, got)
	}
	if got, err := psql(t, program, l.conninfo(), "create database restored"); err != nil {
		t.Fatalf("create database: %v\n%s", err, got)
	}
	to := l.conninfo("dbname=restored")
	// The server is older than the programs and does not know a setting of theirs; they say so and go on.
	got, _ := run(t, nil, append(pgclients.Psql(t, "pg_restore"), "-j", "2", "-d", to, dump)...)
	for line := range strings.Lines(got) {
		if strings.Contains(line, "ERROR") && !strings.Contains(line, "transaction_timeout") {
			t.Fatalf("pg_restore: %s", got)
		}
	}
	if got, err := psql(t, program, to, "select count(*) from rows"); err != nil || got != "100000" {
		t.Errorf("restored %q rows, %v, want 100000", got, err)
	}
}

// config returns the configuration of pgx.
func (l *lab) config(t testing.TB, more string) *pgx.ConnConfig {
	t.Helper()
	cfg, err := pgx.ParseConfig(fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s sslmode=verify-full "+
		"sslrootcert=%s %s", host, l.port, owner, password, owner, l.caFile, more))
	if err != nil {
		t.Fatal(err)
	}
	cfg.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	return cfg
}

func TestPgx(t *testing.T) {
	l := newLab(t)
	ctx := t.Context()
	conn, err := pgx.ConnectConfig(ctx, l.config(t, "channel_binding=require"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	for i := range 10 { // the second and further use a prepared statement
		var got int
		if err := conn.QueryRow(ctx, "select $1::int * 2", i).Scan(&got); err != nil || got != 2*i {
			t.Fatalf("got %d, %v", got, err)
		}
	}
	batch := &pgx.Batch{}
	for i := range 100 {
		batch.Queue("select $1::text || 'x'", fmt.Sprint(i))
	}
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "create table copied (id int, body text)"); err != nil {
		t.Fatal(err)
	}
	n, err := conn.CopyFrom(ctx, pgx.Identifier{"copied"}, []string{"id", "body"},
		pgx.CopyFromSlice(20_000, func(i int) ([]any, error) { return []any{i, strings.Repeat("x", 100)}, nil }))
	if err != nil || n != 20_000 {
		t.Fatalf("copied %d rows, %v", n, err)
	}
	var length int
	if err := conn.QueryRow(ctx, "select length($1)", strings.Repeat("x", 100<<20)).Scan(&length); err != nil ||
		length != 100<<20 {
		t.Errorf("a query of 100 MB: %d, %v", length, err)
	}
	if _, err := conn.Exec(ctx, "listen news"); err != nil {
		t.Fatal(err)
	}
	other, err := pgx.ConnectConfig(ctx, l.config(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(ctx)
	if _, err := other.Exec(ctx, "notify news, 'hello'"); err != nil {
		t.Fatal(err)
	}
	if note, err := conn.WaitForNotification(ctx); err != nil || note.Payload != "hello" {
		t.Errorf("notification %v, %v", note, err)
	}
}

// A client cancels what its own session does; psql 15 and pgx send the request without TLS, libpq 17 with it.
func TestCancel(t *testing.T) {
	l := newLab(t)
	conn, err := pgx.ConnectConfig(t.Context(), l.config(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "select pg_sleep(1000)")
		result <- err
	}()
	l.until(t, "the query runs", func() bool { return l.edge.Activity("db1").Busy == 1 })
	// The session's backend may not have begun yet, and then ignores the request: a client would ask again.
	for done := false; !done; {
		if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case err = <-result:
			done = true
		case <-time.After(100 * time.Millisecond):
		}
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "57014" {
		t.Errorf("the query ended with %v, want SQLSTATE 57014", err)
	}
}

// A backend that is killed in the middle of a query, and a server that crashes.
func TestBackendDies(t *testing.T) {
	l := newLab(t)
	for name, kill := range map[string]func(){
		"terminated": func() {
			l.Exec(`select pg_terminate_backend(pid) from pg_stat_activity where query like 'select pg_sleep%'`)
		},
		"crashed": l.sleep,
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := pgx.ConnectConfig(t.Context(), l.config(t, ""))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			result := make(chan error, 1)
			go func() {
				_, err := conn.Exec(t.Context(), "select pg_sleep(1000)")
				result <- err
			}()
			for done := false; !done; {
				select {
				case err = <-result:
					done = true
				case <-time.After(100 * time.Millisecond): // until the server has begun
					if l.edge.Activity("db1").Busy == 1 {
						kill()
					}
				}
			}
			e, ok := errors.AsType[*pgconn.PgError](err)
			if !ok || e.Code != "57P01" && e.Code != "57P02" && e.Code != "08006" {
				t.Errorf("the query ended with %v, want SQLSTATE 57P01, 57P02 or 08006", err)
			}
		})
	}
}

// until waits for a condition.
func (l *lab) until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(limit)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("timed out: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

// Clients of Python: psycopg 3 with the libpq of PostgreSQL 18, and SQLAlchemy over it.
func TestPython(t *testing.T) {
	l := newLab(t)
	out, err := run(t, []string{"PYTHONPATH=" + pgclients.Python(t), "PYTHONDONTWRITEBYTECODE=1"},
		"python3", "clients.py", l.conninfo(), l.caFile)
	operations(t, out, err, 14)
}

// The client of Node: pg.
func TestNode(t *testing.T) {
	l := newLab(t)
	dir := pgclients.Node(t)
	script := place(t, dir, "pg.mjs")
	out, err := run(t, nil, "node", script, host, fmt.Sprint(l.port), owner, password, l.caFile)
	operations(t, out, err, 6)
}

// place copies a script to where node finds the packages, and returns its path.
func place(t *testing.T, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// operations checks that a script printed "ok NAME" for as many operations as it has, and nothing that failed.
func operations(t *testing.T, out string, err error, want int) {
	t.Helper()
	n := 0
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "ok "); ok {
			n++
			t.Logf("passes: %s", name)
		}
	}
	if err != nil || n != want {
		t.Errorf("%d of %d operations passed: %v\n%s", n, want, err, out)
	}
}

// Sessions and uses end with their clients, and the edge holds no memory of a query that passed.
func TestNothingIsLeft(t *testing.T) {
	l := newLab(t)
	var clients sync.WaitGroup
	for range 20 {
		clients.Go(func() {
			conn, err := pgx.ConnectConfig(t.Context(), l.config(t, ""))
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = conn.Exec(t.Context(), "select repeat('x', 1000000)")
			_ = conn.PgConn().Conn().Close() // without a word
		})
	}
	clients.Wait()
	l.until(t, "all sessions end", func() bool {
		_, uses := l.counts()
		return uses == 0 && l.edge.Activity("db1").Sessions == 0
	})
	if used := l.limiter.Pool().Used(); used != 0 {
		t.Errorf("%d connections are still counted as not authenticated", used)
	}
}

// BenchmarkSelect measures "select 1" on one connection, directly and through the edge.
func BenchmarkSelect(b *testing.B) {
	l := newLab(b)
	direct, err := pgx.ParseConfig(fmt.Sprintf("host=%s user=%s password='%s' dbname=%s",
		filepath.Dir(l.Socket()), owner, password, owner))
	if err != nil {
		b.Fatal(err)
	}
	for name, cfg := range map[string]*pgx.ConnConfig{"direct": direct, "edge": l.config(b, "")} {
		b.Run(name, func(b *testing.B) {
			conn, err := pgx.ConnectConfig(b.Context(), cfg)
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close(b.Context())
			var times []time.Duration
			for b.Loop() {
				began := time.Now()
				var one int
				if err := conn.QueryRow(b.Context(), "select 1").Scan(&one); err != nil {
					b.Fatal(err)
				}
				times = append(times, time.Since(began))
			}
			sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
			b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
		})
	}
}
