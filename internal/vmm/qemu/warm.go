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
	_ vmm.Rememberer = (*Driver)(nil)
	_ vmm.Carrier    = (*Driver)(nil)
)

// Remembers implements vmm.Rememberer.
func (d *Driver) Remembers(image vmm.Image) (bool, error) {
	p, err := d.warm.Find(image.Dir)
	return p != nil, err
}

// Pack implements vmm.Carrier.
func (d *Driver) Pack(_ context.Context, image vmm.Image) (*vmm.Parcel, error) {
	return d.warm.Pack(image.Dir)
}

// Unpack implements vmm.Carrier.
func (d *Driver) Unpack(ctx context.Context, image vmm.Image, from vmm.Delivery) error {
	if d.warm == nil {
		return &vmm.MismatchError{Field: "process image", Image: "one", Host: "none is used"}
	}
	return d.warm.Unpack(ctx, image.Dir, from)
}

// refuse tells why the image of a monitor has no process in it.
func (d *Driver) refuse(err error) {
	d.config.Log.Warn("machines of an image begin by their device state alone, which takes longer", "why", err)
}

// writeProcess completes an image in dir with the process that was captured with it.
func (c *capture) writeProcess(dir string) error {
	if c.process == nil || c.content != nil && c.made == nil {
		return nil
	}
	return c.store.Save(dir, checkpointstore.Process{Set: c.set, Ahead: c.ahead, Base: c.made, Sum: c.sum}, c.process)
}

// Roles of a monitor's descriptors.
const (
	roleNothing = "nothing" // /dev/null, and what is of no use to another process
	roleLog     = "log"
	roleTap     = "tap " // and the size of the header before each packet, which monitor and tap agree on
	roleMemory  = "memory"
	roleListen  = "listen " // and the name of the socket, as in roleTalk
	roleTalk    = "talk "
	roleDisk    = "disk "
	writable    = " writable"
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
		return roleNothing, nil
	case unix.S_IFCHR:
		switch uint64(st.Rdev) {
		case nullDevice:
			return roleNothing, nil
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
	return roleTalk + base, nil
}

func (m *machine) fileRole(f *os.File, link string, key vmmproc.FileKey) (string, error) {
	switch {
	case key == m.record.mapped(), key == m.record.Memory:
		return roleMemory, nil
	case strings.HasPrefix(link, "/memfd:log"):
		return roleLog, nil
	case strings.HasPrefix(link, "/memfd:"), key.Inode == m.record.Content:
		return roleNothing, nil
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
