package jail

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// rlimit is one resource limit.
type rlimit struct {
	name     string
	resource int
	value    uint64
}

// setLimits sets the resource limits of a process. For a process of another user this needs
// CAP_SYS_RESOURCE (prlimit(2)), which root may lack in a container. Then a thread that has
// switched to that user sets them.
func setLimits(pid int, limits []rlimit) error {
	err := prlimit(pid, limits)
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	info, statErr := os.Stat(fmt.Sprintf("/proc/%d", pid))
	if statErr != nil {
		return errors.Join(err, statErr)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return err
	}
	return onNewThread(
		func() error { return asUser(int(st.Uid), int(st.Gid), func() error { return prlimit(pid, limits) }) },
	)
}

// asUser runs do with the credentials of another user. The thread keeps them.
func asUser(uid, gid int, do func() error) error {
	for _, set := range []struct {
		call uintptr
		id   int
	}{{unix.SYS_SETRESGID, gid}, {unix.SYS_SETRESUID, uid}} {
		id := uintptr(set.id)
		if _, _, errno := unix.RawSyscall(set.call, id, id, id); errno != 0 {
			return fmt.Errorf("switch to user %d: %w", uid, errno)
		}
	}
	return do()
}

func prlimit(pid int, limits []rlimit) error {
	for _, l := range limits {
		if err := unix.Prlimit(pid, l.resource, &unix.Rlimit{Cur: l.value, Max: l.value}, nil); err != nil {
			return fmt.Errorf("limit %s of process %d: %w", l.name, pid, err)
		}
	}
	return nil
}
