package sandbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// interruptible are the verbs that a deletion interrupts, with the names that the host has for them.
var interruptible = map[string]func(w *fixture, id api.SandboxID) error{
	"fork": func(w *fixture, id api.SandboxID) error {
		_, err := w.Fork(w.t.Context(), alice, id, api.ForkRequest{Count: 2})
		return err
	},
	"pause": func(w *fixture, id api.SandboxID) error {
		_, err := w.Pause(w.t.Context(), alice, id)
		return err
	},
	"hibernate": func(w *fixture, id api.SandboxID) error {
		_, err := w.Hibernate(w.t.Context(), alice, id)
		return err
	},
	"takesnapshot": func(w *fixture, id api.SandboxID) error {
		_, err := w.TakeSnapshot(w.t.Context(), alice, id, api.SnapshotRequest{})
		return err
	},
}

// TestDeleteInterruptsOperations deletes a sandbox in the middle of every operation. The host ends the operation at
// once with what a host says of it, or not before the machine is destroyed, because a guest does not reply.
func TestDeleteInterruptsOperations(t *testing.T) {
	for name, do := range interruptible {
		for how, answer := range map[string]func(ctx context.Context, destroyed <-chan struct{}) error{
			"ends with the request": func(ctx context.Context, _ <-chan struct{}) error {
				<-ctx.Done()
				return context.Canceled
			},
			"ends with the machine": func(_ context.Context, destroyed <-chan struct{}) error {
				<-destroyed
				return hostapi.ErrNotFound
			},
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				w := newFixture(t)
				s := w.create(alice, api.CreateRequest{})
				begun, destroyed := make(chan struct{}), make(chan struct{})
				w.host.SetHook(func(ctx context.Context, op, id string, after bool) error {
					switch {
					case op == name && !after:
						close(begun)
						return answer(ctx, destroyed)
					case op == "destroy" && id == string(s.ID) && !after:
						select {
						case <-destroyed:
						default:
							close(destroyed)
						}
					}
					return nil
				})
				result := make(chan error, 1)
				go func() { result <- do(w, s.ID) }()
				select {
				case <-begun:
				case err := <-result:
					t.Fatalf("the host was not asked to %s: %v", name, err)
				}
				if err := w.Delete(t.Context(), alice, s.ID); err != nil {
					t.Fatalf("Delete() = %v", err)
				}
				wantCode(t, <-result, api.Conflict, "the operation that the deletion interrupted")
				if got := w.status(alice, s.ID); got != api.Deleted {
					t.Errorf("the sandbox is %s, want it deleted", got)
				}
				_, err := w.Get(t.Context(), alice, s.ID)
				if e := api.AsError(err); e == nil || e.Details["reason"] != "deleted" {
					t.Errorf("after the deletion: %v, want a tombstone with the reason deleted", err)
				}
			})
		}
	}
}

// TestConcurrentDeletes deletes a sandbox with several calls at once while an operation hangs; all of them succeed.
func TestConcurrentDeletes(t *testing.T) {
	w := newFixture(t)
	s := w.create(alice, api.CreateRequest{})
	begun, destroyed := make(chan struct{}), make(chan struct{})
	w.host.SetHook(func(_ context.Context, op, id string, after bool) error {
		switch {
		case op == "pause" && !after:
			close(begun)
			<-destroyed
			return errors.New("gone")
		case op == "destroy" && after:
			select {
			case <-destroyed:
			default:
				close(destroyed)
			}
		}
		return nil
	})
	go func() { _, _ = w.Pause(t.Context(), alice, s.ID) }()
	<-begun
	results := make(chan error, 4)
	for range cap(results) {
		go func() { results <- w.Delete(t.Context(), alice, s.ID) }()
	}
	for range cap(results) {
		if err := <-results; err != nil {
			t.Errorf("Delete() = %v", err)
		}
	}
}
