//go:build e2e

package insight_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database/insight"
	"github.com/pandastack/pandastack/internal/guest/agent"
	"github.com/pandastack/pandastack/internal/guest/process"
	"github.com/pandastack/pandastack/test/pglab"
)

const id = api.DatabaseID("dbs1")

// lab is a real server on this machine, whose guest is this machine.
type lab struct {
	*pglab.Server
	guest *agent.Backend
}

func newLab(t *testing.T) *lab {
	l := &lab{
		Server: pglab.New(t, "shared_preload_libraries=pg_stat_statements", "log_min_duration_statement=100",
			"log_timezone=UTC", "track_io_timing=on"),
		guest: agent.New(agent.Config{Reaper: process.NewReaper(false)}),
	}
	t.Cleanup(l.guest.Close)
	l.Exec("CREATE DATABASE pandastack")
	return l
}

func (l *lab) Guest() guestapi.Guest { return l.guest }

func (l *lab) SQL(ctx context.Context, database string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(fmt.Sprintf("host=/none user=%s dbname=%s password='%s' sslmode=disable", pglab.User,
		database, pglab.Password))
	if err != nil {
		return nil, err
	}
	cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return l.Dial(ctx) }
	return pgx.ConnectConfig(ctx, cfg)
}

func (l *lab) service(asleep bool) *insight.Service {
	return insight.New(insight.Deps{
		Get: func(context.Context, auth.Principal, api.DatabaseID) (api.Database, error) {
			return api.Database{ID: id, CreatedAt: float64(time.Now().Add(-time.Hour).Unix())}, nil
		},
		Running: func(context.Context, auth.Principal, api.DatabaseID) (insight.Server, bool, error) {
			return l, !asleep, nil
		},
	})
}

// user opens a session of a user of the database.
func (l *lab) user(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := l.SQL(t.Context(), "pandastack")
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() { _ = conn.Close(ctx) }) // the server may be gone
	return conn
}

func exec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// logged starts a process in the guest that has the server's log as its output, when the log has a text.
func (l *lab) logged(t *testing.T, text string) {
	t.Helper()
	for deadline := time.After(time.Minute); !strings.Contains(l.Log(), text); {
		select {
		case <-deadline:
			t.Fatalf("the log has no %s:\n%s", text, l.Log())
		case <-time.After(5 * time.Millisecond):
		}
	}
	p, err := l.guest.Start(t.Context(), guestapi.ProcessSpec{
		Argv: []string{"sh", "-c", `printf '%s' "$1" >&2; exec sleep 600`, "sh", l.Log()}, Tag: "postgres",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		_ = l.guest.Signal(ctx, guestapi.ProcessRef{Tag: "postgres"}, 9, true) // it may have ended
		_ = p.Close()
	})
}

func TestStats(t *testing.T) {
	l := newLab(t)
	l.user(t)
	got, err := l.service(false).Stats(t.Context(), auth.Principal{}, id)
	if err != nil || !strings.HasPrefix(got.PostgresVersion, "16.") || got.DBSizeBytes < 1<<20 ||
		got.Connections != 1 || got.MaxConnections != 100 || got.CacheHitRatio <= 0 || got.CacheHitRatio > 1 ||
		got.UptimeSeconds < 0 || got.UptimeSeconds > 3601 {
		t.Errorf("got %+v, %v", got, err)
	}
	if got.DiskSizeBytes <= 0 || got.DiskUsedBytes <= 0 || got.DiskUsedBytes > got.DiskSizeBytes ||
		got.DiskAvailBytes < 0 || got.DiskUsedPct <= 0 || got.DiskUsedPct > 100 {
		t.Errorf("got the disk %+v", got)
	}
	for what, call := range map[string]func() error{
		"stats": func() error { _, err := l.service(true).Stats(t.Context(), auth.Principal{}, id); return err },
		"logs":  func() error { _, err := l.service(true).Logs(t.Context(), auth.Principal{}, id, 9); return err },
		"insights": func() error {
			_, err := l.service(true).Insights(t.Context(), auth.Principal{}, id, api.InsightQuery{})
			return err
		},
	} {
		if err := call(); api.CodeOf(err) != api.WrongState || !strings.Contains(err.Error(), "wake") {
			t.Errorf("%s of a database that sleeps: %v", what, err)
		}
	}
}

func TestLogs(t *testing.T) {
	l := newLab(t)
	if got, err := l.service(false).Logs(t.Context(), auth.Principal{}, id, 5); err != nil || got.Logs != "" {
		t.Errorf("without a log: %+v, %v", got, err)
	}
	conn := l.user(t)
	if _, err := conn.Exec(t.Context(), "SELECT nothing_like_this()"); err == nil {
		t.Fatal("a function that does not exist was called")
	}
	l.logged(t, "STATEMENT:  SELECT nothing_like_this()")
	got, err := l.service(false).Logs(t.Context(), auth.Principal{}, id, 3)
	if err != nil || strings.Count(got.Logs, "\n") != 3 || !strings.Contains(got.Logs, "nothing_like_this") {
		t.Errorf("got %q, %v; want the last 3 lines", got.Logs, err)
	}
}

func TestInsights(t *testing.T) {
	l := newLab(t)
	a, b := l.user(t), l.user(t)
	exec(t, a, "CREATE EXTENSION pg_stat_statements")
	exec(t, a, "CREATE TABLE wide AS SELECT i, repeat('x', 500) AS t FROM generate_series(1, 20000) i")
	exec(t, a, "ANALYZE wide")
	exec(t, a, "DELETE FROM wide WHERE i > 1000")
	exec(t, a, "ANALYZE wide")
	for range 50 {
		exec(t, a, "SELECT count(*) FROM wide WHERE i = 7")
	}
	exec(t, a, "SELECT pg_sleep(0.2), 'first'\n, 'second'")
	l.logged(t, ", 'second'")
	// What a user defines must not be called by the session of the superuser.
	exec(t, a, "CREATE FUNCTION public.concat_ws(text, text, text) RETURNS text LANGUAGE plpgsql "+ // a better match
		"AS 'BEGIN RAISE EXCEPTION $$called$$; END'")
	exec(t, a, "BEGIN")
	exec(t, a, "LOCK TABLE wide")
	waiting := make(chan error, 1)
	go func() {
		_, err := b.Exec(t.Context(), "SELECT count(*) FROM wide")
		waiting <- err
	}()
	var got api.DatabaseInsights
	for deadline := time.After(time.Minute); len(got.Locks) == 0; { // until b waits
		var err error
		got, err = l.service(false).Insights(t.Context(), auth.Principal{}, id, api.InsightQuery{Order: api.OrderCalls})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-deadline:
			t.Fatalf("no lock in %+v", got)
		default:
		}
	}
	pid := int(a.PgConn().PID())
	if k := got.Locks[0]; len(k.BlockedBy) != 1 || k.BlockedBy[0] != pid || k.Relation != "public.wide" ||
		k.Mode != "AccessShareLock" || !strings.Contains(k.Query, "count(*)") {
		t.Errorf("got the lock %+v, want one of wide that %d has", k, pid)
	}
	exec(t, a, "ROLLBACK")
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	if q := got.TopQueries[0]; q.Calls != 50 || q.Database != "pandastack" || q.Role != pglab.User || q.MeanMS <= 0 ||
		q.Rows != 50 || !strings.Contains(q.Query, "$1") || q.CacheHitRatio <= 0 {
		t.Errorf("got the query %+v", q)
	}
	if s := got.Connections; s.Total != 2 || s.Max != 100 || s.ByState["idle in transaction"] != 1 ||
		len(s.Sessions) != 2 {
		t.Errorf("got connections %+v", s)
	}
	if c := got.Cache; c.HitRatio <= 0 || c.HitRatio > 1 || c.SharedBuffers != 128<<20 {
		t.Errorf("got cache %+v", c)
	}
	if bl := got.Bloat[0]; bl.Table != "wide" || bl.LiveRows != 1000 || bl.BloatPct < 50 || bl.BloatPct > 100 ||
		bl.SizeBytes < 5<<20 || bl.AnalyzedAt == nil {
		t.Errorf("got bloat %+v", bl)
	}
	found := false
	for _, q := range got.SlowQueries {
		found = found || q.DurationMS >= 200 && q.At != nil && strings.HasSuffix(q.Query, "'first'\n, 'second'")
	}
	if !found {
		t.Errorf("got slow queries %+v", got.SlowQueries)
	}
	for _, order := range []string{"", api.OrderTotalTime, api.OrderMeanTime, api.OrderRows, api.OrderReads} {
		q := api.InsightQuery{Database: "postgres", Order: order, Limit: 1}
		one, err := l.service(false).Insights(t.Context(), auth.Principal{}, id, q)
		if err != nil || len(one.TopQueries) != 0 { // that database lacks the extension
			t.Errorf("by %q: %+v, %v", order, one, err)
		}
		q.Database = "pandastack"
		if one, err = l.service(false).Insights(t.Context(), auth.Principal{}, id, q); err != nil ||
			len(one.TopQueries) != 1 || len(one.Connections.Sessions) != 1 {
			t.Errorf("by %q: %+v, %v", order, one, err)
		}
	}
	_, err := l.service(false).Insights(t.Context(), auth.Principal{}, id, api.InsightQuery{Database: "none"})
	if api.CodeOf(err) != api.Unavailable && api.CodeOf(err) != api.NotFound {
		t.Errorf("a database that does not exist: %v", err)
	}
}
