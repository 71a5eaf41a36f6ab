package machine

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

// FreeSpace returns the size of the file system that holds dir and its free space, in bytes.
type FreeSpace func(dir string) (total, free int64, err error)

// StatFS is FreeSpace of this computer.
func StatFS(dir string) (total, free int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize, nil
}

// CheckDiskSpace returns ErrNoSpace, with the numbers, unless needMiB MiB fit beside the reserve.
func (m *Manager) CheckDiskSpace(what string, needMiB int) error {
	return m.requireSpace(what, needMiB)
}

// requireSpace is CheckDiskSpace.
func (m *Manager) requireSpace(what string, needMiB int) error {
	_, free, err := m.cfg.FreeSpace(m.cfg.Dir)
	if err != nil {
		return err
	}
	need := int64(needMiB+m.cfg.DiskReserveMiB) * mib
	if free < need && m.cfg.ReclaimSpace != nil {
		free += m.cfg.ReclaimSpace(need - free) // the file system may count it as free a little later
	}
	if free < need {
		return fmt.Errorf("%s needs %d MiB of disk with %d MiB in reserve, and %d MiB are free in %s; "+
			"delete snapshots or sandboxes: %w",
			what, needMiB, m.cfg.DiskReserveMiB, free/mib, m.cfg.Dir, hostapi.ErrNoSpace)
	}
	return nil
}

// wrapNoSpace adds ErrNoSpace to an error that a full disk caused.
func wrapNoSpace(err error) error {
	if durable.IsNoSpace(err) {
		return fmt.Errorf("%w: %w", hostapi.ErrNoSpace, err)
	}
	return err
}
