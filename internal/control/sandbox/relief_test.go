package sandbox_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/sandbox"
)

// TestRelieveMemory checks which sandboxes are hibernated while the host is short of memory: those whose policy allows
// it, and the one that was idle for longest first.
func TestRelieveMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, func(c *sandbox.Config) { c.IdleHibernate = 24 * time.Hour })
		hour := int64(3600)
		boxes := map[string]api.CreateRequest{
			"plain":      {TTLSeconds: p(hour)},
			"ends":       {TTLSeconds: p(hour), TimeoutSeconds: hour, OnTimeout: api.TimeoutHibernate},
			"persistent": {Persistent: true},
			"older":      {Persistent: true},
			"used":       {Persistent: true},
		}
		ids := map[string]api.SandboxID{}
		for _, name := range []string{"older", "plain", "ends", "persistent", "used"} {
			ids[name] = w.create(alice, boxes[name]).ID
			<-time.After(time.Second)
		}
		<-time.After(5 * time.Minute)
		if err := w.Touch(t.Context(), alice, ids["used"]); err != nil {
			t.Fatal(err)
		}
		check := func(when string, hibernated ...string) {
			t.Helper()
			if err := w.RelieveMemory(t.Context()); err != nil {
				t.Fatal(err)
			}
			want := map[string]bool{}
			for _, name := range hibernated {
				want[name] = true
			}
			for name, id := range ids {
				if got := w.status(alice, id); (got == api.Hibernated) != want[name] {
					t.Errorf("%s: sandbox %s is %s; want these hibernated: %v", when, name, got, hibernated)
				}
			}
		}
		check("enough memory")
		w.host.SetMemoryShort(true)
		check("short of memory", "older", "ends")
		check("still short", "older", "ends", "persistent")
		check("nothing left to do", "older", "ends", "persistent")
	})
}
