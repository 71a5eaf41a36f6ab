package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/pandastack/pandastack/internal/control/store"
)

func schedule(id, name string, next int64) *store.Schedule {
	return &store.Schedule{ID: id, Workspace: "w", Name: name, Cron: "@daily", Target: "{}", Options: "{}",
		Secret: "s", Next: next, Created: 1, Changed: 1}
}

func schedules(t *testing.T, db *store.DB) {
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(tx.InsertSchedule(ctx, schedule("s1", "b", 30)),
			tx.InsertSchedule(ctx, schedule("s2", "a", 20)), tx.InsertSchedule(ctx, schedule("s3", "c", 0)))
	})
	ctx := t.Context()
	err := db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
		return tx.InsertSchedule(ctx, schedule("s4", "a", 1))
	})
	if !errors.Is(err, store.ErrExists) {
		t.Errorf("second schedule with a name: %v", err)
	}
	if next, err := db.Read().NextSchedule(ctx); err != nil || next != 20 {
		t.Errorf("next = %d, %v", next, err)
	}
	for now, want := range map[int64]string{19: "", 20: "s2", 99: "s2 s1"} {
		rows, err := db.Read().DueSchedules(ctx, now, 9)
		got := ""
		for _, r := range rows {
			if got != "" {
				got += " "
			}
			got += r.ID
		}
		if err != nil || got != want {
			t.Errorf("due at %d: %q, %v, want %q", now, got, err, want)
		}
	}
	advance := func(was, next int64) error {
		return db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
			return tx.AdvanceSchedule(ctx, "s2", was, next)
		})
	}
	if err := errors.Join(advance(20, 40)); err != nil {
		t.Error(err)
	}
	if err := advance(20, 60); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("advanced twice: %v", err)
	}
	update := func(name string, was int64) error {
		row := schedule("s2", name, 40)
		row.Target, row.Changed = "secret target", was+1
		return db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
			return tx.UpdateSchedule(ctx, row, was)
		})
	}
	if err := update("z", 1); err != nil {
		t.Error(err)
	}
	if err := update("y", 1); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("changed meanwhile: %v", err)
	}
	if err := update("b", 2); !errors.Is(err, store.ErrExists) {
		t.Errorf("name of another: %v", err)
	}
	if row, err := db.Read().Schedule(ctx, "s2"); err != nil || row.Target != "secret target" || row.Name != "z" {
		t.Errorf("schedule = %+v, %v", row, err)
	}
	if n, err := db.Read().CountSchedules(ctx, "w"); err != nil || n != 3 {
		t.Errorf("count = %d, %v", n, err)
	}
}

func scheduleRuns(t *testing.T, db *store.DB) {
	ctx := t.Context()
	run := func(id string, moment int64, manual bool) *store.ScheduleRun {
		return &store.ScheduleRun{ID: id, Schedule: "s1", Workspace: "w", Moment: moment, Manual: manual,
			State: store.RunQueued, Stdout: "out", Created: moment}
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		err := errors.Join(tx.InsertSchedule(ctx, schedule("s1", "a", 1)),
			tx.InsertScheduleRun(ctx, run("r1", 10, false)), tx.InsertScheduleRun(ctx, run("r2", 20, false)),
			tx.InsertScheduleRun(ctx, run("r3", 10, true)))
		if again := tx.InsertScheduleRun(ctx, run("r4", 20, false)); !errors.Is(again, store.ErrExists) {
			t.Errorf("second run for a moment: %v", again)
		}
		return errors.Join(err, tx.InsertScheduleRun(ctx, run("r5", 30, false))) // the transaction stays usable
	})
	end := run("r1", 10, false)
	end.State, end.Ended, end.ExitCode = store.RunSuccess, 50, new(7)
	update := func() error {
		return db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
			return tx.UpdateScheduleRun(ctx, end, "state", "ended", "exit_code")
		})
	}
	if err := update(); err != nil {
		t.Error(err)
	}
	if err := update(); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("change of a run that has ended: %v", err)
	}
	if got, err := db.Read().ScheduleRun(ctx, "r1"); err != nil || *got.ExitCode != 7 || got.Stdout != "out" {
		t.Errorf("run = %+v, %v", got, err)
	}
	check := func(q store.ScheduleRunQuery, want string) {
		t.Helper()
		rows, err := db.Read().ScheduleRuns(ctx, q)
		got := ""
		for _, r := range rows {
			got += r.ID
		}
		if err != nil || got != want {
			t.Errorf("runs of %+v: %s, %v, want %s", q, got, err, want)
		}
	}
	check(store.ScheduleRunQuery{Schedule: "s1", Limit: 2}, "r5r2")
	check(store.ScheduleRunQuery{Schedule: "s1", Active: true, Oldest: true}, "r3r2r5")
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.TrimScheduleRuns(ctx, "s1", 1) })
	check(store.ScheduleRunQuery{Schedule: "s1", Oldest: true}, "r3r2r5")
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.DeleteSchedule(ctx, "s1") })
	check(store.ScheduleRunQuery{Schedule: "s1"}, "")
}
