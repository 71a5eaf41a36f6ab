package initd

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Values of the first word of the kernel's struct sigaction that are not handlers.
const (
	actionDefault uint64 = 0
	actionIgnore  uint64 = 1
)

// setAction sets the action of a signal without the runtime's knowledge. The rest of struct sigaction is zero on
// every architecture, and the struct has at most 32 bytes.
func setAction(s unix.Signal, act uint64) error {
	const maskSize = 8
	var action [32]byte
	binary.NativeEndian.PutUint64(action[:], act)
	_, _, errno := unix.RawSyscall6(
		unix.SYS_RT_SIGACTION,
		uintptr(s),
		uintptr(unsafe.Pointer(&action)),
		0,
		maskSize,
		0,
		0,
	)
	if errno != 0 {
		return fmt.Errorf("set action of signal %d: %w", s, errno)
	}
	return nil
}
