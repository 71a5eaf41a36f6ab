package early

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ignore sets the action of a signal behind the runtime's back. The kernel's struct sigaction begins with
// the handler, of which 1 is to ignore; the rest is zero whatever the machine's layout, at most 32 bytes.
func ignore(s unix.Signal) error {
	const maskSize = 8
	var action [32]byte
	binary.NativeEndian.PutUint64(action[:], 1)
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&action)), 0, maskSize, 0, 0)
	if errno != 0 {
		return fmt.Errorf("ignore signal %d: %w", s, errno)
	}
	return nil
}
