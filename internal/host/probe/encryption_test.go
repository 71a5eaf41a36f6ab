package probe_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/host/probe"
)

// deviceOf returns the number of the device that holds a file.
func deviceOf(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
}

func TestEncryption(t *testing.T) {
	data := t.TempDir()
	// The data directory, and a file on another device for images.
	own, image := deviceOf(t, data), deviceOf(t, "/dev/null")
	if own == image {
		t.Fatalf("%s and /dev/null are on one device", data)
	}
	const crypt, plain = "CRYPT-LUKS2-0123", "LVM-0123"
	for name, tt := range map[string]struct {
		files map[string]string // below sys/dev/block
		want  string
	}{
		"dm-crypt":  {map[string]string{own + "/dm/uuid": crypt}, "is on an encrypted block device"},
		"partition": {map[string]string{own + "/partition": "1"}, "without dm-crypt (" + own + ")"},
		"no device": {nil, "not known"},
		"volume on dm-crypt": {map[string]string{
			own + "/dm/uuid": plain, own + "/slaves/dm-0/dev": "253:0", "253:0/dm/uuid": crypt,
		}, "is on an encrypted block device"},
		"RAID of which one half is encrypted": {map[string]string{
			own + "/slaves/a/dev": "253:0", own + "/slaves/b/dev": "8:1", "253:0/dm/uuid": crypt, "8:1/partition": "1",
		}, "without dm-crypt (8:1)"},
		"image on dm-crypt": {map[string]string{
			own + "/loop/backing_file": "/dev/null", image + "/dm/uuid": crypt,
		}, "is on an encrypted block device"},
		"image on a disk": {map[string]string{
			own + "/loop/backing_file": "/dev/null", image + "/size": "1",
		}, "without dm-crypt (" + image + ")"},
		"image that does not exist": {map[string]string{own + "/loop/backing_file": "/dev/null/gone"}, "not known"},
		"loop":                      {map[string]string{own + "/slaves/a/dev": own}, "not known"},
	} {
		system := t.TempDir()
		for path, text := range tt.files {
			path = filepath.Join(system, "sys/dev/block", path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		var found probe.Finding
		for _, p := range probe.All(probe.Config{DataDir: filepath.Join(data, "new")}.On(system)) {
			if p.Name == probe.Encryption {
				found = p.Run(t.Context())
			}
		}
		if found.Level != probe.OK || !strings.Contains(found.Text, tt.want) {
			t.Errorf("%s: got %+v, want a note with %q", name, found, tt.want)
		}
	}
}
