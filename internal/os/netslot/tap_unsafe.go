package netslot

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// attachTap attaches fd, of /dev/net/tun, to tap0.
//
// The pointer given to the kernel is to a local of the size of struct ifreq (40 bytes on 64-bit Linux), which the
// kernel reads and writes during the call alone. The conversion to uintptr is in the argument list of the call, so
// that the garbage collector keeps the value in place.
func attachTap(fd int) error {
	var request struct {
		name  [unix.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	copy(request.name[:], tapName)
	request.flags = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return errno
	}
	return nil
}
