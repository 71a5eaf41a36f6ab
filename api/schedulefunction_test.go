package api_test

import (
	"testing"

	"github.com/pandastack/pandastack/api"
)

// TestFunctionOfASchedule checks function_id, which stands for a target, also when a request is checked twice: by the
// API and by the service.
func TestFunctionOfASchedule(t *testing.T) {
	one, other := api.NewFunctionID(), api.NewFunctionID()
	for name, tt := range map[string]struct {
		target api.ScheduleTarget
		ok     bool
	}{
		"alone":            {api.ScheduleTarget{}, true},
		"the same twice":   {api.ScheduleTarget{FunctionID: one}, true},
		"another function": {api.ScheduleTarget{FunctionID: other}, false},
		"a URL":            {api.ScheduleTarget{URL: "https://example.com/"}, false},
		"a URL besides":    {api.ScheduleTarget{FunctionID: one, URL: "https://example.com/"}, false},
	} {
		req := api.CreateScheduleRequest{Name: "a", Cron: "@daily", FunctionID: one, Target: tt.target}
		for range 2 {
			if err := req.Validate(); (err == nil) != tt.ok || tt.ok && req.Target.FunctionID != one {
				t.Errorf("%s: got %v with %+v, want ok: %v", name, err, req.Target, tt.ok)
			}
		}
	}
}
