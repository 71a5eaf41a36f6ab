package diskusage_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/host/diskusage"
)

func TestMeasure(t *testing.T) {
	dir := t.TempDir()
	if _, err := diskusage.Measure(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("Measure of no data directory: %v", err)
	}
	want := map[string]string{
		"control.db": "records", "templates/mini/g1/disk.img": "templates", "bake/x.ext4": "templates",
		"snapshots/snp1/image/memory": "snapshots", "snapshots/img1/image/memory": "hibernated",
		"machines/sbx1/disk.img": "sandboxes", "volumes/v/volume.img": "volumes", "databases/archive/x": "databases",
		"apps/files/x": "apps", "functions/code/x": "functions", "builds/x": "builds", "kernel/vmlinuz": "kernels",
		"cache/x.deb": "caches", "chunks/x": "caches",
		"ballast": "ballast", "something/else": "other", "secret": "other",
	}
	files := map[string]int{}
	for name, use := range want {
		path := filepath.Join(dir, name)
		data := []byte(strings.Repeat("x", 64<<10))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o711), os.WriteFile(path, data, 0o600)); err != nil {
			t.Fatal(err)
		}
		files[use]++
	}
	for name, text := range map[string]string{"snp1": `{}`, "img1": `{"anonymous":true}`} {
		path := filepath.Join(dir, "snapshots", name, "snapshot.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files["snapshots"]++
	files["hibernated"]++
	if err := os.Truncate(filepath.Join(dir, "machines/sbx1/disk.img"), 1<<40); err != nil { // holes take no space
		t.Fatal(err)
	}
	got, err := diskusage.Measure(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range got.Uses {
		small := u.Bytes < 64<<10 && u.Files > 0
		if u.Files != files[u.Name] || small || u.Bytes > 1<<30 || u.OwnBytes > u.Bytes {
			t.Errorf("%+v, want %d files", u, files[u.Name])
		}
	}
	if got.FreeBytes <= 0 || got.TotalBytes < got.FreeBytes || got.SharedBytes < 0 || got.DataDir != dir {
		t.Errorf("Measure = %+v", got)
	}
}
