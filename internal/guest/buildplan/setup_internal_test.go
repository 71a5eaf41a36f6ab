package buildplan

import (
	"os"
	"path/filepath"
	"testing"
)

// TestDebianMirror replaces the archives in both forms of sources, and nothing else.
func TestDebianMirror(t *testing.T) {
	t.Parallel()
	r := &run{Place: Place{Root: t.TempDir()}}
	const mirror = "http://mirror.example/pub/debian"
	for name, text := range map[string][2]string{
		"sources.list": {
			"deb https://archive.example/debian bookworm main\ndeb http://archive.example/debian-security/ x main\n",
			"deb " + mirror + " bookworm main\ndeb " + mirror + "-security/ x main\n",
		},
		"sources.list.d/debian.sources": {
			"URIs: http://archive.example/debian\nURIs: https://other.example/debianish\n",
			"URIs: " + mirror + "\nURIs: https://other.example/debianish\n",
		},
	} {
		at := filepath.Join(r.Root, "etc/apt", name)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text[0]), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := r.debianMirror(mirror + "/"); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(at); err != nil || string(got) != text[1] {
			t.Errorf("%s: %q, %v, want %q", name, got, err, text[1])
		}
	}
}
