package vmmproc

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// offloads are those that our guest kernels accept and that QEMU therefore enables on a tap
// (linux/if_tun.h): packets without checksum and TCP segmentation (TUN_F_CSUM, TUN_F_TSO4,
// TUN_F_TSO6, TUN_F_TSO_ECN).
const offloads = 0x01 | 0x02 | 0x04 | 0x08

// SetUpTap configures a tap as QEMU does when its guest initializes the network card. header is the
// size in bytes of the virtio-net header before each packet, in decimal.
func SetUpTap(tap *os.File, header string) error {
	size, err := strconv.Atoi(header)
	if err != nil {
		return fmt.Errorf("header size of the tap: %w", err)
	}
	if err := unix.IoctlSetPointerInt(int(tap.Fd()), unix.TUNSETVNETHDRSZ, size); err != nil {
		return fmt.Errorf("header size of the tap: %w", err)
	}
	if err := unix.IoctlSetInt(int(tap.Fd()), unix.TUNSETOFFLOAD, offloads); err != nil {
		return fmt.Errorf("offloads of the tap: %w", err)
	}
	return nil
}
