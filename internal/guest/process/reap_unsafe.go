package process

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// peekChild waits until a child has ended, without collecting it, and returns its PID.
func peekChild(kind, id int) (int, error) {
	var info unix.Siginfo
	if err := unix.Waitid(kind, id, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		return 0, err
	}
	// siginfo_t of SIGCHLD: three words and padding to 8 bytes on 64-bit machines, then si_pid.
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), 16))), nil
}
