package disk

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fiTrim is FITRIM of linux/fs.h.
const fiTrim = 0xc0185879

// trimRange is struct fstrim_range.
type trimRange struct{ start, length, least uint64 }

// trim discards the free ranges of at least that many bytes on the file system of dir.
func trim(dir *os.File, least int64) error {
	r := trimRange{length: ^uint64(0), least: uint64(least)}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), fiTrim, uintptr(unsafe.Pointer(&r)))
	runtime.KeepAlive(dir)
	if errno != 0 {
		return errno
	}
	return nil
}
