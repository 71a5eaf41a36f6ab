package imagebuild

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/image/apt"
	"github.com/pandastack/pandastack/internal/image/recipe"
)

func TestChooseOrigin(t *testing.T) {
	host := apt.Distribution{ID: "debian", Codename: "bookworm"}
	known := []apt.Source{
		{URI: "http://m.example/debian", Suite: "bookworm", Components: []string{"main"}, SignedBy: "/k.gpg"},
		{URI: "http://m.example/debian", Suite: "bookworm-updates", Components: []string{"main"}, SignedBy: "/k.gpg"},
		{URI: "http://m.example/debian", Suite: "bookworm-backports", Components: []string{"main"}},
		{URI: "http://m.example/security", Suite: "bookworm-security", Components: []string{"main"}},
		{URI: "http://other.example", Suite: "nodistro", Components: []string{"main"}},
	}
	main := recipe.Distribution{Components: []string{"main"}}
	rows := map[string]struct {
		d     recipe.Distribution
		host  apt.Distribution
		suite string
		lines []string
	}{
		"own": {main, host, "bookworm", []string{
			"deb [signed-by=/k.gpg] http://m.example/debian bookworm main",
			"deb [signed-by=/k.gpg] http://m.example/debian bookworm-updates main",
			"deb http://m.example/security bookworm-security main",
		}},
		"other suite": {
			recipe.Distribution{Suite: "trixie", Components: []string{"main", "contrib"}},
			host,
			"trixie",
			[]string{
				"deb [signed-by=/k.gpg] http://m.example/debian trixie main contrib",
			},
		},
		"own mirror": {
			recipe.Distribution{Suite: "sid", Mirror: "http://x.example", Components: []string{"main"}},
			host,
			"sid",
			[]string{
				"deb http://x.example sid main",
			},
		},
		"unknown host": {main, apt.Distribution{}, "", nil},
		"no source":    {main, apt.Distribution{Codename: "trixie"}, "", nil},
	}
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			suite, lines, err := choosePackageSources(r.d, r.host, known)
			if suite != r.suite || !slices.Equal(lines, r.lines) || (err == nil) != (r.lines != nil) {
				t.Errorf("chooseOrigin: got %q, %q, %v, want %q, %q", suite, lines, err, r.suite, r.lines)
			}
		})
	}
}

// TestSourcesOfVariants checks the package sources of variants that need values from the machine.
func TestSourcesOfVariants(t *testing.T) {
	all, err := recipe.Builtin(recipe.Options{Params: map[string]string{
		"base.ubuntu-24.04.mirror": "http://u.example/ubuntu", "base.ubuntu-24.04.keyring": "/u.gpg",
		"postgres-16.ubuntu-24.04.mirror": "http://u.example/ubuntu", "postgres-16.ubuntu-24.04.keyring": "/u.gpg",
		"postgres-16.pgdg.pgdg_mirror":  "http://p.example/apt",
		"postgres-16.pgdg.pgdg_suite":   "bookworm-pgdg",
		"postgres-16.pgdg.pgdg_keyring": "/p.gpg",
	}})
	if err != nil {
		t.Fatal(err)
	}
	host := apt.Distribution{ID: "debian", Codename: "bookworm"}
	known := []apt.Source{
		{URI: "http://m.example/debian", Suite: "bookworm", Components: []string{"main"}, SignedBy: "/k.gpg"},
	}
	ubuntu := `noble
deb [signed-by=/u.gpg] http://u.example/ubuntu noble main universe
deb [signed-by=/u.gpg] http://u.example/ubuntu noble-updates main universe
deb [signed-by=/u.gpg] http://u.example/ubuntu noble-security main universe`
	for name, want := range map[string]string{
		"base.ubuntu-24.04":        ubuntu,
		"postgres-16.ubuntu-24.04": ubuntu,
		"postgres-16.pgdg": `bookworm
deb [signed-by=/k.gpg] http://m.example/debian bookworm main
deb [signed-by=/p.gpg] http://p.example/apt bookworm-pgdg main`,
		"postgres-17": "trixie\ndeb [signed-by=/k.gpg] http://m.example/debian trixie main",
	} {
		suite, lines, err := choosePackageSources(all[name].Distribution, host, known)
		if got := strings.Join(append([]string{suite}, lines...), "\n"); got != want || len(all[name].Missing) != 0 {
			t.Errorf("%s: got sources\n%s\n(%v), want\n%s\nmissing parameters %v", name, got, err, want,
				all[name].Missing)
		}
	}
}

// TestFinishPassesTextUnchanged runs the script with a stand-in for chroot that prints the commands for the inner
// shell.
func TestFinishPassesTextUnchanged(t *testing.T) {
	r := recipe.Recipe{
		User:    "user",
		Workdir: "/home/it's $HOME",
		Disks:   []recipe.Disk{{Name: "data", Mount: "/it's data", Options: []string{"noatime"}, Owner: "user:user"}},
		Setup:   []string{"echo \"a  b\" 'c' $X `d`\nsecond line"},
	}
	dir := t.TempDir()
	script := filepath.Join(dir, "finish.sh")
	if err := os.WriteFile(script, []byte(finishScript(r, nil)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "chroot"), []byte("#!/bin/sh\necho \"$@\"\ncat\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mount"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(script, "/the/root")
	cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got := string(out)
	for _, want := range []string{
		"/the/root /bin/sh -eu\n",
		"useradd --create-home --uid 1000",
		`mkdir -p '/home/it'\''s $HOME'` + "\n",
		`mkdir -p '/it'\''s data'` + "\n" +
			`printf '%s\n' '/dev/vdb /it'\''s data ext4 defaults,noatime 0 2' >> /etc/fstab` + "\n" +
			`chown user:user '/it'\''s data'` + "\n",
		"sh -eu -c 'echo \"a  b\" '\\''c'\\'' $X `d`\nsecond line'\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the script lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "END_OF_FINISH") {
		t.Error("the script does not contain the end of the text")
	}
}

func TestTrimRemovesOldest(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.deb", "b.deb", "keep"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 1000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := trim(dir, 2000); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.deb")); len(left) != 2 {
		t.Errorf("trim of a cache that fits: got %v left", left)
	}
	if err := trim(dir, 0); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 1 || filepath.Base(left[0]) != "keep" {
		t.Errorf("trim: got %v left, want the file that is not a package", left)
	}
}

func TestUUID(t *testing.T) {
	a, b := uuid("a"), uuid("b")
	if a == b || len(a) != 36 || a[14] != '4' || uuid("a") != a {
		t.Errorf("got identifiers %s and %s", a, b)
	}
}
