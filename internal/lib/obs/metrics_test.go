package obs_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/lib/obs"
)

func TestOperations(t *testing.T) {
	reg, err := obs.NewRegistry()
	if err != nil {
		t.Fatal(err)
	}
	ops, err := obs.NewOperations(reg, "test")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := obs.NewOperations(reg, "test"); err == nil {
		t.Error("second NewOperations: got no error")
	}
	ops.Observe("create", "", 30*time.Millisecond)
	ops.Observe("create", "no_space", time.Millisecond)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			count[name] = m.GetCounter().
				GetValue() +
				float64(
					m.GetHistogram().GetSampleCount(),
				) + m.GetGauge().
				GetValue()
		}
	}
	for name, want := range map[string]float64{
		"test_operations_total ok create":        1,
		"test_operations_total no_space create":  1,
		"test_operation_duration_seconds create": 1,
	} {
		if count[name] != want {
			t.Errorf("metric %s: got %v, want %v", name, count[name], want)
		}
	}
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes"} {
		if count[name] == 0 {
			t.Errorf("metric %s is missing among %v", name, slices.Sorted(maps.Keys(count)))
		}
	}
}
