package invocation_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/function/invocation"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

func TestSubmit(t *testing.T) {
	test(t, func(f *fixture) {
		fn := f.function("w1", "a", api.FunctionSettings{})
		s := f.start(f.db)
		run := f.submit(s, fn, event{N: 7})
		if run.Status != api.RunQueued || run.Attempt != 0 || run.Version != 1 || run.Trigger != "async" {
			t.Errorf("as it was added: %+v", run)
		}
		after(time.Second)
		rows := f.runs(fn)
		f.want("runs", f.states(fn), "map[success 1:1]")
		if r := rows[0]; r.Result != `{"n":7}` || r.Stdout != "printed\n" || !r.Cold || r.Ended == 0 ||
			r.Sandbox != "sbx" {
			t.Errorf("the row: %+v", r)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.ended) != 1 || s.ended[0].ID != run.ID || s.ended[0].Status != api.RunSuccess ||
			string(s.ended[0].Result) != `{"n":7}` {
			t.Errorf("runs announced: %+v, want one that succeeded", s.ended)
		}
		_, err := s.Submit(f.Context(), user, "nothing", api.InvokeRequest{Async: true})
		if api.CodeOf(err) != api.NotFound {
			t.Errorf("unknown function: %v", err)
		}
	})
}

func TestDelay(t *testing.T) {
	test(t, func(f *fixture) {
		fn := f.function("w1", "a", api.FunctionSettings{})
		s := f.start(f.db)
		_, err := s.Submit(f.Context(), user, fn.ID, api.InvokeRequest{Async: true, DelaySeconds: 3700})
		if err != nil {
			t.Fatal(err)
		}
		after(3699 * time.Second)
		f.want("before", f.states(fn), "map[queued 0:1]")
		after(2 * time.Second)
		f.want("after", f.states(fn), "map[success 1:1]")
		if r := f.runs(fn)[0]; r.Started-r.Created != 3700e6 && r.Started-r.Created > 3700e6+5000 {
			t.Errorf("began %d µs after it was added", r.Started-r.Created)
		}
	})
}

// TestRetries lets attempts fail: another one follows later, up to the number and the age that the function allows.
func TestRetries(t *testing.T) {
	test(t, func(f *fixture) {
		three := f.function("w1", "three", api.FunctionSettings{})
		old := f.function("w1", "old", api.FunctionSettings{
			Retry: &api.FunctionRetry{MaxAttempts: 10, MaxAgeSeconds: 3},
		})
		s := f.start(f.db)
		f.submit(s, three, event{Fails: 2})
		f.submit(s, three, event{Fails: 9})
		f.submit(s, old, event{Fails: 9})
		after(500 * time.Millisecond)
		f.want("first attempts", f.states(three), "map[queued 1:2]")
		after(time.Minute)
		f.want("all attempts", f.states(three), "map[error 3:1 success 3:1]")
		f.want("until it was too old", f.states(old), "map[error 2:1]")
		for _, r := range f.runs(three) {
			var e api.FunctionError
			if r.State == store.RunError && (json.Unmarshal([]byte(r.Error), &e) != nil || e.Message != "attempt 3") {
				t.Errorf("error %s", r.Error)
			}
		}
		f.functions.check(t)
	})
}

// TestBusy has a function that refuses calls: they are no attempts.
func TestBusy(t *testing.T) {
	test(t, func(f *fixture) {
		fn := f.function("w1", "a", api.FunctionSettings{Retry: &api.FunctionRetry{MaxAttempts: 1}})
		s := f.start(f.db)
		f.submit(s, fn, event{Busy: 20})
		after(time.Minute)
		f.want("runs", f.states(fn), "map[success 1:1]")
	})
}

// TestTooOld leaves a run in the store until it is too old: it ends without an attempt.
func TestTooOld(t *testing.T) {
	test(t, func(f *fixture) {
		letters := f.function("w1", "letters", api.FunctionSettings{})
		fn := f.function("w1", "a", api.FunctionSettings{
			Retry:     &api.FunctionRetry{MaxAgeSeconds: 60},
			OnFailure: &api.Destination{FunctionID: api.FunctionID(letters.ID)},
		})
		f.submit(f.prepare(f.db), fn, event{})
		after(time.Minute)
		f.start(f.db)
		after(time.Second)
		f.want("runs", f.states(fn), "map[error 0:1]")
		f.want("dead letters", f.states(letters), "map[success 1:1]")
	})
}

func TestIdempotencyKey(t *testing.T) {
	test(t, func(f *fixture) {
		fn, other := f.function("w1", "a", api.FunctionSettings{}), f.function("w1", "b", api.FunctionSettings{})
		f.cfg.Exclusive = true
		s := f.start(f.db)
		submit := func(fn functionstore.Function) api.InvocationID {
			run, err := s.Submit(f.Context(), user, fn.ID, api.InvokeRequest{Async: true, IdempotencyKey: "k"})
			if err != nil {
				t.Fatal(err)
			}
			return run.ID
		}
		first := submit(fn)
		if submit(fn) != first || submit(other) == first {
			t.Error("a key is not that of the first run with it, or not of the function")
		}
		after(24*time.Hour - time.Second)
		if submit(fn) != first {
			t.Error("a key was forgotten before 24 hours")
		}
		after(2 * time.Second)
		if submit(fn) == first {
			t.Error("a key was kept for longer than 24 hours")
		}
		after(time.Second)
		f.want("runs", f.states(fn), "map[success 1:2]")
	})
}

// TestDestinations chains functions; one that calls itself ends.
func TestDestinations(t *testing.T) {
	test(t, func(f *fixture) {
		f.cfg.Exclusive = true
		last := f.function("w1", "last", api.FunctionSettings{})
		to := &api.Destination{FunctionID: api.FunctionID(last.ID)}
		foreign := f.function("w2", "foreign", api.FunctionSettings{})
		good := f.function("w1", "good", api.FunctionSettings{OnSuccess: to})
		bad := f.function("w1", "bad", api.FunctionSettings{OnFailure: to, OnSuccess: &api.Destination{
			FunctionID: api.FunctionID(foreign.ID),
		}})
		s := f.start(f.db)
		f.submit(s, good, event{N: 1})
		f.submit(s, bad, event{Fails: 3})
		f.submit(s, bad, event{})
		after(time.Minute)
		f.want("destination", f.states(last), "map[success 1:2]")
		f.want("a function of others", f.states(foreign), "map[]")
		for _, r := range f.runs(last) {
			var got invocation.Outcome
			if err := json.Unmarshal([]byte(r.Input), &got); err != nil {
				t.Fatal(err)
			}
			switch string(got.Function) {
			case good.ID:
				if got.Status != api.RunSuccess || string(got.Result) != `{"n":1}` || string(got.Input) != `{"n":1}` {
					t.Errorf("success: %s", r.Input)
				}
			case bad.ID:
				if got.Status != api.RunError || got.Attempt != 3 || got.Error == nil ||
					got.Error.Type != "ValueError" {
					t.Errorf("dead letter: %s", r.Input)
				}
			default:
				t.Errorf("outcome of %s", got.Function)
			}
		}
		loop := f.function("w1", "loop", api.FunctionSettings{})
		loop.Settings = `{"on_success":{"function_id":"` + loop.ID + `"}}`
		f.write(f.db, func(ctx context.Context, tx *store.Tx) error {
			return functionstore.In(tx).UpdateFunction(ctx, &loop, "settings")
		})
		f.submit(s, loop, event{})
		after(time.Minute)
		f.want("a function that calls itself", f.states(loop), "map[success 1:17]")
	})
}

func TestCancel(t *testing.T) {
	test(t, func(f *fixture) {
		fn := f.function("w1", "a", api.FunctionSettings{})
		f.cfg.Concurrency = 1
		s, other := f.start(f.db), f.start(f.open(nil))
		running := f.submit(s, fn, event{Takes: time.Hour})
		after(time.Millisecond) // else their order would be any
		again := f.submit(s, fn, event{Takes: time.Hour})
		after(time.Millisecond)
		waiting := f.submit(s, fn, event{})
		after(6 * time.Second) // the other process looks
		f.want("before", f.states(fn), "map[queued 0:1 running 1:2]")
		for _, id := range []api.InvocationID{waiting.ID, waiting.ID, running.ID, again.ID} {
			run, err := other.Cancel(f.Context(), user, fn.ID, id) // one of them runs in the other process
			if err != nil || run.Status != api.RunCanceled || run.EndedAt == nil {
				t.Errorf("canceled: %+v, %v", run, err)
			}
		}
		if _, err := s.Cancel(f.Context(), auth2, fn.ID, running.ID); api.CodeOf(err) != api.NotFound {
			t.Errorf("run of others: %v", err)
		}
		after(time.Minute) // the heartbeat notices
		last := f.submit(s, fn, event{})
		after(time.Second)
		f.want("after", f.states(fn), "map[canceled 0:1 canceled 1:2 success 1:1]")
		if got, err := s.Cancel(f.Context(), user, fn.ID, last.ID); err != nil || got.Status != api.RunSuccess {
			t.Errorf("a run that has ended: %+v, %v", got, err)
		}
	})
}

// TestForget deletes a function: its runs end, and its queues have none.
func TestForget(t *testing.T) {
	test(t, func(f *fixture) {
		fn := f.function("w1", "a", api.FunctionSettings{})
		s := f.start(f.db)
		q := f.queue(s, "q", api.QueueSettings{FunctionID: api.FunctionID(fn.ID)})
		f.send(s, q, event{Takes: time.Hour}.json())
		f.submit(s, fn, event{Takes: time.Hour})
		if _, err := s.Submit(f.Context(), user, fn.ID, api.InvokeRequest{Async: true, DelaySeconds: 60}); err != nil {
			t.Fatal(err)
		}
		after(time.Second)
		for range 2 {
			if err := s.Forget(f.Context(), api.FunctionID(fn.ID)); err != nil {
				t.Fatal(err)
			}
		}
		after(time.Minute)
		f.want("runs", f.states(fn), "map[canceled 0:1 canceled 1:2]")
		got := f.receive(s, q, api.ReceiveRequest{})
		if len(got) != 1 || got[0].Attempt != 1 {
			t.Errorf("messages of the queue: %+v", got)
		}
	})
}

// TestRetention removes runs that ended long ago.
func TestRetention(t *testing.T) {
	test(t, func(f *fixture) {
		fn := f.function("w1", "a", api.FunctionSettings{})
		f.cfg.Exclusive, f.cfg.Retention = true, 48*time.Hour
		s := f.start(f.db)
		for range 3 {
			f.submit(s, fn, event{})
		}
		_, err := s.Submit(f.Context(), user, fn.ID, api.InvokeRequest{Async: true, DelaySeconds: 50 * 3600})
		if err != nil {
			t.Fatal(err)
		}
		after(47 * time.Hour)
		f.want("before", f.states(fn), "map[queued 0:1 success 1:3]")
		after(2 * time.Hour)
		f.want("after", f.states(fn), "map[queued 0:1]")
	})
}

func TestTooManyWait(t *testing.T) {
	test(t, func(f *fixture) {
		fn, other := f.function("w1", "a", api.FunctionSettings{}), f.function("w2", "a", api.FunctionSettings{})
		f.cfg.MaxQueued = 3
		s := f.prepare(f.db)
		for range 3 {
			f.submit(s, fn, event{})
		}
		_, err := s.Submit(f.Context(), user, fn.ID, api.InvokeRequest{Async: true})
		if e := api.AsError(err); err == nil || e.Code != api.RateLimited || e.Details["retry_after_seconds"] == nil {
			t.Errorf("one too many: %v", err)
		}
		f.submit(s, other, event{})
	})
}

// TestFair has a workspace that fills the queue, another one that calls one function much and one little, and a third.
func TestFair(t *testing.T) {
	test(t, func(f *fixture) {
		f.cfg.Concurrency = 8
		greedy := f.function("greedy", "a", api.FunctionSettings{})
		much := f.function("w2", "much", api.FunctionSettings{})
		little := f.function("w2", "little", api.FunctionSettings{})
		late := f.function("w3", "late", api.FunctionSettings{})
		s := f.start(f.db)
		for range 500 {
			f.submit(s, greedy, event{Takes: time.Minute})
		}
		after(time.Second)
		f.want("one workspace alone", f.states(greedy), "map[queued 0:496 running 1:4]")
		for range 100 {
			f.submit(s, much, event{Takes: time.Minute})
		}
		f.submit(s, little, event{Takes: time.Second})
		f.submit(s, late, event{Takes: time.Second})
		after(2 * time.Second)
		f.want("a third workspace", f.states(late), "map[success 1:1]")
		f.want("the second workspace", f.states(much), "map[queued 0:98 running 1:2]")
		after(time.Minute)
		f.want("its other function", f.states(little), "map[success 1:1]")
		after(30 * time.Minute)
		f.functions.mu.Lock()
		defer f.functions.mu.Unlock()
		count := map[string]int{}
		for _, w := range f.functions.starts {
			count[w]++
		}
		if count["greedy"] < 60 || count["w2"] < 60 {
			t.Errorf("runs after half an hour: %v", count)
		}
		if f.functions.most > 8 {
			t.Errorf("%d runs at a time", f.functions.most)
		}
	})
}

// TestMap invokes for many inputs, some at a time.
func TestMap(t *testing.T) {
	test(t, func(f *fixture) {
		fn := f.function("w1", "a", api.FunctionSettings{})
		s := f.start(f.db)
		req := api.MapRequest{Concurrency: 5}
		for i := range 300 {
			e := event{N: i, Takes: time.Duration(300-i) * time.Millisecond}
			if i%100 == 0 {
				e.Fails = 3
			}
			req.Inputs = append(req.Inputs, e.json())
		}
		seen, last := map[int]int{}, api.MapProgress{}
		err := s.Map(f.Context(), user, fn.ID, req, func(p api.MapProgress) error {
			if p.Run != nil {
				seen[*p.Index]++
				var e event
				if p.Run.Status == api.RunSuccess && (json.Unmarshal(p.Run.Result, &e) != nil || e.N != *p.Index) {
					t.Errorf("input %d has the result %s", *p.Index, p.Run.Result)
				}
				if p.Run.Trigger != "map" || p.Done != last.Done+1 {
					t.Errorf("progress %+v after %+v", p, last)
				}
			}
			last = p
			return nil
		})
		if err != nil || len(seen) != 300 || last.Run != nil || last.Done != 300 || last.Errors != 3 {
			t.Errorf("map: %v, %d inputs, last %+v", err, len(seen), last)
		}
		if f.functions.most != 5 {
			t.Errorf("%d runs at a time, want 5", f.functions.most)
		}
		gone := fmt.Errorf("gone")
		err = s.Map(f.Context(), user, fn.ID, req, func(api.MapProgress) error { return gone })
		after(10 * time.Minute)
		if err != gone || !strings.Contains(f.states(fn), "success 1:594") {
			t.Errorf("a caller that goes away: %v, %s", err, f.states(fn))
		}
		for name, bad := range map[string]api.MapRequest{
			"no input": {}, "version": {Inputs: req.Inputs[:1], Version: 9},
			"payload": {Inputs: []json.RawMessage{[]byte(`"` + strings.Repeat("x", api.MaxFunctionPayload) + `"`)}},
		} {
			err := s.Map(f.Context(), user, fn.ID, bad, func(api.MapProgress) error { t.Error(name); return nil })
			if err == nil {
				t.Errorf("%s: no error", name)
			}
		}
	})
}
