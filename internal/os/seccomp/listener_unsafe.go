package seccomp

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/seccomp.h. The numbers of the ioctls include the sizes of their arguments.
const (
	receiveIoctl = 0xc0502100
	sendIoctl    = 0xc0182101
	continueFlag = 1
)

// notification is struct seccomp_notif.
type notification struct {
	ID     uint64
	PID    uint32
	Flags  uint32
	Number int32
	Arch   uint32
	IP     uint64
	Args   [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	ID    uint64
	Value int64
	Error int32
	Flags uint32
}

// installListening installs a filter in the calling thread and returns the descriptor of its notifications.
//
// Safety: the kernel copies the program during the call. The program is kept alive until then and cannot move,
// because its address is taken from the first element of a slice that escapes to the heap.
func installListening(program []unix.SockFilter) (int, error) {
	p := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&p)))
	runtime.KeepAlive(program)
	runtime.KeepAlive(&p)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// receive receives a notification. It waits if there is none.
func receive(fd int) (Call, error) {
	var n notification
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), receiveIoctl, uintptr(unsafe.Pointer(&n)))
	if errno != 0 {
		return Call{}, errno
	}
	return Call{PID: int(n.PID), Name: Name(int(n.Number)), Args: n.Args, id: n.ID}, nil
}

func send(fd int, r response) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), sendIoctl, uintptr(unsafe.Pointer(&r)))
	if errno != 0 {
		return errno
	}
	return nil
}
