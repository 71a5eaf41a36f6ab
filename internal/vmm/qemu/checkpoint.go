package qemu

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/checkpoint"
	"github.com/pandastack/pandastack/internal/vmm/qemu/checkpointstore"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// An image may contain, in addition to memory and device state, a checkpoint of the monitor process
// at the same moment. It includes QEMU's translation cache, so a machine restored from it need not
// translate what a guest runs first.
var (
	_ vmm.CheckpointStatus   = (*Driver)(nil)
	_ vmm.CheckpointExporter = (*Driver)(nil)
)

// HasCheckpoint implements vmm.CheckpointStatus.
func (d *Driver) HasCheckpoint(image vmm.Image) (bool, error) {
	p, err := d.checkpoints.Find(image.Dir)
	return p != nil, err
}

// ExportCheckpoint implements vmm.CheckpointExporter.
func (d *Driver) ExportCheckpoint(_ context.Context, image vmm.Image) (*vmm.Checkpoint, error) {
	return d.checkpoints.Export(image.Dir)
}

// ImportCheckpoint implements vmm.CheckpointExporter.
func (d *Driver) ImportCheckpoint(ctx context.Context, image vmm.Image, from vmm.CheckpointSource) error {
	if d.checkpoints == nil {
		return &vmm.MismatchError{Field: "monitor checkpoint", Image: "present", Host: "disabled"}
	}
	return d.checkpoints.Import(ctx, image.Dir, from)
}

// logNoCheckpoint logs why an image gets no monitor checkpoint.
func (d *Driver) logNoCheckpoint(err error) {
	d.config.Log.Warn("image has no monitor checkpoint; restores from its device state take longer", "why", err)
}

// saveMonitor adds the monitor checkpoint to an image in dir.
func (c *capture) saveMonitor(dir string) error {
	if c.monitor == nil || c.content != nil && c.contentFile == nil {
		return nil
	}
	return c.store.Save(
		dir,
		checkpointstore.MonitorCheckpoint{
			FDSet:       c.fdSet,
			ClockOffset: c.clockOffset,
			Base:        c.contentFile,
			ContentHash: c.contentHash,
		},
		c.monitor,
	)
}

// Roles of a monitor's descriptors.
const (
	roleNull   = "nothing" // /dev/null, and files that another monitor does not need
	roleLog    = "log"
	roleTap    = "tap " // followed by the size of the virtio-net header, on which monitor and tap agree
	roleMemory = "memory"
	roleListen = "listen " // followed by the name of the socket, as for roleConn
	roleConn   = "talk "
	roleDisk   = "disk "
	writable   = " writable"
)

// Device numbers (Documentation/admin-guide/devices.txt).
var (
	nullDevice = unix.Mkdev(1, 3)
	tunDevice  = unix.Mkdev(10, 200)
)

// role returns the role of a descriptor of the monitor.
func (m *machine) role(f *os.File, link string) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		return socketRole(f)
	case unix.S_IFIFO: // inherited from the parent of this program and not closed
		return roleNull, nil
	case unix.S_IFCHR:
		switch uint64(st.Rdev) {
		case nullDevice:
			return roleNull, nil
		case tunDevice:
			header, err := unix.IoctlGetInt(int(f.Fd()), unix.TUNGETVNETHDRSZ)
			if err != nil {
				return "", fmt.Errorf("header size of the tap: %w", err)
			}
			return roleTap + strconv.Itoa(header), nil
		}
	case unix.S_IFREG:
		return m.fileRole(f, link, vmmproc.FileKey{Device: uint64(st.Dev), Inode: st.Ino})
	}
	return "", fmt.Errorf("%w: %s", checkpoint.ErrUnsupported, link)
}

func socketRole(f *os.File) (string, error) {
	name, err := unix.Getsockname(int(f.Fd()))
	if err != nil {
		return "", err
	}
	local, ok := name.(*unix.SockaddrUnix)
	if !ok {
		return "", fmt.Errorf("%w: it has a socket that is not a Unix socket", checkpoint.ErrUnsupported)
	}
	base := filepath.Base(local.Name)
	if base != monitorSocket && base != channelSocket {
		return "", fmt.Errorf("%w: it has a socket with the unknown name %q", checkpoint.ErrUnsupported, local.Name)
	}
	listens, err := unix.GetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return "", err
	}
	if listens != 0 {
		return roleListen + base, nil
	}
	return roleConn + base, nil
}

func (m *machine) fileRole(f *os.File, link string, key vmmproc.FileKey) (string, error) {
	switch {
	case key == m.record.mapped(), key == m.record.Memory:
		return roleMemory, nil
	case strings.HasPrefix(link, "/memfd:log"):
		return roleLog, nil
	case strings.HasPrefix(link, "/memfd:"), key.Inode == m.record.Content:
		return roleNull, nil
	}
	for i, d := range m.spec.Disks {
		var st unix.Stat_t
		if err := unix.Stat(d.Path, &st); err != nil ||
			(vmmproc.FileKey{Device: uint64(st.Dev), Inode: st.Ino}) != key {
			continue
		}
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
		if err != nil {
			return "", err
		}
		return diskRole(i, flags&unix.O_ACCMODE != unix.O_RDONLY), nil
	}
	return "", fmt.Errorf("%w: %s", checkpoint.ErrUnsupported, link)
}

func diskRole(i int, write bool) string {
	if write {
		return fmt.Sprint(roleDisk, i, writable)
	}
	return fmt.Sprint(roleDisk, i)
}
