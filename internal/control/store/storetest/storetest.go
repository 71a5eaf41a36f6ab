// Package storetest is what every engine of the store must pass.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/store"
)

// Run runs the suite. open gives an empty store, closed by the test it was opened for.
func Run(t *testing.T, open func(t *testing.T) *store.DB) {
	for name, f := range map[string]func(*testing.T, *store.DB){
		"sandbox": sandboxes, "filter": filters, "page": pages, "rollback": rollback, "writers": writers,
		"event": events, "appenders": appenders, "snapshot": snapshots, "key": keys, "idempotency": idempotency,
		"ending": tombstones,
		"port":   ports, "audit": audits, "template": templates, "build": builds, "job": jobs, "layer": layers,
		"setting": settings, "used": lastUses, "seen": lastSeen, "workspace": workspaces, "quota": quotas,
		"preview": previews, "lock": workspaceLock, "sums": sums, "upload": uploads,
		"database": databases, "database members": databaseMembers,
		"volume": volumes, "volume lease": volumeLeases, "volume snapshot": volumeSnapshots,
		"volume backup": volumeBackups,
		"schedule":      schedules, "schedule run": scheduleRuns,
	} {
		t.Run(name, func(t *testing.T) { f(t, open(t)) })
	}
}

func write(t *testing.T, db *store.DB, f func(ctx context.Context, tx *store.Tx) error) {
	t.Helper()
	if err := db.Write(t.Context(), "test", f); err != nil {
		t.Fatal(err)
	}
}

func sandbox(n int) *store.Sandbox {
	return &store.Sandbox{
		ID: fmt.Sprintf("sbx%03d", n), Workspace: "w1", State: "running", Template: "base", Phases: "[]", VCPUs: 2,
		MemoryMiB: 256, Env: store.Pairs{"A": "1"}, Metadata: store.Pairs{"n": fmt.Sprint(n),
			"odd": fmt.Sprint(n % 2), "text": "ä'\"\\ $1 ?"},
		Egress: true, Network: `{"allow_out":["a.example"]}`, DataDisks: `[{"name":"data"}]`,
		Persistent: n%2 == 0, Created: int64(1000 + n/2), Active: 5,
	}
}

func insert(t *testing.T, db *store.DB, rows ...*store.Sandbox) {
	t.Helper()
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		for _, s := range rows {
			if err := tx.InsertSandbox(ctx, s); err != nil {
				return err
			}
		}
		return nil
	})
}

func sandboxes(t *testing.T, db *store.DB) {
	ctx := t.Context()
	want := sandbox(1)
	insert(t, db, want)
	got, err := db.Read().Sandbox(ctx, want.ID)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(*want) {
		t.Fatalf("read %+v, %v; want %+v", got, err, *want)
	}
	if err := db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
		return tx.InsertSandbox(ctx,
			sandbox(1))
	}); !errors.Is(
		err,
		store.ErrExists,
	) {
		t.Errorf("inserted twice: %v, want ErrExists", err)
	}
	got.State, got.Template = "paused", "other"
	write(
		t,
		db,
		func(ctx context.Context, tx *store.Tx) error { return tx.UpdateSandbox(ctx, &got, "running", "state") },
	)
	if now, err := db.Read().Sandbox(ctx, want.ID); err != nil || now.State != "paused" || now.Template != "base" {
		t.Errorf("after an update of state: %q, %q, %v", now.State, now.Template, err)
	}
	err = db.Write(
		ctx,
		"test",
		func(ctx context.Context, tx *store.Tx) error { return tx.UpdateSandbox(ctx, &got, "running") },
	)
	if !errors.Is(err, store.ErrNotFound) {
		t.Errorf("update from a state it is not in: %v, want ErrNotFound", err)
	}
	for range 2 {
		write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.DeleteSandbox(ctx, want.ID) })
	}
	if _, err := db.Read().Sandbox(ctx, want.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("read of a deleted row: %v, want ErrNotFound", err)
	}
	insert(t, db, want) // its labels are gone as well
}

func ids(rows []store.Sandbox) (all []string) {
	for _, r := range rows {
		all = append(all, r.ID)
	}
	return all
}

func filters(t *testing.T, db *store.DB) {
	for n := range 6 {
		s := sandbox(n)
		switch n {
		case 0:
			s.State, s.Due = "hibernated", 50
		case 1:
			s.Workspace, s.Tree = "w2", "tre1"
		case 2:
			s.Template, s.Due = "other", 70
		}
		insert(t, db, s)
	}
	rows := []struct {
		name string
		q    store.SandboxQuery
		want []string
	}{
		{"all", store.SandboxQuery{}, []string{"sbx005", "sbx004", "sbx003", "sbx002", "sbx001", "sbx000"}},
		{"workspace", store.SandboxQuery{Workspace: "w2"}, []string{"sbx001"}},
		{"states", store.SandboxQuery{States: []string{"hibernated", "paused"}}, []string{"sbx000"}},
		{"template", store.SandboxQuery{Template: "other"}, []string{"sbx002"}},
		{"tree", store.SandboxQuery{Tree: "tre1"}, []string{"sbx001"}},
		{"metadata", store.SandboxQuery{Metadata: map[string]string{"odd": "1", "n": "3"}}, []string{"sbx003"}},
		{
			"quoted",
			store.SandboxQuery{Metadata: map[string]string{"text": "ä'\"\\ $1 ?"}, Limit: 1},
			[]string{"sbx005"},
		},
		{"none", store.SandboxQuery{Metadata: map[string]string{"odd": "1' OR '1'='1"}}, nil},
		{"due", store.SandboxQuery{DueBy: 60}, []string{"sbx000"}},
	}
	for _, r := range rows {
		got, err := db.Read().Sandboxes(t.Context(), r.q)
		if err != nil || !slices.Equal(ids(got), r.want) {
			t.Errorf("%s: got %v, %v; want %v", r.name, ids(got), err, r.want)
		}
	}
	counts, err := db.Read().CountStates(t.Context())
	if err != nil || counts["running"] != 5 || counts["hibernated"] != 1 {
		t.Errorf("counts %v, %v", counts, err)
	}
}

func pages(t *testing.T, db *store.DB) {
	for n := range 7 {
		insert(t, db, sandbox(n))
	}
	var got []string
	q := store.SandboxQuery{Workspace: "w1", Limit: 2}
	for {
		rows, err := db.Read().Sandboxes(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) == 0 {
			break
		}
		got = append(got, ids(rows)...)
		last := rows[len(rows)-1]
		q.BeforeCreated, q.BeforeID = last.Created, last.ID
	}
	if want := []string{"sbx006", "sbx005", "sbx004", "sbx003", "sbx002", "sbx001", "sbx000"}; !slices.Equal(
		got,
		want,
	) {
		t.Errorf("pages give %v, want %v", got, want)
	}
	rows, err := db.Read().
		Sandboxes(t.Context(), store.SandboxQuery{Oldest: true, Since: sandbox(2).Created,
			BeforeCreated: sandbox(3).Created, BeforeID: "sbx003"})
	if want := []string{"sbx004", "sbx005", "sbx006"}; err != nil || !slices.Equal(ids(rows), want) {
		t.Errorf("oldest first behind the fourth: %v, %v, want %v", ids(rows), err, want)
	}
	if rows, err = db.Read().Sandboxes(t.Context(), store.SandboxQuery{Since: sandbox(5).Created}); err != nil ||
		len(rows) != 3 { // two were made at once
		t.Errorf("since the fifth and sixth: %v, %v", ids(rows), err)
	}
}

func rollback(t *testing.T, db *store.DB) {
	boom := errors.New("boom")
	err := db.Write(t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.InsertSandbox(ctx, sandbox(1)); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Errorf("error %v, want boom", err)
	}
	if _, err := db.Read().Sandbox(t.Context(), "sbx001"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a failed transaction left a row: %v", err)
	}
}

func writers(t *testing.T, db *store.DB) {
	var wg sync.WaitGroup
	for n := range 40 {
		wg.Go(func() {
			err := db.Write(
				t.Context(),
				"test",
				func(ctx context.Context, tx *store.Tx) error { return tx.InsertSandbox(ctx, sandbox(n)) },
			)
			if err != nil {
				t.Error(err)
			}
			if _, err := db.Read().Sandboxes(t.Context(), store.SandboxQuery{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got, err := db.Read().Sandboxes(t.Context(), store.SandboxQuery{}); err != nil || len(got) != 40 {
		t.Errorf("%d rows, %v; want 40", len(got), err)
	}
}

func events(t *testing.T, db *store.DB) {
	for n := range 5 {
		for _, id := range []string{"a", "b"} {
			write(t, db, func(ctx context.Context, tx *store.Tx) error {
				return tx.AppendEvent(
					ctx,
					&store.Event{Sandbox: id, Workspace: "w", At: int64(n), Type: fmt.Sprint(n), Payload: "{}"},
				)
			})
		}
	}
	check := func(after int64, limit int, want string) {
		t.Helper()
		rows, err := db.Read().Events(t.Context(), "a", after, limit)
		got := ""
		for _, r := range rows {
			got += fmt.Sprintf("%d:%s ", r.Seq, r.Type)
		}
		if err != nil || got != want {
			t.Errorf("after %d limit %d: got %q, %v; want %q", after, limit, got, err, want)
		}
	}
	check(0, 0, "1:0 2:1 3:2 4:3 5:4 ")
	check(0, 2, "4:3 5:4 ")
	check(4, 0, "5:4 ")
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.TrimEvents(ctx, "a", 5, 2) })
	check(0, 0, "4:3 5:4 ")
}

// appenders: no event is lost or numbered twice when many come at once.
func appenders(t *testing.T, db *store.DB) {
	var wg sync.WaitGroup
	for n := range 20 {
		wg.Go(func() {
			err := db.Write(t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
				return tx.AppendEvent(ctx, &store.Event{Sandbox: "a", Type: fmt.Sprint(n), Payload: "{}"})
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	rows, err := db.Read().Events(t.Context(), "a", 0, 0)
	if err != nil || len(rows) != 20 || rows[19].Seq != 20 {
		t.Errorf("%d events, %v; want 20 numbered from 1", len(rows), err)
	}
}

func snapshots(t *testing.T, db *store.DB) {
	ctx := t.Context()
	for n := range 3 {
		s := &store.Snapshot{
			ID:        fmt.Sprint("snp", n),
			Workspace: "w",
			Sandbox:   fmt.Sprint("sbx", n%2),
			State:     store.SnapshotCreating,
			Created:   int64(n),
		}
		write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.InsertSnapshot(ctx, s) })
		s.State, s.Bytes = store.SnapshotReady, 7
		write(t, db, func(ctx context.Context, tx *store.Tx) error {
			return tx.UpdateSnapshot(ctx, s, store.SnapshotCreating)
		})
	}
	rows, err := db.Read().
		Snapshots(ctx, store.SnapshotQuery{Workspace: "w", Sandbox: "sbx0", State: store.SnapshotReady})
	if err != nil || len(rows) != 2 || rows[0].ID != "snp2" || rows[1].ID != "snp0" {
		t.Errorf("snapshots %v, %v", rows, err)
	}
	rows, err = db.Read().Snapshots(ctx, store.SnapshotQuery{BeforeCreated: 2, BeforeID: "snp2", Limit: 1})
	if err != nil || len(rows) != 1 || rows[0].ID != "snp1" {
		t.Errorf("second page %v, %v", rows, err)
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.DeleteSnapshot(ctx, "snp1") })
	if _, err := db.Read().Snapshot(ctx, "snp1"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("deleted snapshot: %v, want ErrNotFound", err)
	}
}

func keys(t *testing.T, db *store.DB) {
	ctx := t.Context()
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(
			tx.PutWorkspace(ctx, &store.Workspace{ID: "w", Name: "one"}),
			tx.PutWorkspace(ctx, &store.Workspace{ID: "w", Name: "two"}),
			tx.InsertKey(ctx, &store.Key{Prefix: "p1", Workspace: "w", Hash: "h1", Created: 1}),
			tx.InsertKey(
				ctx,
				&store.Key{Prefix: "p2", Workspace: "w", Hash: "h2", Created: 2},
			),
			tx.TouchKeys(ctx, map[string]int64{"p1": 9, "missing": 9}),
		)
	})
	if w, err := db.Read().Workspace(ctx, "w"); err != nil || w.Name != "one" {
		t.Errorf("workspace %+v, %v", w, err)
	}
	if all, err := db.Read().Keys(ctx, "w"); err != nil || len(all) != 2 || all[0].Prefix != "p2" ||
		all[1].LastUsed != 9 {
		t.Errorf("keys %+v, %v", all, err)
	}
	for _, k := range []*store.Key{{Prefix: "p1", Workspace: "w", Hash: "h3"}, {Prefix: "p3", Workspace: "w",
		Hash: "h1"}} {
		if err := db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
			return tx.InsertKey(ctx,
				k)
		}); !errors.Is(
			err,
			store.ErrExists,
		) {
			t.Errorf("key %s with hash %s: %v, want ErrExists", k.Prefix, k.Hash, err)
		}
	}
	for workspace, want := range map[string]error{"other": store.ErrNotFound, "w": nil} {
		if err := db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
			return tx.DeleteKey(ctx,
				workspace, "p1")
		}); !errors.Is(
			err,
			want,
		) {
			t.Errorf("delete of p1 in %s: %v, want %v", workspace, err, want)
		}
	}
}

func idempotency(t *testing.T, db *store.DB) {
	put := func(sandbox string) error {
		return db.Write(t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
			return tx.InsertIdempotency(ctx, &store.Idempotency{Workspace: "w", Name: "k", Hash: "h", Sandbox: sandbox})
		})
	}
	if err := put("a"); err != nil {
		t.Fatal(err)
	}
	if err := put("b"); !errors.Is(err, store.ErrExists) {
		t.Errorf("key put twice: %v, want ErrExists", err)
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.DeleteIdempotency(ctx, "w", "k", "b") })
	if i, err := db.Read().Idempotency(t.Context(), "w", "k"); err != nil || i.Sandbox != "a" {
		t.Errorf("key stands for %q, %v; want a", i.Sandbox, err)
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.DeleteIdempotency(ctx, "w", "k", "a") })
	if err := put("b"); err != nil {
		t.Errorf("freed key: %v", err)
	}
}

func tombstones(t *testing.T, db *store.DB) {
	ctx := t.Context()
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		for n := range 3 {
			s := &store.Tombstone{
				Sandbox:   fmt.Sprint("s", n),
				Workspace: "w",
				Reason:    "idle",
				Ended:     int64(10 * n),
				Processes: "[]",
			}
			again := *s
			again.Reason = "other"
			if err := errors.Join(tx.PutTombstone(ctx, s), tx.PutTombstone(ctx, &again),
				tx.AppendEvent(ctx, &store.Event{Sandbox: s.Sandbox, Payload: "{}"})); err != nil {
				return err
			}
		}
		return nil
	})
	if s, err := db.Read().Tombstone(ctx, "s0"); err != nil || s.Reason != "idle" {
		t.Errorf("tombstone %+v, %v", s, err)
	}
	amend := func(was string) error {
		return db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
			return tx.AmendTombstone(ctx, &store.Tombstone{Sandbox: "s2", Reason: "crash", Message: "m"}, was)
		})
	}
	if err := amend("other"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("amended one with another reason: %v", err)
	}
	if err := amend("idle"); err != nil {
		t.Error(err)
	}
	if s, err := db.Read().Tombstone(ctx, "s2"); err != nil || s.Reason != "crash" || s.Ended != 20 {
		t.Errorf("amended tombstone %+v, %v", s, err)
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		n, err := tx.DeleteExpired(ctx, 15, 0, 0)
		if n != 2 {
			t.Errorf("forgot %d, want 2", n)
		}
		return err
	})
	if _, err := db.Read().Tombstone(ctx, "s1"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("forgotten tombstone: %v", err)
	}
	for id, want := range map[string]int{"s1": 0, "s2": 1} {
		if e, err := db.Read().Events(ctx, id, 0, 0); err != nil || len(e) != want {
			t.Errorf("%s: %d events, %v; want %d", id, len(e), err, want)
		}
	}
}

func ports(t *testing.T, db *store.DB) {
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(
			tx.PutPort(ctx, &store.Port{Sandbox: "a", Port: 80, Label: "x"}),
			tx.PutPort(ctx, &store.Port{Sandbox: "a", Port: 80, Label: "y"}),
			tx.PutPort(
				ctx,
				&store.Port{Sandbox: "a", Port: 22},
			),
			tx.DeletePort(ctx, "a", 22),
			tx.PutAlias(ctx, &store.Alias{Name: "n", Template: "t"}),
			tx.PutAlias(ctx, &store.Alias{Name: "n", Template: "u"}),
		)
	})
	if rows, err := db.Read().Ports(t.Context(), "a"); err != nil || len(rows) != 1 || rows[0].Label != "y" {
		t.Errorf("ports %v, %v", rows, err)
	}
	if rows, err := db.Read().Aliases(t.Context()); err != nil || len(rows) != 1 || rows[0].Template != "u" {
		t.Errorf("aliases %v, %v", rows, err)
	}
	if err := db.Write(t.Context(), "test", func(ctx context.Context,
		tx *store.Tx) error {
		return tx.DeletePort(ctx, "a", 22)
	}); !errors.Is(
		err,
		store.ErrNotFound,
	) {
		t.Errorf("port deleted twice: %v, want ErrNotFound", err)
	}
}

func audits(t *testing.T, db *store.DB) {
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(
			tx.AppendAudit(ctx, nil),
			tx.AppendAudit(
				ctx,
				[]store.Audit{
					{ID: "1", At: 1, Workspace: "w", Target: "a"},
					{ID: "2", At: 2, Workspace: "w"},
					{ID: "3", At: 3, Workspace: "x"},
				},
			),
		)
	})
	rows, err := db.Read().Audits(t.Context(), store.AuditQuery{Workspace: "w", Since: 1, Limit: 1})
	if err != nil || len(rows) != 1 || rows[0].ID != "2" {
		t.Errorf("audit %v, %v", rows, err)
	}
}

func settings(t *testing.T, db *store.DB) {
	if _, err := db.Read().Setting(t.Context(), "x"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("setting that was never put: %v", err)
	}
	for _, v := range []string{"1", "2"} {
		write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.PutSetting(ctx, "x", v) })
	}
	if v, err := db.Read().Setting(t.Context(), "x"); err != nil || v != "2" {
		t.Errorf("setting %q, %v; want 2", v, err)
	}
	if len(db.ID()) < 20 {
		t.Errorf("store id %q is too short to be its own", db.ID())
	}
}

func lastUses(t *testing.T, db *store.DB) {
	insert(t, db, sandbox(1))
	for _, at := range []int64{50, 40} {
		write(t, db, func(ctx context.Context, tx *store.Tx) error {
			return tx.PutLastUses(
				ctx,
				[]store.LastUse{{ID: "sbx001", Active: at, Due: at + 1}, {ID: "none", Active: at}},
			)
		})
	}
	if s, err := db.Read().Sandbox(t.Context(), "sbx001"); err != nil || s.Active != 50 || s.Due != 51 {
		t.Errorf("active %d, due %d, %v; want 50, 51", s.Active, s.Due, err)
	}
	now := time.Now().Truncate(time.Microsecond)
	if got := store.Time(store.Micros(now)); !got.Equal(now) || !store.Time(store.Micros(time.Time{})).IsZero() {
		t.Errorf("time comes back as %v, want %v", got, now)
	}
}

func lastSeen(t *testing.T, db *store.DB) {
	ctx := t.Context()
	row := sandbox(1)
	insert(t, db, row, sandbox(2))
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return tx.PutLastSeen(
			ctx,
			[]store.LastSeen{
				{ID: row.ID, Processes: "[1]", Console: "ä", Usage: "{}"},
				{ID: "nobody", Processes: "[2]"},
			},
		)
	})
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(
			tx.PutLastSeen(ctx, []store.LastSeen{{ID: row.ID, Processes: "[3]"}}),
			tx.UpdateSandbox(ctx, row, "running"),
		)
	})
	got, err := db.Read().LastSeen(ctx, row.ID)
	if err != nil || got.Processes != "[3]" || got.Console != "ä" || got.Usage != "{}" {
		t.Errorf("seen %+v, %v", got, err)
	}
	if all, err := db.Read().LastProcesses(ctx); err != nil || len(all) != 1 || all[0].ID != row.ID ||
		all[0].Processes != "[3]" {
		t.Errorf("processes of all: %+v, %v", all, err)
	}
	if _, err := db.Read().LastSeen(ctx, "nobody"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("LastSeen of an unknown sandbox = %v, want ErrNotFound", err)
	}
}
