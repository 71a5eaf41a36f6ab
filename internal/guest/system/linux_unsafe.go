package system

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioctl makes an ioctl call with a pointer to the first byte of arg.
func ioctl(fd int, request uintptr, arg []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(unsafe.SliceData(arg))))
	return asError(errno)
}

// The calls below do not block and bypass Go's scheduler. If the scheduler took the processor from the thread during
// a call and woke another, that would cost a machine that was just restored more than the call.

func pread(fd int, b []byte, at int64) (int, error) {
	return direct(unix.SYS_PREAD64, uintptr(fd), unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)), uintptr(at))
}

func pwrite(fd int, b []byte, at int64) (int, error) {
	return direct(unix.SYS_PWRITE64, uintptr(fd), unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)), uintptr(at))
}

func seekEnd(fd int) (int64, error) {
	n, err := direct(unix.SYS_LSEEK, uintptr(fd), nil, unix.SEEK_END, 0)
	return int64(n), err
}

func truncate(fd int, size int64) error {
	_, _, errno := unix.RawSyscall(unix.SYS_FTRUNCATE, uintptr(fd), uintptr(size), 0)
	return asError(errno)
}

func setHostname(name []byte) error {
	_, _, errno := unix.RawSyscall(
		unix.SYS_SETHOSTNAME,
		uintptr(unsafe.Pointer(unsafe.SliceData(name))),
		uintptr(len(name)),
		0,
	)
	return asError(errno)
}

func setRealtime(ts *unix.Timespec) error {
	_, _, errno := unix.RawSyscall(unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, uintptr(unsafe.Pointer(ts)), 0)
	return asError(errno)
}

// direct makes a system call whose second argument is a pointer.
func direct(call, fd uintptr, p unsafe.Pointer, third, fourth uintptr) (int, error) {
	n, _, errno := unix.RawSyscall6(call, fd, uintptr(p), third, fourth, 0, 0)
	return int(n), asError(errno)
}

func asError(errno unix.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}

// addEntropy adds b to the kernel's random number generator and makes it reseed. RNDADDENTROPY of random.c takes the
// number of bits and of bytes, then the bytes.
func addEntropy(fd int, b []byte) error {
	arg := make([]byte, 8, 8+len(b))
	binary.NativeEndian.PutUint32(arg, uint32(8*len(b)))
	binary.NativeEndian.PutUint32(arg[4:], uint32(len(b)))
	arg = append(arg, b...)
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), unix.RNDADDENTROPY,
		uintptr(unsafe.Pointer(unsafe.SliceData(arg))))
	if errno != 0 {
		return fmt.Errorf("add entropy: %w", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), unix.RNDRESEEDCRNG, 0); errno != 0 {
		return fmt.Errorf("reseed: %w", errno)
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
