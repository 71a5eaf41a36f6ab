package sandbox_test

import (
	"errors"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// A workspace that opens all the streams that it can leaves the neighbour's share; closed streams are returned.
func TestStreamsAreShared(t *testing.T) {
	const total = 64
	streams := budget.New(budget.Config{
		Name: "streams", Total: total, Levels: []budget.Level{{Name: "workspace"}, {Name: "sandbox"}},
	})
	w := newFixture(t)
	w.budgets = activity.Budgets{Streams: streams}
	w.restart()
	guest := func(p auth.Principal) guestapi.Guest {
		t.Helper()
		b, err := w.Create(t.Context(), p, api.CreateRequest{Template: "base"})
		if err != nil {
			t.Fatal(err)
		}
		g, err := w.Guest(t.Context(), p, b.ID)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	var open []interface{ Close() error }
	for range 3 {
		g := guest(alice)
		for _, start := range []func() (interface{ Close() error }, error){
			func() (interface{ Close() error }, error) { return g.Watch(t.Context(), "/", "", false) },
			func() (interface{ Close() error }, error) { return g.DialPort(t.Context(), 7) },
			func() (interface{ Close() error }, error) {
				return g.Start(t.Context(), guestapi.ProcessSpec{Shell: "sleep 600"})
			},
		} {
			for range 2 * total {
				c, err := start()
				if errors.Is(err, guestapi.ErrBusy) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				open = append(open, c)
			}
		}
		if _, err := g.Stat(t.Context(), "/", ""); !errors.Is(err, guestapi.ErrBusy) {
			t.Errorf("a request of a sandbox that has its share of streams = %v, want %v", err, guestapi.ErrBusy)
		}
	}
	if used := streams.Used(); used != int64(len(open)) || used > total/2 {
		t.Errorf("%d streams are counted for the %d of one workspace, want at most %d", used, len(open), total/2)
	}
	g := guest(bob)
	p, err := g.Start(t.Context(), guestapi.ProcessSpec{Shell: "true"})
	if err != nil {
		t.Fatalf("the neighbour's Start() = %v", err)
	}
	for _, c := range append(open, p) {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if used := streams.Used(); used != 0 {
		t.Errorf("%d streams are counted after all were closed, want none", used)
	}
	if _, err := g.Stat(t.Context(), "/", ""); err != nil {
		t.Error(err)
	}
}
