package netslot

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// BusyError reports that another process still holds the tap of a slot. It is the monitor of the machine that used
// the slot. The slot can be released again once the monitor has ended.
type BusyError struct{ Index int }

// Error implements error.
func (e *BusyError) Error() string {
	return fmt.Sprintf("tap of slot %d is still held by its former monitor process", e.Index)
}

// openTap opens tap0 in the namespace of the calling thread, and makes it if needed. The device outlives its
// descriptor, so that its addresses and neighbours are set up once. The error is unix.EBUSY if another process holds
// it.
func openTap() (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	if err := attachTap(fd); err != nil {
		return nil, errors.Join(fmt.Errorf("attach to %s: %w", tapName, err), unix.Close(fd))
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return nil, errors.Join(fmt.Errorf("keep %s: %w", tapName, err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), tapName), nil
}

// ShareTap closes the tap for a monitor of user uid that opens it itself.
//
// The monitor opens it by TapName in the namespace that ShareTap returns open, which the caller closes. The settings
// of the tap stay.
func (s *Slot) ShareTap(uid int) (*os.File, error) {
	s.mu.Lock()
	tap := s.Tap
	s.Tap = nil
	s.mu.Unlock()
	if tap != nil {
		err := unix.IoctlSetInt(int(tap.Fd()), unix.TUNSETOWNER, uid)
		if err := errors.Join(err, tap.Close()); err != nil {
			return nil, fmt.Errorf("close %s: %w", tapName, err)
		}
	}
	return openNamespace(s.pool.linkName(s.Index))
}
