package audit_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/audit"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

func TestAudit(t *testing.T) {
	db, err := store.Open(t.Context(), store.Config{DSN: filepath.Join(t.TempDir(), "c.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	l, err := audit.New(audit.Config{}, db, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	alice := auth.Principal{Workspace: "alice", KeyPrefix: "pds_1", Admin: true}
	began := time.Now()
	for n := range 300 {
		l.Record(
			ctx,
			audit.Entry{
				Principal: alice,
				Action:    "create",
				Target:    fmt.Sprint("t", n),
				Outcome:   "ok",
				Took:      time.Millisecond,
			},
		)
	}
	l.Record(ctx, audit.Entry{Principal: auth.Principal{Workspace: "bob"}, Action: strings.Repeat("x", 1000) + "\x00"})
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	got, err := l.List(t.Context(), alice, audit.Query{Since: began.Add(-time.Second), Limit: 1000})
	if err != nil || len(got) != 300 || got[0].Target != "t299" || got[299].Target != "t0" ||
		got[0].Took != time.Millisecond ||
		got[0].Principal.KeyPrefix != "pds_1" {
		t.Errorf("List = %d entries, %v; want 300, newest first", len(got), err)
	}
	if got, err := l.List(t.Context(), alice, audit.Query{Target: "t7"}); err != nil || len(got) != 1 {
		t.Errorf("List of target t7 = %v, %v; want one entry", got, err)
	}
	if _, err := l.List(t.Context(), auth.Principal{Workspace: "alice"}, audit.Query{}); api.CodeOf(
		err,
	) != api.Forbidden {
		t.Errorf("List by a member: got %v, want forbidden", err)
	}
}

// open returns a log over a new store, and a function that runs it until all entries are written.
func open(t *testing.T, cfg audit.Config) (l *audit.Log, db *store.DB, flush func()) {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{DSN: filepath.Join(t.TempDir(), "c.db")})
	if err != nil {
		t.Fatal(err)
	}
	l, err = audit.New(cfg, db, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return l, db, func() {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := l.Run(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFloodIsBounded checks that a flood of one workspace, and of one address without a key, is cut, is counted, and
// hides neither other workspaces nor calls that were not refused.
func TestFloodIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, db, flush := open(t, audit.Config{Rate: 10})
		ctx := t.Context()
		noisy := auth.Principal{Workspace: "noisy", KeyPrefix: "pds_1", Admin: true, Operator: true}
		for n := range 3000 {
			l.Record(ctx, audit.Entry{Principal: noisy, Action: "refused", Outcome: "forbidden"})
			l.Record(ctx, audit.Entry{Action: "guess", Outcome: "unauthenticated", Remote: "192.0.2.1"})
			if n%1000 == 0 {
				flush()
			}
		}
		l.Record(ctx, audit.Entry{Principal: noisy, Action: "delete", Outcome: "ok"})
		l.Record(ctx, audit.Entry{Principal: auth.Principal{Workspace: "quiet"}, Action: "create", Outcome: "ok"})
		l.Record(ctx, audit.Entry{Action: "guess", Outcome: "unauthenticated", Remote: "192.0.2.2"})
		flush()
		all, err := l.List(ctx, noisy, audit.Query{All: true, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		count, dropped := map[string]int{}, 0
		for _, e := range all {
			count[e.Action+" "+e.Remote]++
			if e.Action == audit.ActionDropped {
				n, _ := strconv.Atoi(e.Target) // 0 fails the test below
				dropped += n
			}
		}
		if count["refused "] != 20 || count["guess 192.0.2.1"] != 2 || count["guess 192.0.2.2"] != 1 ||
			count["delete "] != 1 || count["create "] != 1 {
			t.Errorf("the log has %v; want 20 refused calls, 2 of the flood without a key, and the others", count)
		}
		if want := 6000 - 22; dropped != want || l.Dropped() != uint64(want) {
			t.Errorf("the log reports %d dropped entries and counts %d, want %d", dropped, l.Dropped(), want)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestUsesAreRecordedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, db, flush := open(t, audit.Config{})
		p := auth.Principal{Workspace: "w", Admin: true}
		for n := range 180 {
			e := audit.Entry{Principal: p, Action: "port 80", Outcome: "ok", Took: time.Duration(n)}
			l.RecordUse(t.Context(), e)
			<-time.After(time.Second)
		}
		flush()
		if all, err := l.List(t.Context(), p, audit.Query{}); err != nil || len(all) != 3 {
			t.Errorf("180 uses in three minutes made %d entries, %v; want 3", len(all), err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestEntriesArePruned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, db, _ := open(t, audit.Config{Retention: time.Hour, MaxEntries: 60})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		fill := func(workspace api.Workspace, n int) {
			for i := range n {
				l.Record(t.Context(), audit.Entry{
					Principal: auth.Principal{Workspace: workspace}, Action: "x", Target: fmt.Sprint(i), Outcome: "ok",
				})
			}
		}
		fill("old", 30)
		<-time.After(2 * time.Hour)
		fill("small", 10)
		fill("large", 90)
		<-time.After(11 * time.Minute)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for workspace, want := range map[api.Workspace]int{"old": 0, "small": 10, "large": 50} {
			p := auth.Principal{Workspace: workspace, Admin: true}
			all, err := l.List(t.Context(), p, audit.Query{Limit: 1000})
			if err != nil || len(all) != want || want > 0 && all[0].Target != map[api.Workspace]string{
				"small": "9", "large": "89",
			}[workspace] {
				t.Errorf("%s has %d entries, %v; want the newest %d", workspace, len(all), err, want)
			}
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestPages checks that pages in both directions have every entry once.
func TestPages(t *testing.T) {
	l, db, flush := open(t, audit.Config{})
	defer db.Close()
	p := auth.Principal{Workspace: "w", Admin: true}
	for n := range 25 {
		l.Record(t.Context(), audit.Entry{Principal: p, Action: "x", Target: fmt.Sprint(n), Outcome: "ok"})
	}
	l.Record(t.Context(), audit.Entry{Principal: auth.Principal{Workspace: "other"}, Action: "x", Outcome: "ok"})
	flush()
	for _, oldest := range []bool{false, true} {
		var got []string
		q := audit.Query{Limit: 10, OldestFirst: oldest}
		for {
			page, err := l.List(t.Context(), p, q)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page {
				got = append(got, e.Target)
			}
			if len(page) < q.Limit {
				break
			}
			q.After = page[len(page)-1].ID
		}
		if oldest {
			slices.Reverse(got)
		}
		if len(got) != 25 || got[0] != "24" || got[24] != "0" {
			t.Errorf("pages, oldest first %v: %v", oldest, got)
		}
	}
	if _, err := l.List(t.Context(), p, audit.Query{All: true}); api.CodeOf(err) != api.Forbidden {
		t.Errorf("all workspaces for an admin: %v, want forbidden", err)
	}
}
