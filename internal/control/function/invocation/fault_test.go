package invocation_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/function/invocation"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

// dying is a fault that kills a process at the nth write with a name: nothing is written after it.
type dying struct {
	op        string
	nth       int
	committed bool

	mu   sync.Mutex
	seen int  // guarded by mu
	dead bool // guarded by mu
}

func (d *dying) fault(op string, committed bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.dead && op == d.op && committed == d.committed {
		d.seen++
		d.dead = d.seen == d.nth
	}
	if d.dead {
		return errKilled
	}
	return nil
}

func (d *dying) died() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dead
}

// TestKilledAtEveryStep kills a process at each kind of write, before and after it is committed, and starts another
// one. Each run ends once, and no attempt is made twice.
func TestKilledAtEveryStep(t *testing.T) {
	for _, op := range []string{
		"invocation claim", "invocation settle", "invocation extend", "invocation submit", "invocation map",
		"invocation reclaim", "invocation cancel", "invocation forget", "queue dispatch", "queue send",
	} {
		for _, nth := range []int{1, 2} {
			for _, committed := range []bool{false, true} {
				test(t, func(f *fixture) {
					name := fmt.Sprintf("%q %d, committed %v", op, nth, committed)
					d := &dying{op: op, nth: nth, committed: committed}
					w := f.work()
					w.dying = d
					w.leave() // runs of a process that was killed before
					first := f.start(f.open(d.fault))
					w.do(first)
					after(time.Minute)
					if !d.died() && !(nth == 2 && (op == "invocation map" || op == "invocation forget")) {
						t.Errorf("%s: never written", name)
					}
					first.stop()
					second := f.start(f.db)
					after(10 * time.Minute)
					w.check(second, name)
				})
			}
		}
	}
}

// work is what a process does in TestKilled.
type work struct {
	*fixture
	plain, gone, last, queued functionstore.Function
	sent                      map[string]bool // functions whose runs were accepted, by id
	q                         string
	dying                     *dying
}

func (f *fixture) work() *work {
	f.cfg.Concurrency = 4
	w := &work{fixture: f, sent: map[string]bool{}}
	w.last = f.function("w1", "last", api.FunctionSettings{})
	to := &api.Destination{FunctionID: api.FunctionID(w.last.ID)}
	w.plain = f.function("w1", "plain", api.FunctionSettings{
		OnSuccess: to, OnFailure: to, Retry: &api.FunctionRetry{MaxAttempts: 9},
	})
	w.gone = f.function("w1", "gone", api.FunctionSettings{})
	w.queued = f.function("w2", "queued", api.FunctionSettings{})
	return w
}

// leave leaves runs of a process that was killed while they were under way.
func (w *work) leave() {
	d := &dying{op: "invocation settle", nth: 1}
	s := w.start(w.open(d.fault))
	for range 3 {
		run := w.submit(s, w.plain, event{Takes: 10 * time.Second})
		w.sent[string(run.ID)] = true
	}
	after(11 * time.Second)
	s.stop()
}

// do calls everything. Calls that fail because the process was killed may have had their effect.
func (w *work) do(s *process) {
	t := w.TB
	allowed := func(err error) {
		t.Helper()
		if err != nil && !errors.Is(err, errKilled) && !errors.Is(err, context.DeadlineExceeded) && !w.dying.died() {
			t.Errorf("unexpected error: %v", err)
		}
	}
	submit := func(fn functionstore.Function, e event) {
		run, err := s.Submit(w.Context(), as(fn), fn.ID, api.InvokeRequest{Async: true, Input: e.json()})
		allowed(err)
		if err == nil && fn.ID == w.plain.ID {
			w.sent[string(run.ID)] = true
		}
	}
	p := as(w.queued)
	w.q = "q"
	_, err := s.CreateQueue(w.Context(), p, api.CreateQueueRequest{
		Name: w.q, Settings: api.QueueSettings{FunctionID: api.FunctionID(w.queued.ID), BatchSize: 2},
	})
	allowed(err)
	for i := range 6 {
		submit(w.plain, event{N: i, Fails: i % 3, Takes: time.Duration(i) * 4 * time.Second})
		message := api.NewQueueMessage{Body: event{N: i}.json()}
		_, err := s.Send(w.Context(), p, w.q, api.SendRequest{Messages: []api.NewQueueMessage{message}})
		allowed(err)
	}
	submit(w.gone, event{Takes: time.Hour})
	submit(w.gone, event{Takes: time.Hour})
	stop := errors.New("the caller goes away")
	ctx, end := context.WithTimeout(w.Context(), 20*time.Second)
	defer end()
	err = s.Map(ctx, user, w.plain.ID, api.MapRequest{
		Inputs: []jsonText{event{}.json(), event{}.json(), event{}.json(), event{}.json()}, Concurrency: 2,
	}, func(api.MapProgress) error { return stop })
	if !errors.Is(err, stop) {
		allowed(err)
	}
	allowed(s.Forget(w.Context(), api.FunctionID(w.gone.ID)))
	again := s.Forget(w.Context(), api.FunctionID(w.gone.ID))
	allowed(again)
}

func (w *work) check(s *process, name string) {
	t := w.TB
	if err := s.Forget(w.Context(), api.FunctionID(w.gone.ID)); err != nil {
		t.Errorf("%s: forget: %v", name, err)
	}
	after(time.Second)
	outcomes := map[string]int{}
	for _, r := range w.runs(w.last) {
		if r.State != "success" {
			t.Errorf("%s: destination: %s", name, r.State)
		}
		outcomes[string(outcomeOf(t, r.Input).Run)]++
	}
	for _, r := range w.runs(w.plain) {
		if r.State != "success" {
			t.Errorf("%s: run %s is %s after %d attempts: %s", name, r.ID, r.State, r.Attempt, r.Error)
		}
		if outcomes[r.ID] != 1 {
			t.Errorf("%s: run has %d outcomes", name, outcomes[r.ID])
		}
		delete(w.sent, r.ID)
	}
	if len(w.sent) > 0 {
		t.Errorf("%s: %d runs that were accepted are lost", name, len(w.sent))
	}
	for _, r := range w.runs(w.gone) {
		if r.State != "canceled" {
			t.Errorf("%s: run of a function that is deleted is %s", name, r.State)
		}
	}
	if q, err := s.Queue(w.Context(), as(w.queued), w.q); err == nil && q.Visible+q.InFlight+q.Delayed > 0 {
		t.Errorf("%s: messages are left: %+v", name, q)
	}
	w.functions.check(t)
}

// TestTwo runs two processes over one store: each run has one attempt.
func TestTwo(t *testing.T) {
	test(t, func(f *fixture) {
		fn := f.function("w1", "a", api.FunctionSettings{})
		first, second := f.start(f.db), f.start(f.open(nil))
		for i := range 400 {
			f.submit([]*process{first, second}[i%2], fn, event{N: i, Takes: time.Second})
		}
		after(2 * time.Minute)
		f.want("runs", f.states(fn), "map[success 1:400]")
		if f.functions.count() != 400 {
			t.Errorf("%d calls", f.functions.count())
		}
		first.mu.Lock()
		defer first.mu.Unlock()
		second.mu.Lock()
		defer second.mu.Unlock()
		if a, b := len(first.ended), len(second.ended); a+b != 400 || a == 0 || b == 0 {
			t.Errorf("processes have ended %d and %d runs", a, b)
		}
	})
}

// TestTwoQueues runs two processes over one store, with queues that have functions: each message is in one batch, and a
// queue has no more batches at a time than with one process.
func TestTwoQueues(t *testing.T) {
	test(t, func(f *fixture) {
		first, second := f.start(f.db), f.start(f.open(nil))
		var mu sync.Mutex
		seen := map[string]int{}
		f.functions.answer = func(b invocation.Batch) (any, bool) {
			mu.Lock()
			defer mu.Unlock()
			for _, m := range b.Messages {
				seen[m.ID]++
			}
			return nil, true
		}
		const messages = 100
		for _, name := range []string{"a", "b"} {
			fn := f.function("w1", name, api.FunctionSettings{})
			f.queue(first, name, api.QueueSettings{FunctionID: api.FunctionID(fn.ID), BatchSize: 2})
			for i := range messages {
				f.send([]*process{first, second}[i%2], name, event{N: i, Takes: time.Second}.json())
			}
		}
		after(5 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(seen) != 2*messages {
			t.Errorf("%d messages arrived, want %d", len(seen), 2*messages)
		}
		for id, n := range seen {
			if n != 1 {
				t.Errorf("message %s was in %d batches", id, n)
			}
		}
		for _, name := range []string{"a", "b"} {
			f.want("queue "+name, f.counts(first, name), "0 0 0")
		}
		f.functions.mu.Lock()
		most := f.functions.most
		f.functions.mu.Unlock()
		if most > 2*5 {
			t.Errorf("%d batches at a time, want at most 5 of each queue", most)
		}
		first.mu.Lock()
		defer first.mu.Unlock()
		second.mu.Lock()
		defer second.mu.Unlock()
		if a, b := len(first.ended), len(second.ended); a == 0 || b == 0 {
			t.Errorf("processes have ended %d and %d runs", a, b)
		}
		f.functions.check(t)
	})
}

// TestRunsAtScale has 10,000 queued runs when the process is killed.
func TestRunsAtScale(t *testing.T) {
	const n = 10_000
	test(t, func(f *fixture) {
		f.cfg.Concurrency = 256
		fn := f.function("w1", "a", api.FunctionSettings{})
		d := &dying{op: "invocation settle", nth: 500}
		s := f.start(f.open(d.fault))
		rows := make([]functionstore.Run, n)
		for i := range rows {
			rows[i] = functionstore.Run{
				ID: fmt.Sprintf("inv%020d", i), Function: fn.ID, Workspace: fn.Workspace, State: store.RunQueued,
				Origin: "async", Attempts: 3, Due: 1, Expires: 1 << 60, Input: "{}", Created: 1,
			}
		}
		f.write(f.db, func(ctx context.Context, tx *store.Tx) error {
			return functionstore.In(tx).InsertRuns(ctx, rows)
		})
		s.Notify()
		after(6 * time.Second)
		if !d.died() {
			t.Fatal("the process was not killed")
		}
		s.stop()
		f.start(f.db)
		after(2 * time.Minute)
		rows = f.runs(fn)
		again := 0
		for _, r := range rows {
			if r.State != "success" || r.Attempt > 2 {
				t.Fatalf("run %s is %s after %d attempts: %s", r.ID, r.State, r.Attempt, r.Error)
			}
			again += int(r.Attempt) - 1
		}
		if len(rows) != n || f.functions.count() < n || f.functions.count() > n+again {
			t.Errorf("%d runs, %d calls, %d further attempts", len(rows), f.functions.count(), again)
		}
		f.functions.check(t)
	})
}

// TestStoreAway has a store that cannot be written for a minute, while runs are due, under way and sent.
func TestStoreAway(t *testing.T) {
	test(t, func(f *fixture) {
		fn := f.function("w1", "a", api.FunctionSettings{})
		var mu sync.Mutex
		away := false
		set := func(to bool) { mu.Lock(); away = to; mu.Unlock() }
		fault := func(_ string, committed bool) error {
			mu.Lock()
			defer mu.Unlock()
			if away && !committed {
				return errors.New("the store is away")
			}
			return nil
		}
		first, second := f.start(f.open(fault)), f.start(f.open(fault))
		for i := range 20 {
			f.submit(first, fn, event{Takes: time.Duration(i) * 5 * time.Second})
		}
		after(7 * time.Second)
		set(true)
		if _, err := first.Submit(f.Context(), user, fn.ID, api.InvokeRequest{Async: true}); err == nil {
			t.Error("a run was accepted that is not in the store")
		}
		after(time.Minute)
		set(false)
		f.submit(second, fn, event{})
		after(3 * time.Minute)
		f.want("runs", f.states(fn), "map[success 1:21]")
		f.functions.check(t)
	})
}

// TestClock sets the clock of a process, forward and back: runs under way are not taken for those of a dead process,
// and those that are due are made.
func TestClock(t *testing.T) {
	test(t, func(f *fixture) {
		fn := f.function("w1", "a", api.FunctionSettings{})
		var mu sync.Mutex
		var ahead time.Duration
		set := func(to time.Duration) { mu.Lock(); ahead = to; mu.Unlock() }
		f.cfg.Now = func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return time.Now().Add(ahead)
		}
		first, _ := f.start(f.db), f.start(f.open(nil))
		f.submit(first, fn, event{Takes: 100 * time.Second})
		_, err := first.Submit(f.Context(), user, fn.ID, api.InvokeRequest{Async: true, DelaySeconds: 3600})
		if err != nil {
			t.Fatal(err)
		}
		after(12 * time.Second)
		set(2 * time.Hour)
		after(10 * time.Second)
		f.want("forward", f.states(fn), "map[running 1:1 success 1:1]")
		set(-time.Hour)
		after(10 * time.Second)
		f.submit(first, fn, event{})
		after(90 * time.Second)
		f.want("back", f.states(fn), "map[success 1:3]")
		f.functions.check(t)
	})
}

// TestShutdown stops a process with runs under way: they are attempted again, with a further number.
func TestShutdown(t *testing.T) {
	test(t, func(f *fixture) {
		fn := f.function("w1", "a", api.FunctionSettings{})
		once := f.function("w1", "once", api.FunctionSettings{Retry: &api.FunctionRetry{MaxAttempts: 1}})
		s := f.start(f.db)
		f.submit(s, fn, event{Takes: time.Minute})
		f.submit(s, once, event{Takes: time.Minute})
		after(time.Second)
		s.stop()
		f.want("stopped", f.states(fn), "map[queued 1:1]")
		f.want("one attempt", f.states(once), "map[error 1:1]")
		f.cfg.Exclusive = true
		f.start(f.db)
		after(61 * time.Second)
		f.want("started", f.states(fn), "map[success 2:1]")
	})
}

func outcomeOf(t testing.TB, input string) (out invocation.Outcome) {
	t.Helper()
	if err := unmarshal(input, &out); err != nil {
		t.Errorf("outcome %s: %v", input, err)
	}
	return out
}
