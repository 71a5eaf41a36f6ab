package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/sandbox"
)

// creates counts how often the host was asked for a machine.
func (w *fixture) creates() (n int) {
	for _, c := range w.host.Calls() {
		if strings.HasPrefix(c, "create ") {
			n++
		}
	}
	return n
}

func TestIdempotency(t *testing.T) { checkIdempotency(t, newFixture(t)) }

func checkIdempotency(t *testing.T, w *fixture) {
	w.t = t
	ctx := t.Context()
	req := api.CreateRequest{
		IdempotencyKey: "k",
		Metadata:       map[string]string{"a": "1", "b": "2"},
		Env:            map[string]string{"X": "1"},
	}
	var mu sync.Mutex
	ids := map[api.SandboxID]bool{}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			s, err := w.Create(ctx, alice, req)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			ids[s.ID] = true
		})
	}
	wg.Wait()
	if len(ids) != 1 || w.creates() != 1 {
		t.Fatalf("20 calls gave %d sandboxes and %d creates, want one", len(ids), w.creates())
	}
	for name, change := range map[string]func(*api.CreateRequest){
		"metadata": func(r *api.CreateRequest) { r.Metadata = map[string]string{"a": "2"} },
		"env":      func(r *api.CreateRequest) { r.Env = nil },
		"ttl":      func(r *api.CreateRequest) { r.TTLSeconds = p(int64(1)) },
		"template": func(r *api.CreateRequest) { r.Template = "base" },
	} {
		other := req
		change(&other)
		_, err := w.Create(ctx, alice, other)
		wantCode(t, err, api.Conflict, "another "+name+" under the same key")
	}
	if s := w.create(bob, req); ids[s.ID] {
		t.Error("the key of one workspace answered another")
	}
}

func TestFailedCreateFreesItsKey(t *testing.T) {
	w := newFixture(t)
	w.host.Fail("create", hostapi.ErrNoCapacity)
	req := api.CreateRequest{IdempotencyKey: "k"}
	_, err := w.Create(t.Context(), alice, req)
	wantCode(t, err, api.NoCapacity, "first try")
	if s := w.create(alice, req); s.Status != api.Running {
		t.Errorf("second try gave %+v", s)
	}
}

// gate stops the operation op until it is opened.
func (w *fixture) gate(op string) (reached <-chan struct{}, open func()) {
	at, gate := make(chan struct{}, 100), make(chan struct{})
	w.host.SetHook(hosttest.Hook(func(ctx context.Context, did, id string, after bool) error {
		if did != op || after {
			return nil
		}
		at <- struct{}{}
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}))
	return at, sync.OnceFunc(func() { close(gate) })
}

func TestDeleteInterruptsCreate(t *testing.T) {
	w := newFixture(t)
	reached, open := w.gate("create")
	defer open()
	made := make(chan error, 1)
	go func() {
		_, err := w.Create(t.Context(), alice, api.CreateRequest{})
		made <- err
	}()
	<-reached
	page, err := w.List(t.Context(), alice, api.SandboxFilter{})
	if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].Status != api.Creating {
		t.Fatalf("while it is created the list is %+v, %v", page, err)
	}
	if err := w.Delete(t.Context(), alice, page.Sandboxes[0].ID); err != nil {
		t.Errorf("delete of one that is being created: %v", err)
	}
	wantCode(t, <-made, api.Conflict, "the create that was interrupted")
	w.clean()
}

func TestCallerLeaves(t *testing.T) {
	w := newFixture(t)
	for _, op := range []string{"create", "fork", "takesnapshot", "hibernate"} {
		s := w.create(alice, api.CreateRequest{})
		reached, open := w.gate(op)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			var err error
			switch op {
			case "create":
				_, err = w.Create(ctx, alice, api.CreateRequest{})
			case "fork":
				_, err = w.Fork(ctx, alice, s.ID, api.ForkRequest{Count: 2})
			case "takesnapshot":
				_, err = w.TakeSnapshot(ctx, alice, s.ID, api.SnapshotRequest{})
			case "hibernate":
				_, err = w.Hibernate(ctx, alice, s.ID)
			}
			done <- err
		}()
		<-reached
		cancel()
		wantCode(t, <-done, api.Canceled, op+" whose caller left")
		open()
		w.host.SetHook(nil)
		if got := w.status(alice, s.ID); got != api.Running {
			t.Errorf("%s: the sandbox is %s, want running", op, got)
		}
		w.clean(s.ID)
		if err := w.Delete(t.Context(), alice, s.ID); err != nil {
			t.Fatal(err)
		}
	}
	w.snapshotsMatch(0)
}

func TestOneWakeForMany(t *testing.T) {
	w := newFixture(t)
	s := w.create(alice, api.CreateRequest{})
	if _, err := w.Hibernate(t.Context(), alice, s.ID); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := w.Guest(t.Context(), alice, s.ID); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wakes := 0
	for _, c := range w.host.Calls() {
		if strings.HasPrefix(c, "wake ") {
			wakes++
		}
	}
	if wakes != 1 {
		t.Errorf("20 waiters woke it %d times, want once", wakes)
	}
}

// TestStorm lets everything happen to a few sandboxes at once; afterwards store and host agree.
func TestStorm(t *testing.T) { checkStorm(t, newFixture(t)) }

func checkStorm(t *testing.T, w *fixture) {
	w.t = t
	w.run()
	ctx := t.Context()
	ids := []api.SandboxID{}
	for range 4 {
		ids = append(ids, w.create(alice, api.CreateRequest{Persistent: true}).ID)
	}
	var wg sync.WaitGroup
	for worker := range 6 {
		wg.Go(func() {
			for n := range 12 {
				id := ids[(worker+n)%len(ids)]
				var err error
				switch (worker*5 + n) % 8 {
				case 0:
					_, err = w.Pause(ctx, alice, id)
				case 1:
					_, err = w.Resume(ctx, alice, id)
				case 2:
					_, err = w.Hibernate(ctx, alice, id)
				case 3:
					_, err = w.Wake(ctx, alice, id)
				case 4:
					_, err = w.Guest(ctx, alice, id)
				case 5:
					_, err = w.Fork(ctx, alice, id, api.ForkRequest{})
				case 6:
					err = w.Reconcile(ctx)
				case 7:
					w.host.Kill(hostapi.MachineID(id), "storm")
				}
				switch code := api.CodeOf(err); code {
				case "", api.WrongState:
				default:
					t.Errorf("worker %d, step %d: %s: %v", worker, n, code, err)
				}
			}
		})
	}
	wg.Wait()
	w.until("store and host agree", func() bool { // deaths may still be acted on
		if err := w.Reconcile(ctx); err != nil {
			t.Fatal(err)
		}
		return w.agree()
	})
	page, err := w.List(ctx, alice, api.SandboxFilter{})
	if err != nil {
		t.Fatal(err)
	}
	var have []api.SandboxID
	for _, s := range page.Sandboxes {
		have = append(have, s.ID)
	}
	w.clean(have...)
	for _, id := range ids {
		if w.status(alice, id) == api.Deleted {
			t.Errorf("persistent sandbox %s is gone", id)
		}
	}
	for _, id := range have {
		wg.Go(func() {
			if err := w.Delete(ctx, alice, id); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	w.clean()
}

func TestFollowEvents(t *testing.T) { checkFollowEvents(t, newFixture(t)) }

func checkFollowEvents(t *testing.T, w *fixture) {
	w.t = t
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	s := w.create(alice, api.CreateRequest{})
	got := make(chan string, 100)
	done := make(chan error, 1)
	go func() {
		done <- w.FollowEvents(ctx, alice, s.ID, sandbox.EventQuery{Tail: 1}, func(e sandbox.Event) error {
			got <- fmt.Sprint(e.Seq, e.Type)
			return nil
		})
	}()
	if first := <-got; first != "2sandbox.running" {
		t.Errorf("first %s, want the last one that was there", first)
	}
	for range 3 {
		if _, err := w.Pause(ctx, alice, s.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Resume(ctx, alice, s.ID); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Delete(ctx, alice, s.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("follow ended with %v, want nil after the last event", err)
	}
	close(got)
	n := 2
	last := ""
	for e := range got {
		n++
		if !strings.HasPrefix(e, fmt.Sprint(n)) {
			t.Errorf("event %s, want number %d", e, n)
		}
		last = e
	}
	if last != "9sandbox.deleted" {
		t.Errorf("last %s, want 9sandbox.deleted", last)
	}
	stop := errors.New("stop")
	if err := w.FollowEvents(ctx, alice, s.ID, sandbox.EventQuery{},
		func(sandbox.Event) error { return stop }); !errors.Is(
		err,
		stop,
	) {
		t.Errorf("follow returned %v, want the error of yield", err)
	}
}

func TestAfterDeath(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	s := w.create(alice, api.CreateRequest{Metadata: map[string]string{"a": "1", "secret.k": "v"}})
	w.exec(alice, s.ID, "echo one; exit 3")
	g, err := w.Guest(ctx, alice, s.ID)
	if err != nil {
		t.Fatal(err)
	}
	long, err := g.Start(ctx, guestapi.ProcessSpec{Argv: []string{"sleep", "1000"}, Tag: "job"})
	if err != nil {
		t.Fatal(err)
	}
	defer long.Close()
	alive, err := w.Logs(ctx, alice, s.ID)
	if err != nil || alive.Tombstone != nil || len(alive.Processes) != 2 ||
		!strings.Contains(alive.Console, "console of") {
		t.Errorf("logs of the living %+v, %v", alive, err)
	}
	if err := w.Delete(ctx, alice, s.ID); err != nil {
		t.Fatal(err)
	}
	w.restart()
	dead, err := w.Logs(ctx, alice, s.ID)
	if err != nil || dead.Tombstone == nil || dead.Console != alive.Console || len(dead.Processes) != 2 {
		t.Fatalf("logs of the dead %+v, %v", dead, err)
	}
	if e := dead.Processes[0]; !e.Exited || e.Code != 3 || e.Stdout != "one\n" || e.Command != "echo one; exit 3" {
		t.Errorf("first process %+v", e)
	}
	if e := dead.Processes[1]; e.Exited || e.Tag != "job" || e.Command != "sleep 1000" {
		t.Errorf("second process %+v: it ran to the end", e)
	}
	if u := dead.Tombstone.Usage; u == nil || u.PID == 0 {
		t.Errorf("last usage %+v, want what it took", u)
	}
	if m := dead.Tombstone.Metadata; m["a"] != "1" || m["secret.k"] == "v" {
		t.Errorf("metadata %v", m)
	}
	_, err = w.Pause(ctx, alice, s.ID)
	if e := wantCode(t, err, api.NotFound, "pause of the dead"); e.Details["ended_at"] == nil ||
		e.Details["message"] == nil {
		t.Errorf("details %v", e.Details)
	}
	_, err = w.Explain(ctx, alice, w.create(alice, api.CreateRequest{}).ID)
	wantCode(t, err, api.NotFound, "the end of the living")
}
