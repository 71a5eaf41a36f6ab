package vmmproc

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// What the guest's kernels of ours accept, and QEMU asks of a tap for them (linux/if_tun.h): packets without a sum,
// and larger ones than the network takes.
const offloads = 0x01 | 0x02 | 0x04 | 0x08

// SetUpTap does to a tap what a monitor does to it when it starts and its guest finds the card. header is the size,
// in bytes, of what precedes each packet, as text.
func SetUpTap(tap *os.File, header string) error {
	size, err := strconv.Atoi(header)
	if err != nil {
		return fmt.Errorf("headers of the tap: %w", err)
	}
	if err := unix.IoctlSetPointerInt(int(tap.Fd()), unix.TUNSETVNETHDRSZ, size); err != nil {
		return fmt.Errorf("size of headers of the tap: %w", err)
	}
	if err := unix.IoctlSetInt(int(tap.Fd()), unix.TUNSETOFFLOAD, offloads); err != nil {
		return fmt.Errorf("offloads of the tap: %w", err)
	}
	return nil
}
