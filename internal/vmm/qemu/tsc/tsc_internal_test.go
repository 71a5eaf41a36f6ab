package tsc

import "testing"

func TestRate(t *testing.T) {
	if got := rate(sample{1000, 0}, sample{1000 + 2_445_424_000, 1e9}); got != 2_445_424 {
		t.Errorf("rate() = %d kHz, want 2445424", got)
	}
	m := New()
	first, err := m.KHz(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if supported && first < 100_000 {
		t.Errorf("KHz() = %d, want at least 100000", first)
	}
	if again, _ := m.KHz(t.Context()); again != first {
		t.Errorf("second KHz() = %d, want %d as before", again, first)
	}
}
