package repl

import (
	"maps"
	"testing"
)

func TestEnvironmentIsParsedDefensively(t *testing.T) {
	got := parseEnvironment("A=1\x00B=x=y\x00=z\x00C\x00PATH=/p\x00HOME=/h\x00D=a\nb\x00")
	if want := map[string]string{"A": "1", "B": "x=y", "D": "a\nb"}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
