package jail

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setFilter installs a seccomp filter for the calling thread and its future children. It cannot be
// removed. The thread must have no_new_privs set.
//
// Safety: the kernel copies the program during the call. The program is kept alive until then and
// cannot move, because its address is taken from the first element of a slice that escapes to the
// heap.
func setFilter(program []unix.SockFilter) error {
	p := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&p)), 0, 0)
	runtime.KeepAlive(program)
	runtime.KeepAlive(&p)
	return err
}
