//go:build root

package disk_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/os/disk"
)

// Two images share long runs at different offsets. Their content does not change, and runs that differ are
// not shared.
func TestDedup(t *testing.T) {
	dir := reflinkDir(t)
	random := rand.New(rand.NewPCG(1, 2))
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return b
	}
	long, short := noise(5<<20+12<<10), noise(256<<10)
	known := bytes.Join([][]byte{noise(1 << 20), long, noise(100 << 10), short}, nil)
	image := bytes.Join(
		[][]byte{noise(36 << 10), short, noise(8 << 10), long, make([]byte, 1<<20), noise(20 << 10)},
		nil,
	)
	put := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	a, b := put("known", known), put("image", image)
	shared, err := disk.Dedup(t.Context(), b, []string{a, filepath.Join(dir, "none")})
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(len(long)); shared != want {
		t.Errorf("Dedup shared %d bytes, want %d: the long run and not the short one", shared, want)
	}
	for path, want := range map[string][]byte{a: known, b: image} {
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s changed: %v", path, err)
		}
	}
	_, own, err := disk.Usage(b)
	if err != nil || own > int64(len(image)-len(long)) {
		t.Errorf("image has %d bytes of its own, want at most %d: %v", own, len(image)-len(long), err)
	}
	if again, err := disk.Dedup(t.Context(), b, []string{a}); err != nil || again != shared {
		t.Errorf("second Dedup = %d, %v; want the same size", again, err)
	}
}
