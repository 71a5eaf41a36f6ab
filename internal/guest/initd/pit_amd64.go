package initd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Ports of the programmable interval timer (Intel 8254).
const (
	pitCounter0 = 0x40
	pitControl  = 0x43
	pitPorts    = pitControl - pitCounter0 + 1
)

// pitOneShot programs counter 0 for mode 0 with a count of two bytes: it counts down once.
const pitOneShot = 0x30

// outb writes a byte to an I/O port.
func outb(port uint16, value byte)

// StopIntervalTimer stops the programmable interval timer, unless the kernel keeps time with it.
//
// The timer runs from reset, with interrupts 18 times a second, and kernels that use the timers of their processors
// leave it as it is. The interrupts are masked, but the monitor makes them and wakes the processor for each: that was
// more than half of the CPU time of an idle guest. Call StopIntervalTimer after Devices.
func StopIntervalTimer() error {
	if !usesLocalTimers("/sys/devices/system/clockevents") {
		return nil
	}
	runtime.LockOSThread() // the permission is the thread's
	defer runtime.UnlockOSThread()
	if err := permitPorts(true); err != nil {
		if errors.Is(err, unix.ENOSYS) { // a kernel without ioperm leaves the timer to itself
			return nil
		}
		return err
	}
	outb(pitControl, pitOneShot)
	outb(pitCounter0, 0)
	outb(pitCounter0, 0)
	return permitPorts(false)
}

// permitPorts permits or forbids this thread to access the timer's ports.
func permitPorts(on bool) error {
	permit := uintptr(0)
	if on {
		permit = 1
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_IOPERM, pitCounter0, pitPorts, permit); errno != 0 {
		return fmt.Errorf("permit ports of the interval timer: %w", errno)
	}
	return nil
}

// usesLocalTimers reports whether every processor has its own timer (APIC), by the directory of clock event devices.
func usesLocalTimers(dir string) bool {
	found, err := filepath.Glob(filepath.Join(dir, "clockevent*", "current_device"))
	if err != nil || len(found) == 0 {
		return false
	}
	for _, path := range found {
		if name, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(name), "lapic") {
			return false
		}
	}
	return true
}
