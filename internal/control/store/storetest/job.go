package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/pandastack/pandastack/internal/control/store"
)

func jobs(t *testing.T, db *store.DB) {
	ctx := t.Context()
	want := &store.Job{
		ID: "job1", Kind: "build", UniqueKey: "k", Owner: "build/b1", Workspace: "w1", Payload: `{"a":1}`,
		State:    "queued",
		Attempts: 1, MaxAttempts: 3, RunAfter: 10, Deadline: 90, LeaseOwner: "me", Fence: 1 << 40, LeaseExpires: 70,
		Progress: "half", LogPosition: 7, Error: "e", Code: "c", Result: "[]", Created: 5, Started: 6,
	}
	insert := func(j *store.Job) error {
		return db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error { return tx.InsertJob(ctx, j) })
	}
	for _, j := range []*store.Job{
		want,
		{ID: "job2", Kind: "build", Workspace: "w2", State: "queued", RunAfter: 8},
		{ID: "job3", Kind: "build", Workspace: "w1", State: "done", UniqueKey: "k", RunAfter: 9, Ended: 50},
		{ID: "job4", Kind: "deploy", Workspace: "w1", State: "queued", UniqueKey: "k", RunAfter: 11},
		{ID: "job5", Kind: "build", Workspace: "w2", State: "queued", RunAfter: 12}, // without a key, as job2
	} {
		if err := insert(j); err != nil {
			t.Fatalf("InsertJob(%s): %v", j.ID, err)
		}
	}
	if got, err := db.Read().Job(ctx, "job1"); err != nil || fmt.Sprint(got) != fmt.Sprint(*want) {
		t.Errorf("Job(job1) = %+v, %v; want %+v", got, err, *want)
	}
	if _, err := db.Read().Job(ctx, "job9"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Job(job9): got %v, want ErrNotFound", err)
	}
	jobConflicts(t, db)
	if got, err := db.Read().ActiveJob(ctx, "build", "k"); err != nil || got.ID != "job1" {
		t.Errorf("ActiveJob(build, k) = %s, %v; want job1", got.ID, err)
	}
	if _, err := db.Read().ActiveJob(ctx, "build", "other"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("ActiveJob(build, other): got %v, want ErrNotFound", err)
	}
	for name, tc := range map[string]struct {
		query store.JobQuery
		want  string
	}{
		"all":         {store.JobQuery{}, "[job2 job3 job1 job4 job5]"},
		"kinds":       {store.JobQuery{Kinds: []string{"deploy", "x"}}, "[job4]"},
		"states":      {store.JobQuery{States: []string{"done", "failed"}}, "[job3]"},
		"owner":       {store.JobQuery{Owner: "build/b1"}, "[job1]"},
		"run-before":  {store.JobQuery{RunBefore: 10, States: []string{"queued"}}, "[job2 job1]"},
		"run-later":   {store.JobQuery{RunLater: 11}, "[job5]"},
		"deadline":    {store.JobQuery{DeadlineBefore: 90}, "[job1]"},
		"no-deadline": {store.JobQuery{DeadlineBefore: 89}, "[]"},
		"ended":       {store.JobQuery{EndedBefore: 51}, "[job3]"},
		"not-ended":   {store.JobQuery{EndedBefore: 50}, "[]"},
		"workspaces":  {store.JobQuery{NotWorkspaces: []string{"w1", "w3"}}, "[job2 job5]"},
		"limit":       {store.JobQuery{Limit: 1}, "[job2]"},
	} {
		rows, err := db.Read().Jobs(ctx, tc.query)
		ids := []string{}
		for _, r := range rows {
			ids = append(ids, r.ID)
		}
		if got := fmt.Sprint(ids); err != nil || got != tc.want {
			t.Errorf("Jobs(%s) = %s, %v; want %s", name, got, err, tc.want)
		}
	}
	jobUpdates(t, db, *want)
}

// jobConflicts inserts jobs whose id or key is taken, and goes on in the same transaction.
func jobConflicts(t *testing.T, db *store.DB) {
	t.Helper()
	for name, taken := range map[string]*store.Job{
		"id":  {ID: "job1", Kind: "other", State: "queued"},
		"key": {ID: "job6", Kind: "build", UniqueKey: "k", State: "queued"},
	} {
		write(t, db, func(ctx context.Context, tx *store.Tx) error {
			if err := tx.InsertJob(ctx, taken); !errors.Is(err, store.ErrExists) {
				t.Errorf("InsertJob with a taken %s: got %v, want ErrExists", name, err)
			}
			_, err := tx.Job(ctx, "job1")
			return err
		})
	}
}

func jobUpdates(t *testing.T, db *store.DB, row store.Job) {
	t.Helper()
	ctx := t.Context()
	row.State, row.Fence, row.Progress = "running", row.Fence+1, "not written"
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateJob(ctx, &row, "queued", row.Fence-1, "state", "fence")
	})
	if got, err := db.Read().Job(ctx, row.ID); err != nil || got.State != "running" || got.Fence != row.Fence ||
		got.Progress != "half" {
		t.Errorf("after UpdateJob got %+v, %v; want state running, fence %d, progress half", got, err, row.Fence)
	}
	for name, tc := range map[string]struct {
		was   string
		fence int64
	}{"state": {"queued", row.Fence}, "fence": {"running", row.Fence - 1}} {
		err := db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
			return tx.UpdateJob(ctx, &row, tc.was, tc.fence, "progress")
		})
		if !errors.Is(err, store.ErrNotFound) {
			t.Errorf("UpdateJob with another %s: got %v, want ErrNotFound", name, err)
		}
	}
	row.State, row.Ended = "done", 99
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateJob(ctx, &row, "running", row.Fence, "state", "ended")
	})
	// The key is free again.
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return tx.InsertJob(ctx, &store.Job{ID: "job7", Kind: "build", UniqueKey: "k", State: "queued"})
	})
	for range 2 {
		write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.DeleteJob(ctx, "job1") })
	}
	if _, err := db.Read().Job(ctx, "job1"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Job(job1) after DeleteJob: got %v, want ErrNotFound", err)
	}
}
