package setup

import (
	"testing"

	"github.com/pandastack/pandastack/internal/image/apt"
)

func TestBackports(t *testing.T) {
	sources := []apt.Source{
		{URI: "http://s.example", Suite: "bookworm-security"},
		{URI: "http://m.example/debian", Suite: "bookworm", SignedBy: "/k.gpg"},
	}
	want := "# Made by `pandastack setup` for a newer QEMU; `pandastack setup --remove` removes it.\n" +
		"Types: deb\nURIs: http://m.example/debian\nSuites: bookworm-backports\nComponents: main\nSigned-By: /k.gpg\n"
	if got, err := backports("bookworm", sources); err != nil || got != want {
		t.Errorf("backports: got %q, %v, want %q", got, err, want)
	}
	if _, err := backports("trixie", sources); err == nil {
		t.Error("backports of an unknown release: got no error")
	}
}
