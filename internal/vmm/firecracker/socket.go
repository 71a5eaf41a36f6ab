package firecracker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/vmm"
)

func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func (m *machine) inDir(name string) string { return filepath.Join(m.spec.Dir, name) }

// inDir calls do with a path to name in dir that is short however long dir's is: socket addresses hold
// 107 bytes (unix(7)).
func inDir(dir, name string, do func(path string) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(do(fdPath(int(d.Fd()))+"/"+name), d.Close())
}

// listen makes a listening socket at dir/name, replacing an old one.
func listen(dir, name string) (l *net.UnixListener, err error) {
	err = inDir(dir, name, func(path string) error {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if l, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}); err == nil {
			l.SetUnlinkOnClose(false)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s in %s: %w", name, dir, err)
	}
	return l, nil
}

// connect reaches the listener at dir/name. The directory is the monitor's: what lies there under that name
// must be a socket and no link to one of the host's.
func connect(ctx context.Context, dir, name string) (conn net.Conn, err error) {
	err = inDir(dir, name, func(path string) (err error) {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, unix.Close(fd)) }()
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
			return errors.New("not a socket")
		}
		var d net.Dialer
		conn, err = d.DialContext(ctx, "unix", fdPath(fd))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %s in %s: %w", name, dir, err)
	}
	return conn, nil
}

// How long at most is waited between attempts to reach a monitor that starts, and a guest.
const (
	apiPatience   = 5 * time.Millisecond
	guestPatience = 50 * time.Millisecond
)

// backoff waits ever longer, up to a limit.
type backoff struct{ now, most time.Duration }

func newBackoff(most time.Duration) *backoff { return &backoff{500 * time.Microsecond, most} }

// next waits for the next attempt. It answers why there should be none.
func (b *backoff) next(ctx, life context.Context) error {
	t := time.NewTimer(b.now)
	defer t.Stop()
	b.now = min(2*b.now, b.most)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-life.Done():
		return vmm.ErrGone
	case <-t.C:
		return nil
	}
}
