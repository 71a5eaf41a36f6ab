package firecracker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/lib/cleanup"
	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// Names in the monitor's directory. Snapshots embed those of the drives and the vsock.
const (
	apiSocket     = "api.sock"
	vsockSocket   = "v.sock"
	pagerSocket   = "uffd.sock"
	memoryFile    = "memory"
	stateFile     = "state"
	captureMemory = "capture.memory"
	captureState  = "capture.state"
	kernelFile    = "kernel"
	initrdFile    = "initrd"
)

// driveName returns the path of a drive, which is also its drive_id.
func driveName(i int) string { return "disk" + strconv.Itoa(i) }

const (
	maxDrives        = 32
	placeholderBytes = 1 << 20 // of a drive without a disk
)

func (m *machine) inRoot(name string) string { return filepath.Join(m.root(), name) }

// launch starts the monitor of a machine. place creates the files in the monitor's directory.
// launch does not wait for the monitor.
func (m *machine) launch(ctx context.Context, place func() error) (err error) {
	dir := m.spec.Dir
	if m.spec.NIC != nil && m.spec.NIC.Device == "" {
		return errors.New("network card without a tap name")
	}
	if err := removeFiles(dir); err != nil {
		return err
	}
	var back cleanup.Stack
	defer func() { err = back.Settle(ctx, err) }()
	back.Push("remove files", func(context.Context) error { return removeFiles(dir) })
	if err := os.MkdirAll(m.root(), 0o700); err != nil {
		return err
	}
	back.Push("close connections", func(context.Context) error { m.disconnect(); return nil })
	if err := place(); err != nil {
		return err
	}
	if err := m.placeDrives(); err != nil {
		return err
	}
	if err := m.chown(m.root()); err != nil {
		return err
	}
	if m.driver.config.Jailer != "" {
		if err := mountDevices(m.inRoot(jailerDevices)); err != nil {
			return err
		}
	}
	mark, err := vmmproc.Marker(dir)
	if err != nil {
		return err
	}
	p, err := m.start(mark)
	if err != nil {
		return err
	}
	back.Push("kill monitor", func(ctx context.Context) error { return errors.Join(p.Kill(ctx), p.Release()) })
	m.record.Process = p.Identity()
	if err := vmmproc.WriteRecord(dir, m.record); err != nil {
		return err
	}
	m.Watch(ctx, p)
	return nil
}

// chown makes the monitor's user the owner of a file or directory.
func (m *machine) chown(path string) error {
	if c := m.spec.Confine; c.UID != 0 || c.GID != 0 {
		return os.Lchown(path, c.UID, c.GID)
	}
	return nil
}

// link creates a hard link to one of the caller's files in the monitor's directory.
func (m *machine) link(path, name string) error {
	if err := os.Link(path, m.inRoot(name)); err != nil {
		return fmt.Errorf("%w (a machine's files must be on the file system of its directory)", err)
	}
	return nil
}

// placeDrives places the disks, and placeholders for disks to be hotplugged, where the monitor
// expects them.
func (m *machine) placeDrives() error {
	for i := range m.record.Shape.ReadOnly {
		if i < len(m.spec.Disks) {
			if err := m.placeDisk(i); err != nil {
				return err
			}
			continue
		}
		if err := m.placePlaceholder(i); err != nil {
			return err
		}
	}
	return nil
}

// placeDisk gives a disk the name of its drive. A disk on another file system, such as one that is
// still being downloaded, cannot be hard-linked. In a jail it is bind-mounted instead, and without
// a jail it is a symbolic link.
func (m *machine) placeDisk(i int) error {
	disk := m.spec.Disks[i]
	var file, root unix.Stat_t
	if err := unix.Stat(disk.Path, &file); err != nil {
		return &fs.PathError{Op: "stat", Path: disk.Path, Err: err}
	}
	if err := unix.Stat(m.root(), &root); err != nil {
		return &fs.PathError{Op: "stat", Path: m.root(), Err: err}
	}
	m.record.DiskBytes = append(m.record.DiskBytes, file.Size)
	switch {
	case file.Dev == root.Dev:
		return m.link(disk.Path, driveName(i))
	case m.driver.config.Jailer != "":
		return mountFile(disk.Path, m.inRoot(driveName(i)), disk.ReadOnly)
	case m.spec.Confine.Jail == nil:
		return os.Symlink(disk.Path, m.inRoot(driveName(i)))
	}
	m.binds = append(m.binds, jail.Bind{Path: disk.Path, Target: jailDir + "/" + driveName(i), Write: !disk.ReadOnly})
	return nil
}

// placePlaceholder creates the file of a drive that has no disk yet.
func (m *machine) placePlaceholder(i int) error {
	path := m.inRoot(driveName(i))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(placeholderBytes), f.Close(), m.chown(path))
}

// placeBootFiles places the kernel and the initramfs.
func (m *machine) placeBootFiles() error {
	if err := m.copyIn(m.spec.Kernel, kernelFile); err != nil {
		return err
	}
	if m.spec.Initramfs == "" {
		return nil
	}
	return m.copyIn(m.spec.Initramfs, initrdFile)
}

func (m *machine) copyIn(path, name string) (err error) {
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(m.inRoot(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from) // shares blocks where the file system supports it
	return errors.Join(err, to.Close(), os.Chmod(m.inRoot(name), 0o444))
}

// placeImage verifies an image and keeps what Load needs.
func (m *machine) placeImage(image vmm.Image) (err error) {
	if m.state, err = vmmproc.ReadChecked(image, vmmproc.StateName, maxState); err != nil {
		return err
	}
	if m.spec.HugePages && (m.memory == nil || !m.driver.version.AtLeast(1, 17)) {
		return &vmm.UnsupportedError{
			Op:     "use huge pages for memory that is not served by a pager, or before Firecracker 1.17",
			Driver: driverName,
		}
	}
	memory, err := openMemory(image, m.record.Shape)
	if err != nil {
		return err
	}
	return m.setBase(memory.Name(), memory)
}

// setBase makes the file at path, opened as f, the base of the next capture. It takes ownership of
// f.
func (m *machine) setBase(path string, f *os.File) error {
	key, err := vmmproc.KeyOf(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	m.mu.Lock()
	old := m.base
	m.base = f
	m.mu.Unlock()
	if old != nil {
		if err := old.Close(); err != nil {
			return err
		}
	}
	name := filepath.Join(m.spec.Dir, baseFile)
	if err := removeIfThere(name + ".new"); err != nil { // of a host agent that was killed here
		return err
	}
	if err := os.Link(path, name+".new"); err != nil {
		return fmt.Errorf("%w (images must be on the file system of machines)", err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		return err
	}
	// rename(2) does nothing if both names are links to the same file.
	if err := removeIfThere(name + ".new"); err != nil {
		return err
	}
	m.record.Base = key
	return nil
}

// dropBase makes the next capture a full one. The record says so first, because a monitor whose base is not the
// recorded one is not adopted.
func (m *machine) dropBase() error {
	m.mu.Lock()
	old := m.base
	m.base = nil
	m.mu.Unlock()
	m.record.Base = vmmproc.FileKey{}
	err := vmmproc.WriteRecord(m.spec.Dir, m.record)
	if err == nil {
		err = removeIfThere(filepath.Join(m.spec.Dir, baseFile))
	}
	if old != nil {
		err = errors.Join(err, old.Close())
	}
	return err
}

// openBase opens the base named in the record of an adopted monitor.
func (m *machine) openBase() error {
	if m.record.Base == (vmmproc.FileKey{}) {
		return nil
	}
	f, err := openRegular(filepath.Join(m.spec.Dir, baseFile))
	if err != nil {
		return err
	}
	key, err := vmmproc.KeyOf(f)
	if err == nil && key != m.record.Base {
		err = errors.New("the base memory file of the machine was replaced")
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	m.base = f
	return nil
}
