//go:build root

package diskusage_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/host/diskusage"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/os/disk/disktest"
)

// A block that a template and a sandbox share belongs to neither, and is counted once.
func TestSharedBlocks(t *testing.T) {
	dir := disktest.Dir(t, 512<<20)
	const size = 32 << 20
	template, sandbox := filepath.Join(dir, "templates/disk.img"), filepath.Join(dir, "machines/disk.img")
	err := errors.Join(os.Mkdir(filepath.Dir(template), 0o711), os.Mkdir(filepath.Dir(sandbox), 0o711),
		os.WriteFile(filepath.Join(dir, "control.db"), nil, 0o600),
		os.WriteFile(template, []byte(strings.Repeat("x", size)), 0o600), disk.Clone(template, sandbox))
	if err != nil {
		t.Fatal(err)
	}
	got, err := diskusage.Measure(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range got.Uses {
		if u.Files == 1 && u.Bytes > 0 && (u.Bytes < size || u.OwnBytes != 0) {
			t.Errorf("%+v, want %d bytes and none of its own", u, size)
		}
	}
	if got.SharedBytes < size || got.SharedBytes >= 2*size+64<<20 {
		t.Errorf("shared: %d bytes, want %d and what the file system needs", got.SharedBytes, size)
	}
}
