// Package probetest lets tests say what they need of the machine, and skip where it lacks that.
//
// It owns no knowledge of its own: a test skips when, and only when, a probe of package probe fails, and
// the message names it. A test that needs nothing has no business here.
package probetest

import (
	"testing"

	"github.com/pandastack/pandastack/internal/probe"
)

// Need skips the test unless all named probes of this machine pass; a warning passes. c may be zero for
// probes that look at nothing in it.
func Need(t testing.TB, c probe.Config, names ...string) {
	t.Helper()
	list, err := probe.Find(probe.All(c), names...)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range probe.Run(t.Context(), list, nil) {
		if r.Level == probe.Fail {
			t.Skipf("probe %s: %s; %s", r.Name, r.Text, r.Fix)
		}
	}
}
