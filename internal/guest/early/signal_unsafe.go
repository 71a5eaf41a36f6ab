package early

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// defaultAction removes the handler of a signal. All zeros is the default action with no flags, whatever
// the layout of the machine's struct sigaction; it is at most 32 bytes long.
func defaultAction(s unix.Signal) error {
	const maskSize = 8
	var action [32]byte
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&action)), 0, maskSize, 0, 0)
	if errno != 0 {
		return fmt.Errorf("remove handler of signal %d: %w", s, errno)
	}
	return nil
}
