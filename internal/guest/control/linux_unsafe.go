package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioctl calls with a pointer to the first byte of arg.
func ioctl(file string, request uintptr, arg []byte) error {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", file, err)
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(unsafe.SliceData(arg))))
	if errno != 0 {
		err = fmt.Errorf("ioctl %s: %w", file, errno)
	}
	return errors.Join(err, unix.Close(fd))
}

// addEntropy gives the kernel's generator b, and has it reseed: random.c, RNDADDENTROPY takes the number
// of bits and of bytes, then the bytes.
func addEntropy(b []byte) error {
	arg := make([]byte, 8, 8+len(b))
	binary.NativeEndian.PutUint32(arg, uint32(8*len(b)))
	binary.NativeEndian.PutUint32(arg[4:], uint32(len(b)))
	if err := ioctl("/dev/urandom", unix.RNDADDENTROPY, append(arg, b...)); err != nil {
		return err
	}
	return ioctl("/dev/urandom", unix.RNDRESEEDCRNG, nil)
}

// ext4ResizeFS is EXT4_IOC_RESIZE_FS of fs/ext4/ext4.h: _IOW('f', 16, __u64).
const ext4ResizeFS = 0x40086610

func resizeRoot(blocks uint64) error {
	var arg [8]byte
	binary.NativeEndian.PutUint64(arg[:], blocks)
	return ioctl("/", ext4ResizeFS, arg[:])
}
