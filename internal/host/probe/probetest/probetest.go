// Package probetest lets tests say what they need of the machine, and skip where it lacks that.
//
// It owns no knowledge of its own: a test skips when, and only when, a probe of package probe fails, and
// the message names it. A test that needs nothing has no business here.
package probetest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/host/probe"
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

// HugePages has the host keep so many pages of 2 MiB ready until the test ends, and skips it where there is no room
// for them.
func HugePages(t testing.TB, count int) {
	t.Helper()
	const pool = "/proc/sys/vm/nr_hugepages"
	before, err := os.ReadFile(pool)
	if err != nil {
		t.Skipf("probe hugepages: %v", err)
	}
	t.Cleanup(func() { _ = os.WriteFile(pool, before, 0) }) // what is in use goes when it is freed
	if err := os.WriteFile(pool, fmt.Appendf(nil, "%d", count), 0); err != nil {
		t.Skipf("probe hugepages: %v", err)
	}
	if got, err := os.ReadFile(pool); err != nil || strings.TrimSpace(string(got)) != fmt.Sprint(count) {
		t.Skipf("probe hugepages: this machine has no room for %d huge pages: %s, %v", count, got, err)
	}
}
