//go:build root

package probe

import (
	"os"
	"path/filepath"
	"testing"
)

func TestJailProbe(t *testing.T) {
	c := Config{DataDir: t.TempDir()}
	f := c.jailed(t.Context())
	if f.Level != OK {
		t.Errorf("probe jail: got %+v", f)
	}
	if left, err := os.ReadDir(c.DataDir); err != nil || len(left) != 0 {
		t.Errorf("after the probe: got %v left, error %v", left, err)
	}
	if left, err := filepath.Glob("/sys/fs/cgroup/*/panda-probe-*"); err != nil || len(left) != 0 {
		t.Errorf("after the probe: got %v left, error %v", left, err)
	}
}
