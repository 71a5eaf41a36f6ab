package initd

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// VsockPort returns the vsock port of the guest channel. The kernel command line names it as
// pandastack.channel=vsock:PORT. 0 means that the channel is a virtio-serial port.
func VsockPort() (uint32, error) {
	text := argument("pandastack.channel", "")
	if text == "" {
		return 0, nil
	}
	number, ok := strings.CutPrefix(text, "vsock:")
	port, err := strconv.ParseUint(number, 10, 31)
	if !ok || err != nil || port == 0 {
		return 0, fmt.Errorf("pandastack.channel=%s is not of the form vsock:PORT", text)
	}
	return uint32(port), nil
}

// Listener accepts vsock connections from the host.
type Listener struct{ fd int }

// Listen returns a Listener on a vsock port. It waits until the machine has a vsock device.
func Listen(port uint32) (*Listener, error) {
	var fd int
	var err error
	poll(func() bool {
		fd, err = unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return !errors.Is(err, unix.EAFNOSUPPORT)
	})
	if err != nil {
		return nil, fmt.Errorf("open vsock: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: port})
	if err == nil {
		err = unix.Listen(fd, 4)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on port %d of vsock: %w", port, err), unix.Close(fd))
	}
	return &Listener{fd}, nil
}

// Accept waits for the next connection from the host. It drops connections from other peers.
func (l *Listener) Accept() (*os.File, error) {
	for {
		fd, from, err := unix.Accept4(l.fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("accept on vsock: %w", err)
		}
		if a, ok := from.(*unix.SockaddrVM); ok && a.CID == unix.VMADDR_CID_HOST {
			return os.NewFile(uintptr(fd), "vsock"), nil
		}
		_ = unix.Close(fd) // no data was exchanged
	}
}
