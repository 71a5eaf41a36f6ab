package insight

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

func TestSlowQueries(t *testing.T) {
	log := []string{
		"2026-01-02 03:04:05.678 UTC [77] LOG:  checkpoint starting: time",
		"2026-01-02 03:04:05.678 UTC [78] LOG:  duration: 1500.250 ms  statement: SELECT 1",
		"\tFROM a",
		"2026-01-02 03:04:06.000 UTC [78] ERROR:  relation \"b\" does not exist",
		"\tnot of a slow query",
		"2026-01-02 03:04:07.000 UTC [79] LOG:  duration: 2000 ms  execute <unnamed>: UPDATE t SET a = $1",
		"2026-01-02 03:04:07.000 UTC [79] DETAIL:  Parameters: $1 = '7'",
		"\tdetail",
		"forged LOG:  duration: x ms  statement: SELECT 2",
		"LOG:  duration: 3.5 ms  statement: " + strings.Repeat("é", slowBytes),
	}
	got := slowQueries(log, 10)
	if len(got) != 3 {
		t.Fatalf("got %+v, want 3 queries", got)
	}
	if q := got[2]; q.DurationMS != 1500.25 || q.Query != "SELECT 1\nFROM a" ||
		!q.At.Equal(time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)) {
		t.Errorf("the oldest: %+v", q)
	}
	if q := got[1]; q.DurationMS != 2000 || q.Query != "UPDATE t SET a = $1" {
		t.Errorf("a prepared statement: %+v", q)
	}
	if q := got[0]; q.At != nil || len(q.Query) > slowBytes || !strings.HasPrefix(q.Query, "éé") {
		t.Errorf("a long one without time: %d bytes at %v", len(q.Query), q.At)
	}
	if few := slowQueries(log, 1); len(few) != 1 || few[0] != got[0] {
		t.Errorf("got %+v, want the newest only", few)
	}
}

func FuzzSlowQueries(f *testing.F) {
	f.Add("2026-01-02 03:04:05.678 UTC [78] LOG:  duration: 1500.250 ms  statement: SELECT 1\n\tFROM a\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, q := range slowQueries(strings.Split(text, "\n"), 5) {
			if len(q.Query) > slowBytes || q.DurationMS < 0 {
				t.Errorf("got %+v", q)
			}
		}
	})
}

// machines are half busy, and read and write 10 and 20 bytes a second, unless they sleep.
type machines struct {
	mu     sync.Mutex
	began  time.Time
	pid    int
	asleep bool
	asked  map[api.SandboxID]int
}

func (m *machines) Usage(_ context.Context, p auth.Principal, id api.SandboxID) (api.Usage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked[id]++
	if p.Workspace != "ours" {
		return api.Usage{}, fmt.Errorf("no sandbox for %s", p.Workspace)
	}
	if m.asleep {
		return api.Usage{}, nil
	}
	up := time.Since(m.began).Seconds()
	return api.Usage{
		PID: m.pid, HostReadBytes: int64(10 * up), HostWrittenBytes: int64(20 * up),
		Guest: &api.GuestStats{
			CPUs: 2, CPUBusySeconds: up, UptimeSeconds: up, MemTotalBytes: 100, MemAvailableBytes: 40,
			NetRxBytes: int64(30 * up), NetTxBytes: int64(40 * up),
		},
	}, nil
}

func (m *machines) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machines{began: time.Now(), pid: 1, asked: map[api.SandboxID]int{}}
		ours := auth.Principal{Workspace: "ours"}
		targets := []Target{
			{"dbs1", "sbx1", ours}, {"dbs2", "sbx2", auth.Principal{Workspace: "gone"}},
		}
		r := NewRecorder(m, func(context.Context) ([]Target, error) { return targets, nil })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		find := func(_ context.Context, p auth.Principal, id api.DatabaseID) (api.Database, error) {
			if p.Workspace != "ours" {
				return api.Database{}, api.Errorf(api.NotFound, "no database %s", id)
			}
			return api.Database{ID: id}, nil
		}
		s := New(Deps{Recorder: r, Get: find})
		pass := func(d time.Duration) {
			<-time.After(d)
			synctest.Wait()
		}
		read := func(span, bucket string) api.DatabaseMetrics {
			t.Helper()
			got, err := s.Metrics(t.Context(), ours, "dbs1", span, bucket)
			if err != nil || got.Empty != (len(got.Points) == 0) || got.To.Sub(got.From) < time.Hour {
				t.Fatalf("%s in %s: %+v, %v", span, bucket, got, err)
			}
			return got
		}
		if got := read("", ""); !got.Empty || got.Range != "1h" || got.Bucket != "15s" || got.BucketSeconds != 15 {
			t.Errorf("before the first sample: %+v", got)
		}
		pass(2 * time.Hour)
		hour := read("1h", "1m")
		if n := len(hour.Points); n < 59 || n > 62 {
			t.Errorf("got %d points of an hour, want one for each minute", n)
		}
		p := hour.Points[30]
		if p.CPUPct != 50 || p.MemBytes != 60 || p.NetRxBytes != 1800 || p.NetTxBytes != 2400 || p.DiskRead != 600 ||
			p.DiskWrite != 1200 {
			t.Errorf("got %+v for a minute", p)
		}
		if n := len(read("24h", "").Points); n < 24 || n > 25 {
			t.Errorf("got %d points of two hours in steps of five minutes", n)
		}
		// A server that sleeps adds nothing, and one that was started again begins again.
		m.change(func() { m.asleep = true })
		pass(30 * time.Minute)
		m.change(func() { m.asleep, m.pid, m.began = false, 2, time.Now() })
		pass(10 * time.Minute)
		all := read("1h", "15s").Points
		if n := len(all); n < 118 || n > 122 {
			t.Errorf("got %d points of thirty minutes awake, want 120", n)
		}
		for _, p := range all {
			if p.DiskRead > 150 || p.CPUPct > 51 {
				t.Errorf("a gap was counted as use: %+v", p)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		from := time.Now().UTC()
		pass(45 * 24 * time.Hour)
		for at := from; !at.After(time.Now()); at = at.Add(5 * time.Minute) {
			up := at.Sub(m.began).Seconds()
			r.add(targets[0], at, api.Usage{PID: 2, Guest: &api.GuestStats{CPUs: 1, UptimeSeconds: up}})
		}
		for i, sp := range spans {
			if n, most := len(r.series["dbs1"].points[i]), int(sp.length/sp.step)+2; n > most {
				t.Errorf("%s: %d points are kept, at most %d are wanted", sp.name, n, most)
			}
		}
		if n := len(read("30d", "").Points); n < 359 || n > 361 {
			t.Errorf("got %d points of a month, want 360", n)
		}
		for _, wrong := range [][3]string{{"2h", "", "range"}, {"7d", "15s", "bucket"}, {"1h", "1y", "bucket"}} {
			_, err := s.Metrics(t.Context(), ours, "dbs1", wrong[0], wrong[1])
			if e := api.AsError(err); e.Code != api.Invalid || e.Details["field"] != wrong[2] {
				t.Errorf("%v: %v", wrong, err)
			}
		}
		_, err := s.Metrics(t.Context(), auth.Principal{Workspace: "theirs"}, "dbs1", "", "")
		if api.CodeOf(err) != api.NotFound {
			t.Errorf("a stranger: %v", err)
		}
		if r.keep(targets[1:]); len(r.series) != 1 || r.series["dbs1"] != nil {
			t.Errorf("%d databases are kept after their end", len(r.series))
		}
	})
}

// What a user may not see of an error can be cut off; what the user's own server says stays.
func TestFailures(t *testing.T) {
	const path = "/var/lib/pandastack/machines/sbx1/vsock"
	server := &pgconn.PgError{Code: "42501", Message: "permission denied for table t"}
	for _, one := range []struct {
		name, want string
		err        error
	}{
		{"host", "the server of the database did not answer", errors.New("dial unix " + path + ": refused")},
		{"lines", "the server of the database did not answer",
			errors.New("failed:\n\tdial unix " + path + ": refused")},
		{"long", "the server of the database did not answer", errors.New(strings.Repeat("x", 4096) + path)},
		{"unprintable", "the server of the database did not answer", errors.New(path + "\x1b[31m")},
		{"server", "the server of the database refused: permission denied for table t",
			fmt.Errorf("%s: %w", path, server)},
		{"database", "database: the server has none of this name: leave it out for pandastack",
			fmt.Errorf("%s: %w", path, &pgconn.PgError{Code: "3D000", Message: "database \"x\" does not exist"})},
	} {
		err := failed(t.Context(), one.err)
		if got := api.ForUsers(err).Message; got != one.want {
			t.Errorf("%s: %q, want %q", one.name, got, one.want)
		}
		if one.name != "database" && api.CodeOf(err) != api.Unavailable {
			t.Errorf("%s: %v has the code %s", one.name, err, api.CodeOf(err))
		}
	}
}
