package hostevents_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/sandbox/hostevents"
)

// source is a host whose events are those of a channel.
type source chan hostapi.Event

func (s source) Events(ctx context.Context) (hostapi.Stream[hostapi.Event], error) {
	return hostapi.NewStream(ctx, func(ctx context.Context, send func(hostapi.Event) error) error {
		for {
			select {
			case e := <-s:
				if err := send(e); err != nil {
					return err
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}), nil
}

// recorder records events. Those of machine "slow" wait until open is closed.
type recorder struct {
	open chan struct{}
	mu   sync.Mutex
	got  []string
}

func (r *recorder) HandleEvent(ctx context.Context, e hostapi.Event) error {
	if e.Machine == "slow" {
		<-r.open
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, string(e.Machine)+" "+e.Type)
	return nil
}

func TestEventsOfOneMachineAreInOrderAndDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, r := source(make(chan hostapi.Event)), &recorder{open: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		d := hostevents.New(events, r, func() { t.Error("events were missed") }, slog.New(slog.DiscardHandler))
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		for _, e := range []hostapi.Event{
			{Machine: "slow", Type: "1"}, {Machine: "slow", Type: "2"}, {Machine: "fast", Type: "1"},
			{Machine: "fast", Type: "2"}, {Machine: "slow", Type: "3"},
		} {
			events <- e
		}
		synctest.Wait()
		if want := []string{"fast 1", "fast 2"}; !slices.Equal(r.got, want) {
			t.Errorf("handled while a machine is slow: %v, want %v", r.got, want)
		}
		close(r.open)
		synctest.Wait()
		if want := []string{"fast 1", "fast 2", "slow 1", "slow 2", "slow 3"}; !slices.Equal(r.got, want) {
			t.Errorf("handled in the end: %v, want %v", r.got, want)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}
