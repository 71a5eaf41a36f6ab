package bench

import (
	"bytes"
	"strings"
	"testing"
)

func TestPercentile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for _, tt := range []struct {
		name   string
		values []float64
		p      float64
		want   float64
	}{
		{"none", nil, 50, 0},
		{"one", []float64{7}, 99, 7},
		{"median", hundred, 50, 50},
		{"p99", hundred, 99, 99},
		{"max", hundred, 100, 100},
		{"odd", []float64{3, 1, 2}, 50, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := percentile(tt.values, tt.p); got != tt.want {
				t.Errorf("percentile(%v, %v) = %v, want %v", tt.values, tt.p, got, tt.want)
			}
		})
	}
}

func TestTargets(t *testing.T) {
	fast := &Series{Name: "fast", Unit: "ms", Values: []float64{1, 2, 3}, Target: &Target{P50: 2, P99: 3}}
	slow := &Series{Name: "slow", Unit: "ms", Values: []float64{1, 2, 30}, Target: &Target{P50: 2, P99: 3}}
	failed := &Series{Name: "failed", Unit: "ms", Values: []float64{1}, Failed: 1, Target: &Target{P50: 2}}
	many := &Series{Name: "many", Unit: "sandboxes", Values: []float64{100}, Target: &Target{Least: 100}}
	few := &Series{Name: "few", Unit: "sandboxes", Values: []float64{99}, Target: &Target{Least: 100}}
	r := &Report{
		Series:  []*Series{fast, slow, failed, many, few},
		Ratio:   9.5,
		Skipped: map[string]string{"runc": "not installed"},
	}
	for _, s := range r.Series {
		s.close()
	}
	if !*fast.Met || *slow.Met || *failed.Met || !*many.Met || *few.Met {
		t.Errorf(
			"targets met = %v %v %v %v %v, want only the first and the fourth",
			*fast.Met,
			*slow.Met,
			*failed.Met,
			*many.Met,
			*few.Met,
		)
	}
	var out bytes.Buffer
	if err := r.Table(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"p50<=2.00 p99<=3.00 met", "MISSED", "1 FAILED", "9.5 times faster", ">=8 met", ">=100 met", ">=100 MISSED",
		"3 targets met, 3 missed: slow, failed, few\n", "not measured: runc: not installed",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, out.String())
		}
	}
}

// TestMissing checks that a run in which a group was not measured fails and names the group.
func TestMissing(t *testing.T) {
	r := &Report{}
	if err := r.Missing(); err != nil {
		t.Errorf("Missing() = %v, want nil", err)
	}
	r.Skipped = map[string]string{"stream": "prefix in use", "runc": "not installed"}
	if err := r.Missing(); err == nil || !strings.Contains(err.Error(), "runc, stream") {
		t.Errorf("Missing() = %v, want both groups", err)
	}
}

func TestGroups(t *testing.T) {
	if err := CheckGroups(Groups()); err != nil {
		t.Error(err)
	}
	err := CheckGroups([]string{"create", "creat"})
	if err == nil || !strings.Contains(err.Error(), `"creat"; the groups are create, exec,`) {
		t.Errorf("CheckGroups: error %v, want the unknown name and the list of groups", err)
	}
	if _, err := Run(t.Context(), nil, Options{Only: []string{"nonsense"}}); err == nil {
		t.Error("Run with an unknown group succeeded, want an error")
	}
}

// TestDifferenceBelowZeroIsMet checks that a negative value meets an upper limit, and misses a lower one.
func TestDifferenceBelowZeroIsMet(t *testing.T) {
	s := Series{Values: []float64{-9}, Target: &Target{P50: 5}}
	s.close()
	if s.Met == nil || !*s.Met {
		t.Errorf("met = %v for -9 with P50 <= 5, want true", s.Met)
	}
	s = Series{Values: []float64{-9}, Target: &Target{AtLeast: 5}}
	s.close()
	if s.Met == nil || *s.Met {
		t.Errorf("met = %v for -9 with P50 >= 5, want false", s.Met)
	}
}
