package app_test

import (
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
)

// calls returns the calls of the host since the first n.
func (w *fixture) calls(n int) (ops []string) {
	for _, call := range w.host.Calls()[n:] {
		op, _, _ := strings.Cut(call, " ")
		ops = append(ops, op)
	}
	return ops
}

// TestRehearsal checks that the program of a deployment is restored, and responds to requests, before it is captured.
func TestRehearsal(t *testing.T) {
	for _, on := range []bool{true, false} {
		w := newFixture(t, func(w *fixture) { w.cfg.Rehearse = on })
		a := w.made(func(r *api.CreateAppRequest) { r.RestoreHook = "/restored" })
		before := len(w.host.Calls())
		w.live(a, "one")
		got, want := strings.Join(w.calls(before), " "), "hibernate wake takesnapshot"
		if strings.Contains(got, want) != on || !strings.HasSuffix(got, "takesnapshot") {
			t.Errorf("rehearsal %v: %s", on, got)
		}
		posts := w.read(a, w.ready(a)[0].Sandbox, "/srv/posts")
		if on && posts != "/restored\n" {
			t.Errorf("the hook was called for %q", posts)
		}
	}
}
