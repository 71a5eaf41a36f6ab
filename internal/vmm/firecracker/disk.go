package firecracker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

var (
	_ vmm.DiskResizer = (*machine)(nil)
	_ vmm.DiskSwapper = (*machine)(nil)
)

// SwapDisk implements vmm.DiskSwapper. The file of the drive keeps its name: the name becomes that of another file.
// Firecracker opens it when it loads the guest, and again if it has loaded one.
func (m *machine) SwapDisk(ctx context.Context, n int, disk vmm.Disk) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("swap disk %d of machine %s: %w", n, m.spec.ID, err)
		}
	}()
	if n < 0 || n >= len(m.spec.Disks) {
		return errors.New("it has no such disk")
	}
	if disk.ReadOnly != m.spec.Disks[n].ReadOnly {
		return errors.New("a disk that is read-only cannot become writable, nor the other way round")
	}
	var file, root unix.Stat_t
	if err := unix.Stat(disk.Path, &file); err != nil {
		return &fs.PathError{Op: "stat", Path: disk.Path, Err: err}
	}
	if err := unix.Stat(m.root(), &root); err != nil {
		return &fs.PathError{Op: "stat", Path: m.root(), Err: err}
	}
	if file.Dev != root.Dev {
		return errors.New("the disk is not on the file system of the machine's directory")
	}
	name, next := m.inRoot(driveName(n)), m.inRoot(driveName(n)+".next")
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(disk.Path, next); err != nil {
		return err
	}
	if err := os.Rename(next, name); err != nil {
		return err
	}
	// Renaming one of two names of a file to the other does nothing, and leaves both.
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	m.spec.Disks = slices.Clone(m.spec.Disks)
	disk.Rate = m.spec.Disks[n].Rate
	m.spec.Disks[n] = disk
	if m.Phase() == vmmproc.Prepared { // Load opens the file by its name, and announces the size
		return m.recordSize(n, file.Size)
	}
	return m.openDriveAgain(ctx, n, file.Size)
}

// ResizeDisk implements vmm.DiskResizer.
func (m *machine) ResizeDisk(ctx context.Context, n int) error {
	if m.Phase() == vmmproc.Prepared || n < 0 || n >= len(m.spec.Disks) {
		return fmt.Errorf("resize disk %d of machine %s: it has not been loaded, or has no such disk", n, m.spec.ID)
	}
	info, err := os.Stat(m.spec.Disks[n].Path)
	if err == nil {
		err = m.openDriveAgain(ctx, n, info.Size())
	}
	if err != nil {
		return fmt.Errorf("resize disk %d of machine %s: %w", n, m.spec.ID, err)
	}
	return nil
}

// openDriveAgain makes Firecracker open the file of a drive again, and announce its size to the guest.
func (m *machine) openDriveAgain(ctx context.Context, n int, bytes int64) error {
	name := driveName(n)
	err := m.request(ctx, "swap of a disk", func(ctx context.Context) error {
		return m.api.ChangeDrive(ctx, fcapi.DrivePatch{ID: name, Path: name})
	})
	if err != nil {
		return err
	}
	return m.recordSize(n, bytes)
}

func (m *machine) recordSize(n int, bytes int64) error {
	m.record.DiskBytes = slices.Clone(m.record.DiskBytes)
	m.record.DiskBytes[n] = bytes
	return vmmproc.WriteRecord(m.spec.Dir, m.record)
}
