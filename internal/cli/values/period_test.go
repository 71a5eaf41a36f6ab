package values_test

import (
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/cli/values"
)

func TestPeriod(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0s": 0, "12h": 12 * time.Hour, "90d": 90 * 24 * time.Hour, "1h30m": 90 * time.Minute,
	} {
		if got, err := values.Period("expires", text); err != nil || got != want {
			t.Errorf("%s: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "-1d", "-1h", "90", "1.5d", "99999999999d", "soon"} {
		if got, err := values.Period("expires", text); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}
