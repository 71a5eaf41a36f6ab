package envd

import (
	"context"
	"errors"
	"testing"

	"github.com/pandastack/pandastack/internal/guestapi"
)

// slow is a guest whose killed process ends after some looks at it.
type slow struct {
	guestapi.Guest
	looks int
	err   error
}

func (s *slow) Processes(context.Context) ([]guestapi.ProcessInfo, error) {
	s.looks--
	killed := guestapi.ProcessInfo{PID: 7, Tag: "job"}
	if s.looks < 0 {
		killed.Exit = &guestapi.Exit{Signal: 9}
	}
	return []guestapi.ProcessInfo{{PID: 8}, killed}, s.err
}

// TestWhoKillsFindsNothing: the answer to a kill comes when the process does not run any more.
func TestWhoKillsFindsNothing(t *testing.T) {
	for _, ref := range []guestapi.ProcessRef{{PID: 7}, {Tag: "job"}} {
		g := &slow{looks: 3}
		if err := awaitEnd(t.Context(), g, ref); err != nil || g.looks != -1 {
			t.Errorf("%+v: %v with %d looks left, want none", ref, err, g.looks+1)
		}
	}
	lost := errors.New("lost")
	if err := awaitEnd(t.Context(), &slow{err: lost}, guestapi.ProcessRef{PID: 7}); !errors.Is(err, lost) {
		t.Errorf("a guest that is lost: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := awaitEnd(ctx, &slow{looks: 100}, guestapi.ProcessRef{PID: 7}); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that left: %v", err)
	}
}
