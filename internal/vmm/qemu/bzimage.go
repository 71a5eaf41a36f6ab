package qemu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// Offsets in the header of a bzImage (Documentation/arch/x86/boot.rst).
const (
	headerMagicAt   = 0x202 // "HdrS"
	initrdAddrMaxAt = 0x22c
)

const (
	pageMask = 0xfff
	// lowMemory is how much memory a microvm has below 4 GiB at most.
	lowMemory = 3 << 30
	// initrdAddrMaxStep is how far initrd_addr_max is lowered: a page would do.
	initrdAddrMaxStep = 64 << 10
)

// loadsOverFirmware reports whether QEMU would load an initramfs over memory of the firmware, in a machine with
// ACPI, this much memory and a bzImage with this initrd_addr_max.
//
// QEMU places the initramfs against the end of the memory below 4 GiB (hw/i386/x86-common.c, x86_load_linux;
// microvm reserves nothing there for ACPI tables). That memory is SeaBIOS's: it has the ACPI tables in the last
// page and, below it, the queues of disks, some pages for each. The option ROM that loads the initramfs therefore
// moves it below all that the firmware has reserved, unless it ends in the page of initrd_addr_max
// (pc-bios/optionrom/linuxboot_dma.c, load_kernel). It takes that for a limit of the kernel's. initrd_addr_max is
// 0x7fffffff in every bzImage, which is the end of the memory in a machine of exactly 2048 MiB: the tables are
// lost to the initramfs, or its last files to the queues.
func loadsOverFirmware(memoryMiB int, initrdAddrMax uint32) bool {
	last := min(uint64(memoryMiB)<<20, lowMemory) - 1
	return last&^pageMask == uint64(initrdAddrMax)&^pageMask
}

// placeInitramfs returns the kernel to boot a machine with ACPI: kernel itself, or a copy of it at path with a lower
// initrd_addr_max, where QEMU would load the initramfs over memory of the firmware. Linux does not read
// initrd_addr_max, and the option ROM only compares it.
func placeInitramfs(kernel *os.File, memoryMiB int, path string) (_ *os.File, err error) {
	var magic, limit [4]byte
	if _, err := kernel.ReadAt(magic[:], headerMagicAt); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if string(magic[:]) != "HdrS" {
		return kernel, nil
	}
	if _, err := kernel.ReadAt(limit[:], initrdAddrMaxAt); err != nil {
		return nil, fmt.Errorf("read header of the kernel: %w", err)
	}
	highest := binary.LittleEndian.Uint32(limit[:])
	if highest < initrdAddrMaxStep || !loadsOverFirmware(memoryMiB, highest) {
		return kernel, nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint32(limit[:], highest-initrdAddrMaxStep)
	_, err = io.Copy(f, io.NewSectionReader(kernel, 0, 1<<62))
	if err == nil {
		_, err = f.WriteAt(limit[:], initrdAddrMaxAt)
	}
	if err == nil {
		err = f.Chmod(0o644) // the monitor's user opens it, whatever the umask
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("copy the kernel: %w", err), f.Close())
	}
	return f, nil
}
