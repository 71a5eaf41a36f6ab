package volume

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// deviceBytes returns the size of an open block device.
func deviceBytes(fd int) (int64, error) {
	var n uint64
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&n)))
	if errno != 0 {
		return 0, errno
	}
	return int64(n), nil
}

// flushBuffers drops what the kernel has cached of an open block device.
func flushBuffers(fd int) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKFLSBUF, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// ext4ResizeFS is EXT4_IOC_RESIZE_FS of fs/ext4/ext4.h: _IOW('f', 16, __u64).
const ext4ResizeFS = 0x40086610

// grow grows the ext4 file system that is mounted at dir to its device.
func grow(dev, dir string) (err error) {
	disk, err := unix.Open(dev, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dev, err)
	}
	defer func() { err = errors.Join(err, unix.Close(disk)) }()
	size, err := deviceBytes(disk)
	if err != nil {
		return fmt.Errorf("read size of %s: %w", dev, err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("read file system at %s: %w", dir, err)
	}
	// Documentation/filesystems/ext4/super.rst, s_blocks_count: statfs leaves out the blocks that ext4 itself needs.
	const superblock, low, high = 1024, 0x4, 0x150
	var b [1024]byte
	if n, err := unix.Pread(disk, b[:], superblock); err != nil || n < len(b) {
		return fmt.Errorf("read superblock of %s: %d bytes, %w", dev, n, err)
	}
	have := uint64(binary.LittleEndian.Uint32(b[low:])) | uint64(binary.LittleEndian.Uint32(b[high:]))<<32
	want := uint64(size) / uint64(fs.Bsize)
	if want <= have {
		return nil
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ext4ResizeFS, uintptr(unsafe.Pointer(&want)))
	if errno != 0 {
		return fmt.Errorf("grow file system at %s to %d blocks: %w", dir, want, errno)
	}
	return nil
}
