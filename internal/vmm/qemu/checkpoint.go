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

// An image may hold, besides memory and device state, the image of the monitor as a process at the same moment.
// QEMU's translations are in it: a machine that is made of it has not to translate what a guest does first.
var (
	_ vmm.CheckpointStatus   = (*Driver)(nil)
	_ vmm.CheckpointExporter = (*Driver)(nil)
)

// HasCheckpoint implements vmm.Rememberer.
func (d *Driver) HasCheckpoint(image vmm.Image) (bool, error) {
	p, err := d.checkpoints.Find(image.Dir)
	return p != nil, err
}

// ExportCheckpoint implements vmm.Carrier.
func (d *Driver) ExportCheckpoint(_ context.Context, image vmm.Image) (*vmm.Checkpoint, error) {
	return d.checkpoints.Export(image.Dir)
}

// ImportCheckpoint implements vmm.Carrier.
func (d *Driver) ImportCheckpoint(ctx context.Context, image vmm.Image, from vmm.CheckpointSource) error {
	if d.checkpoints == nil {
		return &vmm.MismatchError{Field: "process image", Image: "one", Host: "none is used"}
	}
	return d.checkpoints.Import(ctx, image.Dir, from)
}

// logNoCheckpoint tells why the image of a monitor has no process in it.
func (d *Driver) logNoCheckpoint(err error) {
	d.config.Log.Warn("machines of an image begin by their device state alone, which takes longer", "why", err)
}

// saveMonitor completes an image in dir with the process that was captured with it.
func (c *capture) saveMonitor(dir string) error {
	if c.monitor == nil || c.content != nil && c.contentFile == nil {
		return nil
	}
	return c.store.Save(dir, checkpointstore.MonitorCheckpoint{FDSet: c.fdSet, ClockOffset: c.clockOffset, Base: c.contentFile, ContentHash: c.contentHash}, c.monitor)
}

// Roles of a monitor's descriptors.
const (
	roleNull   = "nothing" // /dev/null, and what is of no use to another process
	roleLog    = "log"
	roleTap    = "tap " // and the size of the header before each packet, which monitor and tap agree on
	roleMemory = "memory"
	roleListen = "listen " // and the name of the socket, as in roleTalk
	roleConn   = "talk "
	roleDisk   = "disk "
	writable   = " writable"
)

// Numbers of devices (Documentation/admin-guide/devices.txt).
var (
	nullDevice = unix.Mkdev(1, 3)
	tunDevice  = unix.Mkdev(10, 200)
)

// role names what a descriptor of the monitor stands for.
func (m *machine) role(f *os.File, link string) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		return socketRole(f)
	case unix.S_IFIFO: // of whoever started this program, and not closed
		return roleNull, nil
	case unix.S_IFCHR:
		switch uint64(st.Rdev) {
		case nullDevice:
			return roleNull, nil
		case tunDevice:
			header, err := unix.IoctlGetInt(int(f.Fd()), unix.TUNGETVNETHDRSZ)
			if err != nil {
				return "", fmt.Errorf("size of headers of the tap: %w", err)
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
		return "", fmt.Errorf("%w: a socket of another kind", checkpoint.ErrUnsupported)
	}
	base := filepath.Base(local.Name)
	if base != monitorSocket && base != channelSocket {
		return "", fmt.Errorf("%w: a socket called %q", checkpoint.ErrUnsupported, local.Name)
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
