package disk

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Values of linux/fiemap.h and linux/fs.h.
const (
	fsIocFiemap  = 0xc020660b
	fiemapSync   = 0x1
	extentLast   = 0x1
	extentShared = 0x2000
	extentBatch  = 256
)

// extent is struct fiemap_extent.
type extent struct {
	Logical  uint64
	Physical uint64
	Length   uint64
	_        [2]uint64
	Flags    uint32
	_        [3]uint32
}

// fiemap is struct fiemap with room for a batch of extents.
type fiemap struct {
	start   uint64
	length  uint64
	flags   uint32
	mapped  uint32
	count   uint32
	_       uint32
	extents [extentBatch]extent
}

// eachExtent calls yield for the allocated extents of f in order, after it has written f out.
func eachExtent(f *os.File, yield func(extent)) error { return extents(f, fiemapSync, yield) }

// eachExtentNow is eachExtent without waiting for what is being written.
func eachExtentNow(f *os.File, yield func(extent)) error { return extents(f, 0, yield) }

func extents(f *os.File, flags uint32, yield func(extent)) error {
	var m fiemap
	var next uint64
	for {
		m.start, m.length, m.flags, m.mapped, m.count = next, ^uint64(0)-next, flags, 0, extentBatch
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fsIocFiemap, uintptr(unsafe.Pointer(&m)))
		runtime.KeepAlive(f)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return errno
		}
		for i := range m.mapped {
			e := m.extents[i]
			yield(e)
			next = e.Logical + e.Length
			if e.Flags&extentLast != 0 {
				return nil
			}
		}
		if m.mapped == 0 {
			return nil
		}
	}
}
