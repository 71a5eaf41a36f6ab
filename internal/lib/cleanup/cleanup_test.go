package cleanup_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/internal/lib/cleanup"
)

func TestSettleUnwindsLastFirst(t *testing.T) {
	var s cleanup.Stack
	var got []string
	broken := errors.New("broken")
	s.Push("one", func(context.Context) error { got = append(got, "one"); return nil })
	s.Push("two", func(context.Context) error { got = append(got, "two"); return broken })
	s.Push("three", func(ctx context.Context) error { got = append(got, "three"); return ctx.Err() })

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cause := errors.New("cause")
	err := s.Settle(ctx, cause)
	if !errors.Is(err, cause) || !errors.Is(err, broken) {
		t.Errorf("Settle: got error %v, want both the cause and the undo's error", err)
	}
	if errors.Is(err, context.Canceled) {
		t.Errorf("Settle: got error %v: an undo saw the cancelled context", err)
	}
	if want := []string{"three", "two", "one"}; !slices.Equal(got, want) {
		t.Errorf("got undo order %v, want %v", got, want)
	}
	if err := s.Unwind(t.Context()); err != nil || len(got) != 3 {
		t.Errorf("second Unwind: got %v, error %v", got, err)
	}
}

func TestSettleForgetsOnSuccess(t *testing.T) {
	var s cleanup.Stack
	s.Push("one", func(context.Context) error { t.Error("undo ran after success"); return nil })
	if err := s.Settle(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Unwind(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestForget(t *testing.T) {
	var s cleanup.Stack
	s.Push("one", func(context.Context) error { t.Error("undo ran after Forget"); return nil })
	s.Forget()
	cause := errors.New("cause")
	if err := s.Settle(t.Context(), cause); err != cause {
		t.Fatalf("Settle: got error %v, want the cause alone", err)
	}
}

func TestUnwindWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s cleanup.Stack
		last := false
		s.Push("last", func(context.Context) error { last = true; return nil })
		s.Push("slow", func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
		ended, cancel := context.WithCancel(t.Context())
		cancel() // must not limit the undo
		began := time.Now()
		err := s.UnwindWithin(ended, 5*time.Second)
		if err == nil || !strings.Contains(err.Error(), "slow: undo took longer than 5s") ||
			time.Since(began) != 5*time.Second {
			t.Errorf("UnwindWithin after %v: got error %v", time.Since(began), err)
		}
		if !last {
			t.Error("the undo after the slow one did not run")
		}
	})
}
