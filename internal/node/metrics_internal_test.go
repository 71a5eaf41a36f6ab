package node

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
)

// gather returns all gauges and counters, by name followed by the label values.
func gather(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			all[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

func TestMetrics(t *testing.T) {
	host := hosttest.New()
	t.Cleanup(host.Close)
	n := newNode(t)
	reg, observe, err := n.metrics(host)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := host.Create(t.Context(), hostapi.Create{ID: "sbxa", Template: "base"}); err != nil {
		t.Fatal(err)
	}
	observe("create", "", time.Second)
	observe("fork", api.NoCapacity, time.Second)
	capacity, err := host.Capacity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := gather(t, reg)
	for name, want := range map[string]float64{
		"pandastack_host_up": 1, "pandastack_host_machines": 1, "pandastack_host_machines_running": 1,
		"pandastack_host_memory_bytes":      float64(capacity.MemoryMiB) * (1 << 20),
		"pandastack_host_memory_free_bytes": float64(capacity.MemoryFreeMiB) * (1 << 20),
		"pandastack_host_disk_bytes":        float64(capacity.DiskMiB) * (1 << 20),
		"pandastack_host_disk_free_bytes":   float64(capacity.DiskFreeMiB) * (1 << 20),
		"pandastack_host_cpus":              float64(capacity.VCPUs),
		"pandastack_template_baked base":    1, "pandastack_template_baked raw": 0,
		"pandastack_sandbox_operations_total ok create": 1, "pandastack_sandbox_operations_total no_capacity fork": 1,
	} {
		if have, ok := got[name]; !ok || have != want {
			t.Errorf("%s = %v, want %v", name, have, want)
		}
	}
	info := 0
	for name := range got {
		if strings.HasPrefix(name, "pandastack_node_info ") && strings.Contains(name, "test") {
			info++
		}
	}
	if info != 1 || got["go_goroutines"] == 0 {
		t.Errorf("series = %v, want one pandastack_node_info of version test, and go_goroutines above 0",
			slices.Sorted(maps.Keys(got)))
	}
	host.Fail("capacity", errors.New("away"))
	got = gather(t, reg)
	if up, ok := got["pandastack_host_up"]; !ok || up != 0 {
		t.Errorf("pandastack_host_up with a failing host = %v (present %v), want 0", up, ok)
	}
	if _, ok := got["pandastack_host_machines"]; ok {
		t.Error("pandastack_host_machines is present with a failing host, want it absent")
	}
}
