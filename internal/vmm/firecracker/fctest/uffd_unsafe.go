package fctest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The ioctls of userfaultfd(2) and tun. The numbers include the sizes of their arguments.
const (
	uffdNew          = 0xaa00
	uffdAPI          = 0xc018aa3f
	uffdRegister     = 0xc020aa00
	uffdVersion      = 0xaa
	uffdEventRemove  = 1 << 3
	uffdModeMissing  = 1
	tunSetInterface  = 0x400454ca
	interfaceTap     = 0x0002
	interfaceNoInfo  = 0x1000
	interfaceHeader  = 0x4000
	interfaceNameMax = 16
)

// uffd is a userfaultfd for guest memory, with the connection of its handshake.
type uffd struct {
	file *os.File
	conn net.Conn
}

// region describes guest memory in the handshake. The last member holds bytes as well, as in
// Firecracker.
type region struct {
	Base    uint64 `json:"base_host_virt_addr"`
	Size    int64  `json:"size"`
	Offset  int64  `json:"offset"`
	Page    int64  `json:"page_size"`
	PageKiB int64  `json:"page_size_kib"`
}

// handOver creates a userfaultfd for mem and sends it to the handler that listens at path.
func handOver(mem []byte, page int64, path string) (*uffd, error) {
	fd, err := newUffd()
	if err != nil {
		return nil, fmt.Errorf("userfaultfd: %w", err)
	}
	u := &uffd{file: os.NewFile(fd, "userfaultfd")}
	api := [3]uint64{uffdVersion, uffdEventRemove, 0}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uffdAPI, uintptr(unsafe.Pointer(&api))); errno != 0 {
		return nil, errors.Join(fmt.Errorf("userfaultfd API: %w", errno), u.file.Close())
	}
	// The garbage collector does not manage this mapping, so its address stays valid until it is
	// unmapped.
	base := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	register := [4]uint64{base, uint64(len(mem)), uffdModeMissing, 0}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uffdRegister, uintptr(unsafe.Pointer(&register))); errno != 0 {
		return nil, errors.Join(fmt.Errorf("userfaultfd register: %w", errno), u.file.Close())
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, errors.Join(bad("Cannot connect to UDS of the page fault handler: %v", err), u.file.Close())
	}
	u.conn = conn
	text, err := json.Marshal([]region{{base, int64(len(mem)), 0, page, page}})
	if err != nil {
		return nil, err
	}
	if _, _, err := conn.(*net.UnixConn).WriteMsgUnix(text, unix.UnixRights(int(fd)), nil); err != nil {
		return nil, errors.Join(err, conn.Close(), u.file.Close())
	}
	return u, nil
}

// newUffd creates a userfaultfd with /dev/userfaultfd or, if there is none, the system call, which
// needs a privilege.
func newUffd() (uintptr, error) {
	const flags = unix.O_CLOEXEC | unix.O_NONBLOCK
	if dev, err := unix.Open("/dev/userfaultfd", unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
		fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(dev), uffdNew, flags)
		if err := unix.Close(dev); err != nil || errno != 0 {
			return 0, errors.Join(err, errno)
		}
		return fd, nil
	}
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, flags, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return fd, nil
}

// attachTap opens a tap like a network device. The tap stays open until this process exits. The
// kernel creates an absent one for a process that may do so, and refuses it to others. Names with
// the prefix "test" stand for taps in tests that cannot create one.
func attachTap(name string) error {
	if len(name) >= 4 && name[:4] == "test" {
		return nil
	}
	if len(name) >= interfaceNameMax {
		return unix.EINVAL
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	var request struct {
		name  [interfaceNameMax]byte
		flags uint16
		_     [22]byte
	}
	copy(request.name[:], name)
	request.flags = interfaceTap | interfaceNoInfo | interfaceHeader
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), tunSetInterface,
		uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errors.Join(errno, unix.Close(fd))
	}
	return nil
}
