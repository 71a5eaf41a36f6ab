package appspec_test

import (
	"testing"

	"github.com/pandastack/pandastack/internal/control/app/appspec"
)

func TestReserved(t *testing.T) {
	for _, c := range []struct {
		name, suffix string
		own          []string
		want         bool
	}{
		{"api", "example.com", []string{"api.example.com"}, true},
		{"API", "example.com", []string{"api.example.com"}, false}, // names have no capitals
		{"panda", "example.com", []string{"db.panda.example.com"}, true},
		{"db", "example.com", []string{"Panda.Example.com."}, true},
		{"www", "example.com", []string{"example.com"}, true},
		{"shop", "example.com", []string{"example.com", "api.example.com"}, false},
		{"api", "app.example.com", []string{"example.com", "db.example.com"}, false},
		{"api", "app.localhost", []string{"", "db.localhost"}, false},
	} {
		if got := appspec.Reserved(c.name, c.suffix, c.own); got != c.want {
			t.Errorf("Reserved(%s, %s, %q) = %t", c.name, c.suffix, c.own, got)
		}
	}
}
