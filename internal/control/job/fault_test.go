package job_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/storetest"
)

// faults fails one write of a store, before it begins or after its commit.
type faults struct {
	mu    sync.Mutex
	at    int // number of the call that fails; negative: none
	calls int
	op    string // of the call that failed
}

func (fs *faults) fault(op string, committed bool) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.calls++
	if fs.calls-1 != fs.at {
		return nil
	}
	fs.op = fmt.Sprintf("%s, committed %v", op, committed)
	return errors.New("injected fault")
}

// TestFaultAtEveryWrite fails each write of a queue once: no job is lost, and none is completed twice.
func TestFaultAtEveryWrite(t *testing.T) {
	calls := faultRun(t, -1)
	if calls < 20 {
		t.Fatalf("the scenario makes %d calls, want at least 20", calls)
	}
	for at := range calls {
		if faultRun(t, at); t.Failed() {
			return
		}
	}
}

// faultRun runs a few jobs of every kind while one call of the store fails, and returns the number of calls.
func faultRun(t *testing.T, at int) int {
	t.Helper()
	fs := &faults{at: at}
	dsn := filepath.Join(storetest.Dir(t), "jobs.db")
	t.Run(fmt.Sprint("call-", at), func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, dsn)
			db := f.open(nil)
			if err := db.Close(); err != nil { // the schema is made before faults begin
				t.Fatal(err)
			}
			faultScenario(f, f.open(fs.fault))
			if t.Failed() {
				t.Logf("the failing call was %q", fs.op)
			}
		})
	})
	return fs.calls
}

func faultScenario(f *fixture, db *store.DB) {
	q := f.queue(db, job.Config{Lease: 30 * time.Second}, job.Worker{
		Concurrency: 2, MaxAttempts: 5,
		Run: func(ctx context.Context, l *job.Lease) error {
			timer := time.NewTimer(15 * time.Second) // so that the lease is extended
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if l.Job().Key == "retried" && l.Job().Attempts == 1 {
				return errors.New("not yet")
			}
			return complete(ctx, db, l)
		},
	})
	stop := f.run(q)
	var ids []string
	for _, key := range []string{"plain", "retried", "last"} {
		ids = append(ids, f.enqueueSurely(q, key))
	}
	pass(20 * time.Second)
	stop() // in the middle of the work
	f.run(f.queue(db, job.Config{}, job.Worker{Run: block, Kind: "other"}))
	q2 := f.queue(db, job.Config{Lease: 30 * time.Second}, job.Worker{
		Run: func(ctx context.Context, l *job.Lease) error { return complete(ctx, db, l) }, MaxAttempts: 5,
	})
	f.run(q2)
	pass(3 * time.Minute)
	for _, id := range ids {
		if j, err := q.Get(f.t.Context(), id); err != nil || j.State != job.Done {
			f.t.Errorf("job %s is %s (%q), %v; want done", j.Key, j.State, j.Error, err)
		}
		f.wantCompletions(id, "1")
	}
}

// enqueueSurely enqueues a job as a client does that tries again after an error: the key makes that safe.
func (f *fixture) enqueueSurely(q *job.Queue, key string) string {
	f.t.Helper()
	var err error
	for range 3 {
		var j job.Job
		if j, _, err = q.Enqueue(f.t.Context(), job.Spec{Kind: "test", Key: key}); err == nil {
			return j.ID
		}
	}
	f.t.Fatalf("Enqueue(%s): %v", key, err)
	return ""
}
