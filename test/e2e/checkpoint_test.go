//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/qemu"
	"github.com/pandastack/pandastack/test/nodelab"
)

// TestMonitorCheckpoints checks that a template has a checkpoint of its monitor, and that a sandbox was restored from
// it: only then its hibernation image has one, too. Everything works without checkpoints, several times slower.
func TestMonitorCheckpoints(t *testing.T) {
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("mini")
	if _, text := n.Send(http.MethodGet, "/v1/capacity", ""); !strings.Contains(text, `"accelerator":"tcg"`) {
		t.Skipf("probe accelerator: only QEMU without KVM has checkpoints, and this node has %s", text)
	}
	d, err := qemu.New(t.Context(), qemu.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	// A node warms up templates of earlier boots of the host after its start.
	nodelab.Eventually(t, "the template has a checkpoint", func() error {
		return hasCheckpoint(d, filepath.Join(dir, "templates", "mini", "*", "image"))
	})
	s := n.Create("--persistent")
	n.JSON(nil, "sandbox", "hibernate", s.ID)
	if err := hasCheckpoint(d, filepath.Join(dir, "snapshots", s.ID+"-g*", "image")); err != nil {
		t.Errorf("the sandbox was not restored from a checkpoint: %v", err)
	}
	n.JSON(nil, "sandbox", "delete", s.ID)
	n.Stop()
	nodelab.NothingLeft(t, dir)
}

// hasCheckpoint returns an error unless one image matches pattern and it has a checkpoint of its monitor.
func hasCheckpoint(d vmm.CheckpointStatus, pattern string) error {
	images, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	if len(images) != 1 {
		return fmt.Errorf("images %q, want one", images)
	}
	switch has, err := d.HasCheckpoint(vmm.Image{Dir: images[0]}); {
	case err != nil:
		return err
	case !has:
		return errors.New("the image has no checkpoint of its monitor")
	}
	return nil
}
