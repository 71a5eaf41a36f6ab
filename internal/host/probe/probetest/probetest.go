// Package probetest lets tests declare their needs of the machine, and skips them where it lacks those.
//
// It has no knowledge of its own: a test skips if and only if a probe of package probe fails, and the message names
// the probe. A test without needs does not use this package.
package probetest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/host/probe"
)

// Need skips the test unless all named probes of this machine pass; a warning passes. c may be zero for probes that
// do not use it.
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

// HugePages reserves pages of 2 MiB on the host until the test ends. It skips the test if there is no room for them.
func HugePages(t testing.TB, count int) {
	t.Helper()
	const pool = "/proc/sys/vm/nr_hugepages"
	before, err := os.ReadFile(pool)
	if err != nil {
		t.Skipf("probe hugepages: %v", err)
	}
	t.Cleanup(func() { _ = os.WriteFile(pool, before, 0) }) // pages in use are returned when they are freed
	if err := os.WriteFile(pool, fmt.Appendf(nil, "%d", count), 0); err != nil {
		t.Skipf("probe hugepages: %v", err)
	}
	if got, err := os.ReadFile(pool); err != nil || strings.TrimSpace(string(got)) != fmt.Sprint(count) {
		t.Skipf("probe hugepages: this machine has no room for %d huge pages: %s, %v", count, got, err)
	}
}
