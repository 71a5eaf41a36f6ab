package job_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/storetest"
)

// fixture is a store, in the bubble of one test, that queues of several processes share.
type fixture struct {
	t   *testing.T
	dsn string
	db  *store.DB
}

// tests are run on SQLite, each in a bubble with a clock of its own.
var tests = map[string]func(f *fixture){
	"complete":      testComplete,
	"default-end":   testDefaultEnd,
	"unique-key":    testUniqueKey,
	"retry":         testRetry,
	"max-attempts":  testMaxAttempts,
	"permanent":     testPermanent,
	"run-after":     testRunAfter,
	"concurrency":   testConcurrency,
	"fairness":      testFairness,
	"poll":          testPoll,
	"shutdown":      testShutdown,
	"killed":        testKilled,
	"expired-lease": testExpiredLease,
	"long-job":      testLongJob,
	"abandoned":     testAbandoned,
	"cancel":        testCancel,
	"cancel-remote": testCancelRemote,
	"deadline":      testDeadline,
	"changed":       testChanged,
	"retention":     testRetention,
	"rivals":        testRivals,
}

func TestSQLite(t *testing.T) {
	for name, f := range tests {
		t.Run(name, func(t *testing.T) {
			dsn := filepath.Join(storetest.Dir(t), "jobs.db")
			synctest.Test(t, func(t *testing.T) { f(newFixture(t, dsn)) })
		})
	}
}

// TestPostgres runs the tests in which rows, keys and leases are contended for.
func TestPostgres(t *testing.T) {
	address := storetest.Postgres(t)
	for _, name := range []string{
		"complete", "unique-key", "retry", "fairness", "killed", "expired-lease", "cancel", "cancel-remote", "changed",
		"rivals",
	} {
		f := tests[name]
		t.Run(name, func(t *testing.T) {
			dsn := address(t)
			synctest.Test(t, func(t *testing.T) { f(newFixture(t, dsn)) })
		})
	}
}

func newFixture(t *testing.T, dsn string) *fixture {
	f := &fixture{t: t, dsn: dsn}
	f.db = f.open(nil)
	return f
}

// open opens the store once more, as another process does.
func (f *fixture) open(fault func(op string, committed bool) error) *store.DB {
	f.t.Helper()
	db, err := store.Open(f.t.Context(), store.Config{DSN: f.dsn, Fault: fault})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = db.Close() }) // a test may have closed it
	return db
}

// queue makes a queue with one worker.
func (f *fixture) queue(db *store.DB, cfg job.Config, w job.Worker) *job.Queue {
	f.t.Helper()
	q, err := job.New(cfg, db, slog.New(slog.DiscardHandler))
	if err != nil {
		f.t.Fatal(err)
	}
	if w.Kind == "" {
		w.Kind = "test"
	}
	q.Register(w)
	return q
}

// run runs a queue until the function that it returns is called.
func (f *fixture) run(q *job.Queue) (stop func()) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context()))
	done := make(chan error, 1)
	go func() { done <- q.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Errorf("Run: %v", err)
		}
	})
	f.t.Cleanup(stop)
	return stop
}

func (f *fixture) enqueue(q *job.Queue, spec job.Spec) job.Job {
	f.t.Helper()
	if spec.Kind == "" {
		spec.Kind = "test"
	}
	j, _, err := q.Enqueue(f.t.Context(), spec)
	if err != nil {
		f.t.Fatalf("Enqueue(%+v): %v", spec, err)
	}
	return j
}

// want fails unless a job has the state and the number of attempts.
func (f *fixture) want(q *job.Queue, id string, state job.State, attempts int) job.Job {
	f.t.Helper()
	j, err := q.Get(f.t.Context(), id)
	if err != nil || j.State != state || j.Attempts != attempts {
		f.t.Errorf("job %s: got state %s after %d attempts (%q), %v; want %s after %d",
			id, j.State, j.Attempts, j.Error, err, state, attempts)
	}
	if j.State != job.Running && j.LeaseOwner != "" || j.State.Ended() == j.EndedAt.IsZero() {
		f.t.Errorf("job %s: got lease owner %q and end %v in state %s", id, j.LeaseOwner, j.EndedAt, j.State)
	}
	return j
}

// pass lets time pass and waits until everything is idle.
func pass(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
	synctest.Wait()
}

// complete ends a job in a transaction that also counts its completions.
func complete(ctx context.Context, db *store.DB, l *job.Lease) error {
	return db.Write(ctx, "complete", func(ctx context.Context, tx *store.Tx) error {
		name := "completed/" + l.Job().ID
		text, err := tx.Setting(ctx, name)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		n, _ := strconv.Atoi(text) // "" counts as 0
		return errors.Join(tx.PutSetting(ctx, name, strconv.Itoa(n+1)), l.Complete(ctx, tx, map[string]int{"n": n}))
	})
}

// wantCompletions fails unless a job was completed so often.
func (f *fixture) wantCompletions(id, want string) {
	f.t.Helper()
	got, err := f.db.Read().Setting(f.t.Context(), "completed/"+id)
	if err != nil && !errors.Is(err, store.ErrNotFound) || got != want {
		f.t.Errorf("job %s: got %q completions, %v; want %q", id, got, err, want)
	}
}

func testComplete(f *fixture) {
	q := f.queue(f.db, job.Config{}, job.Worker{Run: func(ctx context.Context, l *job.Lease) error {
		err := f.db.Write(ctx, "progress", func(ctx context.Context, tx *store.Tx) error {
			return errors.Join(l.Check(ctx, tx), l.SetProgress(ctx, tx, "half"), l.SetLogPosition(ctx, tx, 7))
		})
		return errors.Join(err, complete(ctx, f.db, l))
	}})
	f.run(q)
	j := f.enqueue(q, job.Spec{Payload: []int{1, 2}, Owner: "app/a", Workspace: "w"})
	synctest.Wait()
	got := f.want(q, j.ID, job.Done, 1)
	if string(got.Payload) != "[1,2]" || got.Owner != "app/a" || got.Workspace != "w" || got.Progress != "half" ||
		got.LogPosition != 7 || string(got.Result) != `{"n":0}` {
		f.t.Errorf("got job %+v, want its payload, owner, workspace, progress and result", got)
	}
	f.wantCompletions(j.ID, "1")
	if _, err := q.Get(f.t.Context(), "other"); !errors.Is(err, store.ErrNotFound) {
		f.t.Errorf("Get(other): got %v, want ErrNotFound", err)
	}
}

func testDefaultEnd(f *fixture) {
	q := f.queue(f.db, job.Config{}, job.Worker{Run: func(context.Context, *job.Lease) error { return nil }})
	f.run(q)
	j := f.enqueue(q, job.Spec{})
	synctest.Wait()
	f.want(q, j.ID, job.Done, 1)
}

func testUniqueKey(f *fixture) {
	release := make(chan struct{})
	q := f.queue(f.db, job.Config{}, job.Worker{Run: func(context.Context, *job.Lease) error {
		<-release
		return nil
	}})
	f.run(q)
	first := f.enqueue(q, job.Spec{Key: "k"})
	synctest.Wait()
	second, created, err := q.Enqueue(f.t.Context(), job.Spec{Kind: "test", Key: "k"})
	if err != nil || created || second.ID != first.ID || second.State != job.Running {
		f.t.Errorf("Enqueue with an active key = %+v, %v, %v; want the running job %s", second, created, err, first.ID)
	}
	if other := f.enqueue(q, job.Spec{Kind: "other", Key: "k"}); other.ID == first.ID {
		f.t.Error("a key of another kind: got the same job, want a new one")
	}
	close(release)
	synctest.Wait()
	if third := f.enqueue(q, job.Spec{Key: "k"}); third.ID == first.ID {
		f.t.Error("the key of an ended job: got the same job, want a new one")
	}
	if _, _, err := q.Enqueue(f.t.Context(), job.Spec{Kind: "test", ID: first.ID}); !errors.Is(err, store.ErrExists) {
		f.t.Errorf("Enqueue with a taken id: got %v, want ErrExists", err)
	}
}

func testRetry(f *fixture) {
	var at []time.Time
	q := f.queue(f.db, job.Config{}, job.Worker{
		MaxAttempts: 6, Backoff: 10 * time.Second, MaxBackoff: 30 * time.Second,
		Run: func(_ context.Context, l *job.Lease) error {
			if at = append(at, time.Now()); l.Job().Attempts < 5 {
				return errors.New("not yet")
			}
			return nil
		},
	})
	f.run(q)
	j := f.enqueue(q, job.Spec{})
	pass(3 * time.Minute)
	f.want(q, j.ID, job.Done, 5)
	if len(at) != 5 {
		f.t.Fatalf("got %d attempts, want 5", len(at))
	}
	for n, most := range []time.Duration{10 * time.Second, 20 * time.Second, 30 * time.Second, 30 * time.Second} {
		if d := at[n+1].Sub(at[n]); d < most/2 || d > most+time.Second {
			f.t.Errorf("attempt %d came %v after the one before, want %v to %v", n+2, d, most/2, most)
		}
	}
}

func testMaxAttempts(f *fixture) {
	q := f.queue(f.db, job.Config{}, job.Worker{MaxAttempts: 3, Run: func(context.Context, *job.Lease) error {
		return api.Errorf(api.NoSpace, "the disk is full")
	}})
	f.run(q)
	j, own := f.enqueue(q, job.Spec{}), f.enqueue(q, job.Spec{MaxAttempts: 2})
	pass(time.Minute)
	if got := f.want(q, j.ID, job.Failed, 3); got.Error != "the disk is full" || got.Code != api.NoSpace {
		f.t.Errorf("got error %q, code %q; want that of the worker", got.Error, got.Code)
	}
	f.want(q, own.ID, job.Failed, 2)
}

func testPermanent(f *fixture) {
	cause := errors.New("hopeless")
	if err := job.Permanent(cause); !errors.Is(err, cause) || job.Permanent(nil) != nil {
		f.t.Errorf("Permanent(%v) = %v, want a wrapped error, and nil for nil", cause, err)
	}
	q := f.queue(f.db, job.Config{}, job.Worker{Run: func(context.Context, *job.Lease) error {
		return fmt.Errorf("wrapped: %w", job.Permanent(cause))
	}})
	f.run(q)
	j := f.enqueue(q, job.Spec{})
	pass(time.Minute)
	f.want(q, j.ID, job.Failed, 1)
}

func testRunAfter(f *fixture) {
	q := f.queue(
		f.db,
		job.Config{Poll: time.Hour},
		job.Worker{Run: func(context.Context, *job.Lease) error { return nil }},
	)
	f.run(q)
	j := f.enqueue(q, job.Spec{RunAfter: time.Now().Add(10 * time.Minute)})
	pass(10*time.Minute - time.Second)
	f.want(q, j.ID, job.Queued, 0)
	pass(2 * time.Second)
	f.want(q, j.ID, job.Done, 1)
}

// gauge counts the jobs that run at a time.
type gauge struct {
	mu        sync.Mutex
	now, most int
	perSpace  map[api.Workspace]int
}

func (g *gauge) add(w api.Workspace, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.perSpace == nil {
		g.perSpace = map[api.Workspace]int{}
	}
	g.now += n
	g.perSpace[w] += n
	g.most = max(g.most, g.now)
}

func (g *gauge) work(d time.Duration) func(context.Context, *job.Lease) error {
	return func(ctx context.Context, l *job.Lease) error {
		g.add(l.Job().Workspace, 1)
		defer g.add(l.Job().Workspace, -1)
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func testConcurrency(f *fixture) {
	var g gauge
	q := f.queue(f.db, job.Config{}, job.Worker{Concurrency: 3, Run: g.work(time.Second)})
	f.run(q)
	var all []job.Job
	for range 10 {
		all = append(all, f.enqueue(q, job.Spec{}))
	}
	pass(time.Minute)
	for _, j := range all {
		f.want(q, j.ID, job.Done, 1)
	}
	if g.most != 3 {
		f.t.Errorf("got at most %d jobs at a time, want 3", g.most)
	}
}

// testFairness fills the queue with jobs of one workspace, which may run two: another workspace does not wait.
func testFairness(f *fixture) {
	var g gauge
	q := f.queue(f.db, job.Config{}, job.Worker{Concurrency: 4, PerWorkspace: 2, Run: g.work(time.Hour)})
	for range 50 {
		f.enqueue(q, job.Spec{Workspace: "busy"})
	}
	late := f.enqueue(q, job.Spec{Workspace: "late"})
	f.run(q)
	synctest.Wait()
	f.want(q, late.ID, job.Running, 1)
	if g.perSpace["busy"] != 2 || g.perSpace["late"] != 1 {
		f.t.Errorf("got %v running per workspace, want 2 and 1", g.perSpace)
	}
}

// testPoll enqueues in a process that runs no jobs: the other finds it without a notification.
func testPoll(f *fixture) {
	w := job.Worker{Run: func(context.Context, *job.Lease) error { return nil }}
	q, other := f.queue(f.db, job.Config{}, w), f.queue(f.open(nil), job.Config{Poll: 3 * time.Second}, w)
	f.run(other)
	synctest.Wait()
	j := f.enqueue(q, job.Spec{})
	pass(4 * time.Second)
	f.want(q, j.ID, job.Done, 1)
}

func testShutdown(f *fixture) {
	var causes []error
	block := func(ctx context.Context, _ *job.Lease) error {
		<-ctx.Done()
		causes = append(causes, context.Cause(ctx))
		return ctx.Err()
	}
	q := f.queue(f.db, job.Config{}, job.Worker{Run: block})
	stop := f.run(q)
	j := f.enqueue(q, job.Spec{})
	synctest.Wait()
	f.want(q, j.ID, job.Running, 1)
	stop()
	f.want(q, j.ID, job.Queued, 0)
	if len(causes) != 1 || !errors.Is(causes[0], job.ErrShutdown) {
		f.t.Errorf("the worker was interrupted by %v, want ErrShutdown", causes)
	}
	next := f.queue(f.db, job.Config{}, job.Worker{Run: func(ctx context.Context, l *job.Lease) error {
		return f.db.Write(ctx, "release", func(ctx context.Context, tx *store.Tx) error {
			if l.Job().Fence < 4 { // a worker may release its job itself
				return l.Release(ctx, tx)
			}
			return l.Complete(ctx, tx, nil)
		})
	}})
	f.run(next)
	pass(time.Minute)
	f.want(next, j.ID, job.Done, 1)
}

// kill ends a queue as a killed process does: nothing that its worker does afterwards reaches the store.
func (f *fixture) kill(db *store.DB, stop func()) {
	f.t.Helper()
	if err := db.Close(); err != nil {
		f.t.Fatal(err)
	}
	stop()
}

func block(ctx context.Context, _ *job.Lease) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// testKilled starts a queue with an exclusive store after the one before was killed: its job continues at once.
func testKilled(f *fixture) {
	db := f.open(nil)
	q := f.queue(db, job.Config{}, job.Worker{Run: block})
	stop := f.run(q)
	j := f.enqueue(q, job.Spec{})
	synctest.Wait()
	f.kill(db, stop)
	next := f.queue(f.db, job.Config{Exclusive: true}, job.Worker{
		Run: func(ctx context.Context, l *job.Lease) error { return complete(ctx, f.db, l) },
	})
	f.want(next, j.ID, job.Running, 1)
	f.run(next)
	synctest.Wait()
	f.want(next, j.ID, job.Done, 2)
	f.wantCompletions(j.ID, "1")
}

// testExpiredLease suspends a worker: another process takes the job over, and the first cannot complete it any more.
func testExpiredLease(f *fixture) {
	down := errors.New("the store is out of reach")
	db := f.open(func(op string, _ bool) error {
		if op == "job extend" {
			return down
		}
		return nil
	})
	resumed, zombie := make(chan struct{}), make(chan error, 1)
	var cause error
	q := f.queue(
		db,
		job.Config{Lease: 30 * time.Second},
		job.Worker{Run: func(ctx context.Context, l *job.Lease) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			<-resumed
			err := complete(context.WithoutCancel(ctx), db, l)
			zombie <- err
			return err
		}},
	)
	f.run(q)
	j := f.enqueue(q, job.Spec{})
	synctest.Wait()
	next := f.queue(f.db, job.Config{}, job.Worker{
		Run: func(ctx context.Context, l *job.Lease) error { return complete(ctx, f.db, l) },
	})
	f.run(next)
	pass(25 * time.Second)
	if !errors.Is(cause, job.ErrLeaseLost) {
		f.t.Errorf("before the end of its lease the worker was interrupted by %v, want ErrLeaseLost", cause)
	}
	f.want(q, j.ID, job.Running, 1)
	pass(15 * time.Second)
	f.want(q, j.ID, job.Done, 2)
	close(resumed)
	if err := <-zombie; !errors.Is(err, job.ErrLeaseLost) {
		f.t.Errorf("Complete without the lease: got %v, want ErrLeaseLost", err)
	}
	synctest.Wait()
	f.want(q, j.ID, job.Done, 2)
	f.wantCompletions(j.ID, "1")
}

// testLongJob runs a job for many times the length of a lease: no other process takes it over.
func testLongJob(f *fixture) {
	var g gauge
	w := job.Worker{Run: g.work(10 * time.Minute)}
	q, other := f.queue(f.db, job.Config{}, w), f.queue(f.open(nil), job.Config{}, w)
	f.run(q)
	f.run(other)
	j := f.enqueue(q, job.Spec{})
	pass(11 * time.Minute)
	f.want(q, j.ID, job.Done, 1)
	if g.most != 1 {
		f.t.Errorf("got %d attempts at a time, want 1", g.most)
	}
}

func testAbandoned(f *fixture) {
	lost := api.Errorf(api.Unavailable, "restarted too often")
	var states []job.State
	worker := job.Worker{MaxAttempts: 2, Abandoned: lost, Run: block,
		Changed: func(_ context.Context, _ *store.Tx, j job.Job) error {
			states = append(states, j.State)
			return nil
		}}
	var j job.Job
	for n := range 2 {
		db := f.open(nil)
		q := f.queue(db, job.Config{Exclusive: true}, worker)
		stop := f.run(q)
		if n == 0 {
			j = f.enqueue(q, job.Spec{})
		}
		synctest.Wait()
		f.kill(db, stop)
	}
	q := f.queue(f.db, job.Config{Exclusive: true}, worker)
	f.run(q)
	synctest.Wait()
	if got := f.want(q, j.ID, job.Failed, 2); got.Error != lost.Message || got.Code != api.Unavailable {
		f.t.Errorf("got error %q, code %q; want %q, %q", got.Error, got.Code, lost.Message, lost.Code)
	}
	// A killed process also tries to return its job to the queue, which its closed store refuses.
	if got := fmt.Sprint(states[len(states)-1]); got != "failed" {
		f.t.Errorf("the last state that the service saw is %s, want failed", got)
	}
}

func testCancel(f *fixture) {
	ctx := f.t.Context()
	late := false
	q := f.queue(f.db, job.Config{}, job.Worker{Run: func(ctx context.Context, l *job.Lease) error {
		<-ctx.Done()
		if late {
			return complete(context.WithoutCancel(ctx), f.db, l)
		}
		return context.Cause(ctx)
	}})
	f.run(q)
	running := f.enqueue(q, job.Spec{})
	synctest.Wait()
	queued := f.enqueue(q, job.Spec{Key: "k"})
	synctest.Wait()
	for _, id := range []string{queued.ID, running.ID} {
		for range 2 { // the second time changes nothing
			if j, err := q.Cancel(ctx, id); err != nil || j.State != job.Cancelled || j.Code != api.Canceled {
				f.t.Errorf("Cancel = %s %s, %v; want cancelled", j.State, j.Code, err)
			}
		}
	}
	f.want(q, running.ID, job.Cancelled, 1)
	f.want(q, queued.ID, job.Cancelled, 0)
	// A worker may complete its job all the same.
	late = true
	j := f.enqueue(q, job.Spec{})
	synctest.Wait()
	if j, err := q.Cancel(ctx, j.ID); err != nil || j.State != job.Done {
		f.t.Errorf("Cancel of a job that completes = %s, %v; want done", j.State, err)
	}
	if _, err := q.Cancel(ctx, "other"); !errors.Is(err, store.ErrNotFound) {
		f.t.Errorf("Cancel(other): got %v, want ErrNotFound", err)
	}
}

// testCancelRemote cancels a job that runs in another process: it has ended at once, and that process notices.
func testCancelRemote(f *fixture) {
	var cause error
	q := f.queue(f.open(nil), job.Config{}, job.Worker{Run: func(ctx context.Context, _ *job.Lease) error {
		<-ctx.Done()
		cause = context.Cause(ctx)
		return cause
	}})
	f.run(q)
	j := f.enqueue(q, job.Spec{})
	synctest.Wait()
	other := f.queue(f.db, job.Config{}, job.Worker{Run: block})
	if got, err := other.Cancel(f.t.Context(), j.ID); err != nil || got.State != job.Cancelled {
		f.t.Errorf("Cancel = %s, %v; want cancelled", got.State, err)
	}
	pass(11 * time.Second)
	if !errors.Is(cause, job.ErrCancelled) {
		f.t.Errorf("a third of the lease later the worker was interrupted by %v, want ErrCancelled", cause)
	}
	f.want(q, j.ID, job.Cancelled, 1)
}

func testDeadline(f *fixture) {
	q := f.queue(f.db, job.Config{}, job.Worker{Run: block})
	f.run(q)
	deadline := time.Now().Add(time.Minute)
	running := f.enqueue(q, job.Spec{Deadline: deadline})
	synctest.Wait()
	queued := f.enqueue(q, job.Spec{Deadline: time.Now().Add(30 * time.Second)})
	pass(50 * time.Second)
	f.want(q, running.ID, job.Running, 1)
	f.want(q, queued.ID, job.Failed, 0)
	pass(20 * time.Second)
	if j := f.want(q, running.ID, job.Failed, 1); j.Code != api.Timeout {
		f.t.Errorf("got code %q, want timeout", j.Code)
	}
}

// testChanged fails the row of a service: the job does not change without it.
func testChanged(f *fixture) {
	var states []job.State
	refuse := 1
	q := f.queue(f.db, job.Config{}, job.Worker{
		Backoff: time.Second,
		Run: func(_ context.Context, l *job.Lease) error {
			if l.Job().Attempts == 1 {
				return errors.New("not yet")
			}
			return nil
		},
		Changed: func(ctx context.Context, tx *store.Tx, j job.Job) error {
			if refuse--; refuse == 0 {
				return errors.New("no")
			}
			states = append(states, j.State)
			return tx.PutSetting(ctx, "state", string(j.State))
		},
	})
	f.run(q)
	j := f.enqueue(q, job.Spec{})
	pass(time.Minute)
	f.want(q, j.ID, job.Done, 2)
	if got, err := f.db.Read().Setting(f.t.Context(), "state"); err != nil || got != "done" {
		f.t.Errorf("the row of the service says %q, %v; want done", got, err)
	}
	if got := fmt.Sprint(states); got != "[running queued running done]" {
		f.t.Errorf("the service saw %s, want [running queued running done]", got)
	}
}

func testRetention(f *fixture) {
	q := f.queue(f.db, job.Config{Poll: 10 * time.Minute}, job.Worker{
		Retention: 2 * time.Hour,
		Run:       func(context.Context, *job.Lease) error { return nil },
	})
	f.run(q)
	j := f.enqueue(q, job.Spec{})
	pass(90 * time.Minute)
	f.want(q, j.ID, job.Done, 1)
	pass(2 * time.Hour)
	if _, err := q.Get(f.t.Context(), j.ID); !errors.Is(err, store.ErrNotFound) {
		f.t.Errorf("Get of an old job: got %v, want ErrNotFound", err)
	}
}

// testRivals lets three processes work on the same jobs: each job is completed once.
func testRivals(f *fixture) {
	for range 3 {
		db := f.open(nil)
		f.run(f.queue(db, job.Config{}, job.Worker{
			Concurrency: 2,
			Run:         func(ctx context.Context, l *job.Lease) error { return complete(ctx, db, l) },
		}))
	}
	q := f.queue(f.db, job.Config{}, job.Worker{Run: block})
	var all []job.Job
	for range 20 {
		all = append(all, f.enqueue(q, job.Spec{}))
	}
	pass(time.Minute)
	for _, j := range all {
		f.want(q, j.ID, job.Done, 1)
		f.wantCompletions(j.ID, "1")
	}
}
