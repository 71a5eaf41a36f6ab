package vmmproc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// FDPath returns a path for an open descriptor of this process. Opening it requires permission on
// the file but on no directory.
func FDPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// withShortPath calls do with a short path for dir/name, however long dir is. A socket address
// holds at most 107 bytes (unix(7)).
func withShortPath(dir, name string, do func(path string) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(do(FDPath(int(d.Fd()))+"/"+name), d.Close())
}

// Listen creates a listening socket at dir/name and replaces an existing one. Closing the listener
// does not remove the name.
func Listen(dir, name string) (l *net.UnixListener, err error) {
	err = withShortPath(dir, name, func(path string) error {
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

// Connect connects to the listener at dir/name, which need not accept yet. Because the monitor may
// own the directory, Connect accepts only a socket and no link to a socket of the host.
func Connect(ctx context.Context, dir, name string) (conn *net.UnixConn, err error) {
	err = withShortPath(dir, name, func(path string) (err error) {
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
		c, err := d.DialContext(ctx, "unix", FDPath(fd))
		if err != nil {
			return err
		}
		conn = c.(*net.UnixConn) // a Dialer returns this type for network unix
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %s in %s: %w", name, dir, err)
	}
	return conn, nil
}
