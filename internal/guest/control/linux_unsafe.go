package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioctl calls with a pointer to the first byte of arg.
func ioctl(fd int, request uintptr, arg []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(unsafe.SliceData(arg))))
	if errno != 0 {
		return errno
	}
	return nil
}

// addEntropy gives the kernel's generator b, and has it reseed: random.c, RNDADDENTROPY takes the number
// of bits and of bytes, then the bytes.
func addEntropy(fd int, b []byte) error {
	arg := make([]byte, 8, 8+len(b))
	binary.NativeEndian.PutUint32(arg, uint32(8*len(b)))
	binary.NativeEndian.PutUint32(arg[4:], uint32(len(b)))
	if err := ioctl(fd, unix.RNDADDENTROPY, append(arg, b...)); err != nil {
		return fmt.Errorf("add entropy: %w", err)
	}
	if err := ioctl(fd, unix.RNDRESEEDCRNG, nil); err != nil {
		return fmt.Errorf("reseed: %w", err)
	}
	return nil
}

// ext4ResizeFS is EXT4_IOC_RESIZE_FS of fs/ext4/ext4.h: _IOW('f', 16, __u64).
const ext4ResizeFS = 0x40086610

// resize grows the ext4 file system that is mounted at dir.
func resize(dir string, blocks uint64) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	var arg [8]byte
	binary.NativeEndian.PutUint64(arg[:], blocks)
	if err = errors.Join(ioctl(fd, ext4ResizeFS, arg[:]), unix.Close(fd)); err != nil {
		return fmt.Errorf("grow file system to %d blocks: %w", blocks, err)
	}
	return nil
}
