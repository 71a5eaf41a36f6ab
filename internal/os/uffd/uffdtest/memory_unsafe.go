package uffdtest

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/os/uffd"
)

// memory maps private memory aligned to its page size, and returns its address as well. The memory
// is never unmapped.
func memory(size, page int) ([]byte, uint64, error) {
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	if page == uffd.Huge {
		flags |= unix.MAP_HUGETLB
	}
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, 0, err
	}
	return mem, uint64(uintptr(unsafe.Pointer(&mem[0]))), nil
}
