package qemu

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

// Files in Spec.Dir.
const (
	monitorSocket = "monitor.sock"
	channelSocket = "agent.sock"
	recordFile    = "monitor.json"
	memoryFile    = "memory" // also the memory of an image
	consoleFile   = "console.log"
)

// inDir calls do with a path to name in dir that is short however long dir's is: socket addresses hold
// 107 bytes (unix(7)).
func inDir(dir, name string, do func(path string) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(do("/proc/self/fd/"+strconv.Itoa(int(d.Fd()))+"/"+name), d.Close())
}

// listen makes a listening socket at dir/name, replacing an old one, for a monitor to inherit.
func listen(dir, name string) (*os.File, error) {
	var file *os.File
	err := inDir(dir, name, func(path string) error {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		l.SetUnlinkOnClose(false)
		file, err = l.File()
		return errors.Join(err, l.Close())
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s in %s: %w", name, dir, err)
	}
	return file, nil
}

// connect reaches the listener at dir/name, which need not accept yet.
func connect(ctx context.Context, dir, name string) (*net.UnixConn, error) {
	var conn net.Conn
	err := inDir(dir, name, func(path string) error {
		var d net.Dialer
		var err error
		conn, err = d.DialContext(ctx, "unix", path)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %s in %s: %w", name, dir, err)
	}
	return conn.(*net.UnixConn), nil
}

// socketPair answers our end as a connection and the monitor's as a file.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "state"), os.NewFile(uintptr(fds[1]), "state")
	conn, err := net.FileConn(ours)
	if err := errors.Join(err, ours.Close()); err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return conn.(*net.UnixConn), theirs, nil
}
