package initd

import (
	"os"
	"path/filepath"
	"testing"
)

func TestUsesLocalTimers(t *testing.T) {
	for _, c := range []struct {
		name    string
		devices []string
		want    bool
	}{
		{"APIC", []string{"lapic\n", "lapic\n"}, true},
		{"APIC with deadlines", []string{"lapic-deadline\n"}, true},
		{"a processor without a timer", []string{"lapic\n", "\n"}, false},
		{"interval timer", []string{"pit\n"}, false},
		{"nothing known", nil, false},
	} {
		dir := t.TempDir()
		for i, device := range append(c.devices, "pit\n") {
			sub := filepath.Join(dir, "clockevent"+string(rune('0'+i)))
			if i == len(c.devices) {
				sub = filepath.Join(dir, "broadcast") // is of no concern
			}
			if err := os.MkdirAll(sub, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(sub, "current_device"), []byte(device), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := usesLocalTimers(dir); got != c.want {
			t.Errorf("usesLocalTimers() = %v for %s, want %v", got, c.name, c.want)
		}
	}
}
