package jail

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setFilter gives the calling thread a filter that it, and what it starts, never loses. It must have no new
// privileges.
//
// The kernel copies the program during the call, for which it stays where it is: it is kept alive, and is not on
// a stack that could move, since its address is taken as that of a slice's first element.
func setFilter(program []unix.SockFilter) error {
	p := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&p)), 0, 0)
	runtime.KeepAlive(program)
	runtime.KeepAlive(&p)
	return err
}
