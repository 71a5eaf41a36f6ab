package qemu

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/fs.h (Linux 6.7).
const (
	pagemapScanIoctl = 0xc0606610
	pageIsFile       = 1 << 2
	pageIsPresent    = 1 << 3
	pageIsSwapped    = 1 << 4
)

// pageRegion is struct page_region.
type pageRegion struct{ start, end, categories uint64 }

// pagemapScanArg is struct pm_scan_arg.
type pagemapScanArg struct {
	size, flags, start, end, walkEnd, vec, vecLen, maxPages   uint64
	categoryInverted, categoryMask, categoryAnyOf, returnMask uint64
}

// pagemapScan asks the kernel for private pages, present or swapped, of the process whose pagemap fd is,
// from start to end. It answers how many regions it filled and where it stopped.
func pagemapScan(fd int, start, end uint64, regions []pageRegion) (int, uint64, error) {
	arg := pagemapScanArg{
		start: start, end: end,
		vec: uint64(uintptr(unsafe.Pointer(&regions[0]))), vecLen: uint64(len(regions)),
		categoryInverted: pageIsFile, categoryMask: pageIsFile, categoryAnyOf: pageIsPresent | pageIsSwapped,
		returnMask: pageIsPresent,
	}
	arg.size = uint64(unsafe.Sizeof(arg))
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pagemapScanIoctl, uintptr(unsafe.Pointer(&arg)))
	if errno != 0 {
		return 0, 0, errno
	}
	return int(n), arg.walkEnd, nil
}
