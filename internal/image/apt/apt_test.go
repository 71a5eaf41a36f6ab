package apt_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/pandastack/pandastack/internal/image/apt"
)

func write(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestSources(t *testing.T) {
	root := t.TempDir()
	write(t, root, "etc/apt/sources.list", `
# deb http://off.example/debian bookworm main
deb [arch=amd64 signed-by=/k.gpg] http://one.example/debian bookworm main contrib # words
deb-src http://one.example/debian bookworm main
`)
	write(t, root, "etc/apt/sources.list.d/a.sources", `
# words
Types: deb deb-src
URIs: http://two.example/debian
Suites: bookworm bookworm-updates
# words between fields
Components: main
Signed-By: /k.gpg

Enabled: no
Types: deb
URIs: http://off.example
Suites: x

Types: deb
URIs: http://three.example
Suites: y
Components:
 main
 extra
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
`)
	write(t, root, "etc/apt/sources.list.d/b.sources.disabled", "Types: deb\nURIs: http://off.example\nSuites: z\n")
	got, err := apt.Sources(root)
	if err != nil {
		t.Fatal(err)
	}
	list, sources := filepath.Join(
		root,
		"etc/apt/sources.list",
	), filepath.Join(
		root,
		"etc/apt/sources.list.d/a.sources",
	)
	want := []apt.Source{
		{"http://one.example/debian", "bookworm", []string{"main", "contrib"}, "/k.gpg", list},
		{"http://two.example/debian", "bookworm", []string{"main"}, "/k.gpg", sources},
		{"http://two.example/debian", "bookworm-updates", []string{"main"}, "/k.gpg", sources},
		{"http://three.example", "y", []string{"main", "extra"}, "", sources},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got sources\n%v\nwant\n%v", got, want)
	}
	write(t, root, "etc/apt/sources.list", "deb nonsense\n")
	if _, err := apt.Sources(root); err == nil {
		t.Error("Sources with an invalid line: got no error")
	}
}

func TestReadDistribution(t *testing.T) {
	root := t.TempDir()
	write(
		t,
		root,
		"etc/os-release",
		"PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\nVERSION_CODENAME=bookworm\n",
	)
	got, err := apt.ReadDistribution(root)
	want := apt.Distribution{ID: "debian", Codename: "bookworm", Pretty: "Debian GNU/Linux 12 (bookworm)"}
	if err != nil || got != want || !got.Debian() {
		t.Errorf("ReadDistribution: got %+v, %v, want %+v", got, err, want)
	}
}

func TestCompare(t *testing.T) {
	rows := []struct {
		name, a, b string
		want       int
	}{
		{"numbers", "6.12.95-1~bpo12+1", "6.1.192-2", 1},
		{"tilde", "6.12.95-1~bpo12+1", "6.12.95-1", -1},
		{"zeros", "1.02", "1.2", 0},
		{"epoch", "1:1.0", "2.0", 1},
		{"revision", "1.0-2", "1.0-10", -1},
		{"letters", "1.0a", "1.0+", -1},
		{"end", "1.0", "1.0a", -1},
		{"same", "10.0.2+ds-2", "10.0.2+ds-2", 0},
	}
	dpkg, _ := exec.LookPath("dpkg")
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			if got := sign(apt.Compare(r.a, r.b)); got != r.want {
				t.Errorf("Compare(%q, %q) = %d, want %d", r.a, r.b, got, r.want)
			}
			if got := sign(apt.Compare(r.b, r.a)); got != -r.want {
				t.Errorf("Compare(%q, %q) = %d, want %d", r.b, r.a, got, -r.want)
			}
			if dpkg == "" {
				return
			}
			op := map[int]string{-1: "lt", 0: "eq", 1: "gt"}[r.want]
			if err := exec.Command(dpkg, "--compare-versions", r.a, op, r.b).Run(); err != nil {
				t.Errorf("dpkg does not agree that %s %s %s", r.a, op, r.b)
			}
		})
	}
}

func sign(n int) int { return min(1, max(-1, n)) }
