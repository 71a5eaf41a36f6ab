package fctest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestJailerCommandLine(t *testing.T) {
	dir := t.TempDir()
	exec, other, two, link := filepath.Join(
		dir,
		"firecracker",
	), filepath.Join(
		dir,
		"monitor",
	), filepath.Join(
		dir,
		"firecracker2",
	), filepath.Join(
		dir,
		"firecracker3",
	)
	for _, path := range []string{exec, other, two} {
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(two, filepath.Join(dir, "again")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(exec, link); err != nil {
		t.Fatal(err)
	}
	good := "--id m1 --exec-file " + exec + " --uid 7 --gid 8 -- --api-sock a"
	for _, c := range []struct{ name, line, want string }{
		{"good", good, ""},
		{"cgroup_version", "--cgroup-version 2 " + good, ""},
		{"bad_cgroup_version", "--cgroup-version 3 " + good, "invalid cgroup version"},
		{"no_id", strings.Replace(good, "--id m1 ", "", 1), "required"},
		{"no_user", strings.Replace(good, "--uid 7 ", "", 1), "required"},
		{"bad_id", strings.Replace(good, "m1", "m_1", 1), "invalid instance ID"},
		{"user_name", strings.Replace(good, "--uid 7", "--uid root", 1), "invalid syntax"},
		{"twice", "--id m2 " + good, "more than once"},
		{"unknown", "--chroot-dir / " + good, "wasn't expected"},
		{"no_value", "--netns " + good, "requires a value"},
		{"id_again", good + " --id m1", "more than once"},
		{"other_name", strings.Replace(good, exec, other, 1), ""},
		{"two_names", strings.Replace(good, exec, two, 1), ""},
		{"link", strings.Replace(good, exec, link, 1), ""},
		{"directory", strings.Replace(good, exec, dir, 1), "not a file"},
		{"relative", strings.Replace(good, exec, "firecracker", 1), "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := parseJailer(strings.Fields(c.line))
			if c.want == "" && (err != nil || s.uid != 7 || s.gid != 8 || s.base != "/srv/jailer" || len(s.rest) != 2) {
				t.Errorf("parseJailer() = %+v, %v; want success", s, err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("parseJailer() = %v, want an error with %q", err, c.want)
			}
		})
	}
}
