package qemu

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

var _ vmm.DiskResizer = (*machine)(nil)

// diskID returns the ID of the drive of disk n.
func diskID(n int) string { return "d" + strconv.Itoa(n) }

// ResizeDisk implements vmm.DiskResizer.
func (m *machine) ResizeDisk(ctx context.Context, n int) error {
	if m.Phase() == vmmproc.Prepared || n < 0 || n >= len(m.spec.Disks) {
		return fmt.Errorf("resize disk %d of machine %s: it has not been loaded, or has no such disk", n, m.spec.ID)
	}
	info, err := os.Stat(m.spec.Disks[n].Path)
	if err != nil {
		return fmt.Errorf("resize disk %d of machine %s: %w", n, m.spec.ID, err)
	}
	ctx, cancel := m.driver.monitors.WithTimeout(ctx, "resize of a disk")
	defer cancel()
	if err := m.announceSize(ctx, n, info.Size()); err != nil {
		return fmt.Errorf("resize disk %d of machine %s: %w", n, m.spec.ID, err)
	}
	return vmmproc.WriteRecord(m.spec.Dir, m.record)
}

// announceSize makes a disk's size known to the guest and to later captures.
func (m *machine) announceSize(ctx context.Context, n int, bytes int64) error {
	if err := m.do(ctx, "block_resize", map[string]any{"device": diskID(n), "size": bytes}, nil); err != nil {
		return err
	}
	m.record.DiskBytes[n] = bytes
	m.manifest.DiskBytes = m.record.DiskBytes
	return nil
}
