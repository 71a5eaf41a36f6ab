package qemu

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// Files in Spec.Dir, beside the monitor's record.
const (
	monitorSocket = "monitor.sock"
	channelSocket = "agent.sock"
	memoryFile    = vmmproc.MemoryName // also in an image
	consoleFile   = "console.log"
	kernelFile    = "kernel"
	baseFile      = "base.json" // link to the description of the checkpoint that the monitor was restored from
)

// listen creates a listening socket at dir/name for a monitor to inherit. It replaces an existing
// one.
func listen(dir, name string) (*os.File, error) {
	l, err := vmmproc.Listen(dir, name)
	if err != nil {
		return nil, err
	}
	file, err := l.File()
	return file, errors.Join(err, l.Close())
}

// socketPair returns this process's end as a connection and the monitor's end as a file.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "state"), os.NewFile(uintptr(fds[1]), "state")
	conn, err := net.FileConn(ours)
	if err := errors.Join(err, ours.Close()); err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return conn.(*net.UnixConn), theirs, nil
}
