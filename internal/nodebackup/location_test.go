package nodebackup_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/config"
	"github.com/pandastack/pandastack/internal/nodebackup"
)

func TestLocation(t *testing.T) {
	for _, c := range []struct{ set, objects, given, want, problem string }{
		{given: "/mnt/b", want: "file:///mnt/b"},
		{set: "/mnt/a", given: "s3://b?region=x", want: "s3://b?region=x"},
		{set: "/mnt/a", objects: "s3://o", want: "file:///mnt/a"},
		{objects: "s3://o?region=x", want: "s3://o?prefix=node-backups%2F&region=x"},
		{objects: "s3://o?prefix=p%2F", want: "s3://o?prefix=p%2Fnode-backups%2F"},
		{objects: "file:///mnt/o/", want: "file:///mnt/o/node-backups"},
		{problem: "set backup.url or object_store.url"},
		{given: "/data/backups", problem: "would be lost with it"},
		{objects: "file:///data/objects", problem: "would be lost with it"},
		{given: "/data2", want: "file:///data2"},
	} {
		cfg := &config.Node{
			DataDir: "/data", Backup: config.Backup{URL: c.set}, ObjectStore: config.ObjectStore{URL: c.objects},
		}
		got, err := nodebackup.Location(cfg, c.given)
		refused := err != nil && c.problem != "" && strings.Contains(err.Error(), c.problem)
		if got != c.want || refused != (c.problem != "") {
			t.Errorf("%+v: Location = %q, %v", c, got, err)
		}
	}
}

func TestReadPassphrase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "passphrase")
	if err := os.WriteFile(path, []byte("correct horse battery\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := nodebackup.ReadPassphrase(path); err != nil || got != "correct horse battery" {
		t.Errorf("ReadPassphrase = %q, %v", got, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		path: "mode 0600", "": "--passphrase-file", path + "x": "no such file", t.TempDir(): "not a small file",
	} {
		if _, err := nodebackup.ReadPassphrase(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ReadPassphrase(%q): %v, want an error with %q", file, err, want)
		}
	}
}
