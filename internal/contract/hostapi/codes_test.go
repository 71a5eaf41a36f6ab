package hostapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

func TestErrorsSurviveTheWire(t *testing.T) {
	for _, want := range []error{
		guestapi.ErrLost, hostapi.ErrNotFound, hostapi.ErrExists, hostapi.ErrWrongState, hostapi.ErrNoCapacity,
		hostapi.ErrNoSpace, hostapi.ErrInvalid, hostapi.ErrUnsupported, hostapi.ErrInUse, hostapi.ErrUnavailable,
		context.Canceled, context.DeadlineExceeded,
	} {
		data, err := json.Marshal(hostapi.EncodeError(fmt.Errorf("machine a: %w", want)))
		if err != nil {
			t.Fatal(err)
		}
		var got *hostapi.Error
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(got, want) || got.Error() != "machine a: "+want.Error() {
			t.Errorf("%s decodes to %q, want it to be %q", data, got, want)
		}
	}
	limit := &hostapi.LimitError{Field: "disk_mib", Asked: 2, Host: 1}
	e := hostapi.EncodeError(&hostapi.PublishError{Step: "warm", Err: limit})
	got, ok := errors.AsType[*hostapi.LimitError](e)
	if !ok || *got != *limit || !errors.Is(e, hostapi.ErrInvalid) {
		t.Errorf("encoded %v has the limit %v, want %v", e, got, limit)
	}
	if p, ok := errors.AsType[*hostapi.PublishError](e); !ok || p.Step != "warm" {
		t.Errorf("encoded %v has the step of %v, want warm", e, p)
	}
	if e := hostapi.EncodeError(errors.New("other")); e.Code != "" || e.Error() != "other" {
		t.Errorf("EncodeError of an error without a code = %+v", e)
	}
}

func TestStream(t *testing.T) {
	boom := errors.New("boom")
	s := hostapi.NewStream(t.Context(), func(_ context.Context, send func(int) error) error {
		return errors.Join(send(1), send(2), boom)
	})
	for want := 1; want <= 2; want++ {
		if got, err := s.Recv(t.Context()); got != want || err != nil {
			t.Errorf("Recv() = %d, %v, want %d", got, err, want)
		}
	}
	if _, err := s.Recv(t.Context()); !errors.Is(err, boom) {
		t.Errorf("Recv() after the producer failed = %v, want its error", err)
	}
	ended := hostapi.NewStream(t.Context(), func(context.Context, func(int) error) error { return nil })
	if _, err := ended.Recv(t.Context()); err != io.EOF {
		t.Errorf("Recv() after the producer ended = %v, want EOF", err)
	}
	stopped := false
	open := hostapi.NewStream(t.Context(), func(ctx context.Context, _ func(int) error) error {
		<-ctx.Done()
		stopped = true
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := open.Recv(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Recv() with a cancelled context = %v", err)
	}
	if err := open.Close(); err != nil || !stopped {
		t.Errorf("Close() = %v, and the producer has stopped: %v, want true", err, stopped)
	}
}
