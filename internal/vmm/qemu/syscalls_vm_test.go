//go:build vm

package qemu_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/vmm/qemu"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// refusedCalls collects the system calls that monitors made and that their policy does not allow.
type refusedCalls struct {
	mu    sync.Mutex
	calls map[string][]jail.RefusedCall // by what describe returns
}

// describe returns the name of a call, with the arguments on which its policy depends.
func describe(c jail.RefusedCall) string {
	switch c.Name {
	case "clone", "prctl", "socket":
		return fmt.Sprintf("%s(%#x)", c.Name, c.Args[0])
	case "ioctl":
		return fmt.Sprintf("%s(%#x)", c.Name, c.Args[1])
	}
	return c.Name
}

func (r *refusedCalls) add(c jail.RefusedCall) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = map[string][]jail.RefusedCall{}
	}
	r.calls[describe(c)] = append(r.calls[describe(c)], c)
}

// report fails the test for each collected call. With -qemu.record it prints them instead, and those of them that are
// not allowed.
func (r *refusedCalls) report(t testing.TB) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Sorted(maps.Keys(r.calls))
	var lacking []string
	for _, call := range all {
		if !*record {
			t.Errorf("%d calls of %s were refused, want it allowed or never made", len(r.calls[call]), call)
		} else if !qemu.Allows(t, r.calls[call][0]) {
			lacking = append(lacking, call)
		}
	}
	if *record {
		t.Logf("monitors made these calls: %s", strings.Join(all, " "))
		t.Logf("of these, not allowed: %s", strings.Join(lacking, " "))
	}
}

// testFilters checks that a monitor has the filter of its jail and that of QEMU's sandbox, once each, however it was
// started.
func testFilters(t *testing.T, h *vmmtest.Host) {
	m := h.Restore(t)
	for _, m := range append(h.Fork(t, m, 1), m) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.PID()))
		if err != nil {
			t.Fatal(err)
		}
		want := 2
		if *record { // both filters of the jail
			want++
		}
		if !strings.Contains(string(status), fmt.Sprintf("Seccomp_filters:\t%d\n", want)) {
			t.Errorf("got status %s of the monitor, want %d filters", status, want)
		}
	}
}
