package netslot

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// BusyError says that the tap of a slot is still held by another process: the monitor of the machine that
// had the slot has not ended. The slot can be given back again once it has.
type BusyError struct{ Index int }

func (e *BusyError) Error() string {
	return fmt.Sprintf("tap of slot %d is still held by its former monitor process", e.Index)
}

// openTap opens tap0 in the namespace of the calling thread, making it if need be. The device outlives its
// descriptor, so that its addresses and neighbours are set up once. unix.EBUSY: another process holds it.
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

// ShareTap lets go of the tap, for a monitor of user uid that opens it itself by TapName, in the namespace that
// Hand answers, open; the caller closes that. What was set of the tap stays.
func (s *Slot) ShareTap(uid int) (*os.File, error) {
	s.mu.Lock()
	tap := s.Tap
	s.Tap = nil
	s.mu.Unlock()
	if tap != nil {
		err := unix.IoctlSetInt(int(tap.Fd()), unix.TUNSETOWNER, uid)
		if err := errors.Join(err, tap.Close()); err != nil {
			return nil, fmt.Errorf("let go of %s: %w", tapName, err)
		}
	}
	return openInside(s.pool.linkName(s.Index))
}
