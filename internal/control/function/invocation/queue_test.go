package invocation_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/function/invocation"
)

var auth2 = auth.Principal{Workspace: "w2"}

func (f *fixture) queue(s *process, name string, set api.QueueSettings) string {
	f.Helper()
	if _, err := s.CreateQueue(f.Context(), user, api.CreateQueueRequest{Name: name, Settings: set}); err != nil {
		f.Fatal(err)
	}
	return name
}

func (f *fixture) send(s *process, q string, bodies ...json.RawMessage) []string {
	f.Helper()
	var req api.SendRequest
	for _, b := range bodies {
		req.Messages = append(req.Messages, api.NewQueueMessage{Body: b})
	}
	out, err := s.Send(f.Context(), user, q, req)
	if err != nil {
		f.Fatal(err)
	}
	return out.IDs
}

func (f *fixture) receive(s *process, q string, req api.ReceiveRequest) []api.QueueMessage {
	f.Helper()
	out, err := s.Receive(f.Context(), user, q, req)
	if err != nil {
		f.Fatal(err)
	}
	return out.Messages
}

// counts says how many messages of a queue are visible, in flight and delayed.
func (f *fixture) counts(s *process, name string) string {
	f.Helper()
	q, err := s.Queue(f.Context(), user, name)
	if err != nil {
		f.Fatal(err)
	}
	return fmt.Sprint(q.Visible, q.InFlight, q.Delayed)
}

func TestVisibility(t *testing.T) {
	test(t, func(f *fixture) {
		s, other := f.prepare(f.db), f.prepare(f.open(nil))
		dead := f.queue(s, "dead", api.QueueSettings{})
		q := f.queue(s, "q", api.QueueSettings{VisibilitySeconds: 10, MaxAttempts: 2, DeadLetter: dead})
		ids := f.send(s, q, json.RawMessage(`1`), json.RawMessage(`2`), json.RawMessage(`3`))
		first := f.receive(s, q, api.ReceiveRequest{Max: 2})
		rest := f.receive(other, q, api.ReceiveRequest{})
		if len(first) != 2 || len(rest) != 1 || first[0].Attempt != 1 {
			t.Fatalf("received %+v and %+v", first, rest)
		}
		f.want("all are in flight", f.counts(s, q), "0 3 0")
		err := s.Ack(f.Context(), user, q, api.AckRequest{Receipts: []string{first[0].Receipt, "x"}})
		if err != nil {
			t.Error(err)
		}
		f.want("one was acknowledged", f.counts(s, q), "0 2 0")
		err = s.Extend(f.Context(), user, q, api.ExtendRequest{Receipt: first[1].Receipt, VisibilitySeconds: 60})
		if err != nil {
			t.Error(err)
		}
		after(11 * time.Second)
		f.want("one can be received again", f.counts(s, q), "1 1 0")
		if err := s.Ack(f.Context(), user, q, api.AckRequest{Receipts: []string{rest[0].Receipt}}); err != nil {
			t.Error(err)
		}
		f.want("an expired receipt acknowledges nothing", f.counts(s, q), "1 1 0")
		err = s.Extend(f.Context(), user, q, api.ExtendRequest{Receipt: rest[0].Receipt, VisibilitySeconds: 60})
		if api.CodeOf(err) != api.NotFound {
			t.Errorf("an expired receipt was extended: %v", err)
		}
		again := f.receive(s, q, api.ReceiveRequest{VisibilitySeconds: 3})
		if len(again) != 1 || again[0].ID != rest[0].ID || again[0].Attempt != 2 ||
			again[0].Receipt == rest[0].Receipt {
			t.Errorf("received again: %+v", again)
		}
		after(4 * time.Second)
		if got := f.receive(s, q, api.ReceiveRequest{}); len(got) != 0 {
			t.Errorf("a third attempt: %+v", got)
		}
		letters := f.receive(s, dead, api.ReceiveRequest{})
		if len(letters) != 1 || letters[0].ID != again[0].ID || letters[0].Attempt != 1 ||
			string(letters[0].Body) != string(again[0].Body) {
			t.Errorf("dead letters: %+v; sent %v", letters, ids)
		}
		if _, err := s.Receive(f.Context(), auth2, q, api.ReceiveRequest{}); api.CodeOf(err) != api.NotFound {
			t.Errorf("a queue of others: %v", err)
		}
	})
}

func TestSend(t *testing.T) {
	test(t, func(f *fixture) {
		s := f.prepare(f.db)
		q := f.queue(s, "q", api.QueueSettings{RetentionSeconds: 3600})
		m := api.NewQueueMessage{Body: json.RawMessage(`{}`), IdempotencyKey: "k", DelaySeconds: 5}
		out, err := s.Send(f.Context(), user, q, api.SendRequest{Messages: []api.NewQueueMessage{m, m}})
		if err != nil || len(out.IDs) != 2 || out.IDs[0] != out.IDs[1] {
			t.Fatalf("sent %v, %v", out, err)
		}
		f.want("delayed", f.counts(s, q), "0 0 1")
		began := time.Now()
		got := f.receive(s, q, api.ReceiveRequest{WaitSeconds: 20})
		if waited := time.Since(began); len(got) != 1 || waited < 5*time.Second || waited > 6*time.Second {
			t.Errorf("received %+v after %s", got, waited)
		}
		began = time.Now()
		got = f.receive(s, q, api.ReceiveRequest{WaitSeconds: 3})
		if len(got) != 0 || time.Since(began) != 3*time.Second {
			t.Errorf("received %+v after %s", got, time.Since(began))
		}
		go func() {
			<-time.After(100 * time.Millisecond)
			f.send(s, q, json.RawMessage(`"b"`))
		}()
		began = time.Now()
		got = f.receive(s, q, api.ReceiveRequest{WaitSeconds: 3})
		if len(got) != 1 || time.Since(began) > time.Second/2 {
			t.Errorf("received %+v after %s", got, time.Since(began))
		}
		after(time.Hour)
		f.want("too old", f.counts(s, q), "0 0 0")
		if err := s.DeleteQueue(f.Context(), user, q); err != nil {
			t.Error(err)
		}
		if _, err := s.Queue(f.Context(), user, q); api.CodeOf(err) != api.NotFound {
			t.Errorf("deleted queue: %v", err)
		}
	})
}

// TestAttached sends messages to a queue with a function: those that fail are in a later batch, and in the end dead
// letters.
func TestAttached(t *testing.T) {
	test(t, func(f *fixture) {
		fn := f.function("w1", "a", api.FunctionSettings{})
		s := f.start(f.db)
		f.functions.answer = func(b invocation.Batch) (any, bool) {
			var out invocation.BatchResult
			for _, m := range b.Messages {
				switch string(m.Body) {
				case `"raise"`:
					return nil, false
				case `"bad"`:
					out.Failed = append(out.Failed, m.ID)
				}
			}
			return out, true
		}
		dead := f.queue(s, "dead", api.QueueSettings{})
		q := f.queue(s, "q", api.QueueSettings{
			FunctionID: api.FunctionID(fn.ID), BatchSize: 4, MaxAttempts: 3, DeadLetter: dead,
		})
		var bodies []json.RawMessage
		for range 6 {
			bodies = append(bodies, json.RawMessage(`"good"`))
		}
		f.send(s, q, append(bodies, json.RawMessage(`"bad"`))...)
		after(time.Second)
		f.want("a message has failed", f.counts(s, q), "0 0 1")
		f.want("runs", f.states(fn), "map[success 1:2]")
		after(2 * time.Minute)
		f.want("all attempts", f.states(fn), "map[success 1:4]")
		f.want("the queue", f.counts(s, q), "0 0 0")
		f.want("dead letters", f.counts(s, dead), "1 0 0")
		f.send(s, q, json.RawMessage(`"raise"`))
		after(2 * time.Minute)
		f.want("a batch that fails", f.states(fn), "map[error 1:3 success 1:4]")
		f.want("dead letters", f.counts(s, dead), "2 0 0")
		if f.functions.queue != q {
			t.Errorf("the function was called for queue %q", f.functions.queue)
		}
		if _, err := s.Receive(f.Context(), user, q, api.ReceiveRequest{}); api.CodeOf(err) != api.Conflict {
			t.Errorf("receive from a queue with a function: %v", err)
		}
	})
}

func TestBadQueues(t *testing.T) {
	test(t, func(f *fixture) {
		s := f.prepare(f.db)
		f.queue(s, "q", api.QueueSettings{})
		for name, tc := range map[string]struct {
			name string
			set  api.QueueSettings
			code api.Code
		}{
			"name taken":  {"q", api.QueueSettings{}, api.Conflict},
			"name":        {"a b", api.QueueSettings{}, api.Invalid},
			"function":    {"r", api.QueueSettings{FunctionID: api.NewFunctionID()}, api.Invalid},
			"dead letter": {"r", api.QueueSettings{DeadLetter: "none"}, api.Invalid},
		} {
			req := api.CreateQueueRequest{Name: tc.name, Settings: tc.set}
			if _, err := s.CreateQueue(f.Context(), user, req); api.CodeOf(err) != tc.code {
				t.Errorf("%s: %v", name, err)
			}
		}
		req := api.UpdateQueueRequest{Settings: api.QueueSettings{DeadLetter: "q"}}
		_, err := s.UpdateQueue(f.Context(), user, "q", req)
		if api.CodeOf(err) != api.Invalid {
			t.Errorf("a queue for its own dead letters: %v", err)
		}
	})
}
