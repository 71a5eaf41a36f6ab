package process

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/guest/passwd"
)

// stdio holds the files of a process that is about to start. Descriptors that do not exist are 0.
type stdio struct {
	owner *passwd.User // owner of the pipes: programs open /dev/stderr by name

	child [3]uintptr // descriptors of the process
	owned []int      // descriptors to close once the process has its own
	in    *os.File
	pty   *os.File
	out   []*output
}

func (pl *stdio) closeChild() {
	for _, fd := range pl.owned {
		_ = unix.Close(fd) // the process has its own
	}
}

func (pl *stdio) closeParent() {
	for _, o := range pl.out {
		_ = o.file.Close() // nothing was read
	}
	if pl.in != nil {
		_ = pl.in.Close() // nothing was written
	}
}

// pipe makes a pipe whose end on this side does not block.
func (pl *stdio) pipe(ours int, name string) (*os.File, uintptr, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, 0, fmt.Errorf("make pipe: %w", err)
	}
	pl.owned = append(pl.owned, fds[1-ours])
	if os.Getuid() == 0 {
		if err := unix.Fchown(fds[1-ours], int(pl.owner.UID), int(pl.owner.GID)); err != nil {
			pl.owned = append(pl.owned, fds[ours])
			return nil, 0, fmt.Errorf("own pipe: %w", err)
		}
	}
	if err := unix.SetNonblock(fds[ours], true); err != nil {
		pl.owned = append(pl.owned, fds[ours])
		return nil, 0, fmt.Errorf("make pipe: %w", err)
	}
	return os.NewFile(uintptr(fds[ours]), name), uintptr(fds[1-ours]), nil
}

func (pl *stdio) pipes(stdin bool) error {
	var err error
	if stdin {
		pl.in, pl.child[0], err = pl.pipe(1, "stdin")
	} else {
		var null int
		null, err = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			pl.owned = append(pl.owned, null)
			pl.child[0] = uintptr(null)
		}
	}
	for i, stream := range []guestapi.Stream{guestapi.StreamStdout, guestapi.StreamStderr} {
		if err != nil {
			return err
		}
		o := &output{stream: stream}
		if o.file, pl.child[i+1], err = pl.pipe(0, "output"); err == nil {
			pl.out = append(pl.out, o)
		}
	}
	return err
}

// terminal makes a pseudo-terminal that belongs to the user.
func (pl *stdio) terminal(l *launch) error {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open terminal: %w", err)
	}
	pl.pty = os.NewFile(uintptr(master), "terminal")
	pl.in = pl.pty
	pl.out = []*output{{stream: guestapi.StreamPTY, file: pl.pty}}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return fmt.Errorf("unlock terminal: %w", err)
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return fmt.Errorf("find terminal: %w", err)
	}
	slave, err := unix.Open("/dev/pts/"+strconv.Itoa(int(uint32(n))), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open terminal: %w", err)
	}
	pl.owned = append(pl.owned, slave)
	pl.child = [3]uintptr{uintptr(slave), uintptr(slave), uintptr(slave)}
	if os.Getuid() == 0 {
		if err := unix.Fchown(slave, int(l.user.UID), -1); err != nil {
			return fmt.Errorf("own terminal: %w", err)
		}
	}
	size := unix.Winsize{Row: l.size.Rows, Col: l.size.Cols}
	if err := unix.IoctlSetWinsize(slave, unix.TIOCSWINSZ, &size); err != nil {
		return fmt.Errorf("size terminal: %w", err)
	}
	return nil
}
