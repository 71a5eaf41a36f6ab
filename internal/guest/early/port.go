package early

import (
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Port is the device of the guest channel. Its calls wait in the kernel, each in a thread of its own:
// that is the shortest way from an interrupt to the agent.
type Port struct{ fd int }

// OpenPort opens the virtio-serial port of the given name, and waits until it is there.
func OpenPort(name string) (*Port, error) {
	var device string
	if !await(func() bool { device = findPort(name); return device != "" }) {
		return nil, fmt.Errorf("virtio port %s does not appear", name)
	}
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", device, err)
	}
	return &Port{fd}, nil
}

func findPort(name string) string {
	const class = "/sys/class/virtio-ports"
	entries, _ := os.ReadDir(class) // not there before the first port is
	for _, e := range entries {
		b, _ := os.ReadFile(path.Join(class, e.Name(), "name")) // a port may have none
		device := "/dev/" + e.Name()
		if strings.TrimSpace(string(b)) == name && unix.Access(device, unix.F_OK) == nil {
			return device
		}
	}
	return ""
}

// Read implements io.Reader. io.EOF says that no host is connected.
func (p *Port) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(p.fd, b)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, fmt.Errorf("read guest channel: %w", err)
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// Write implements io.Writer. It waits while no host is connected. The device takes part of what is
// written when it is much.
func (p *Port) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		n, err := unix.Write(p.fd, b[done:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, fmt.Errorf("write guest channel: %w", err)
		}
		done += n
	}
	return done, nil
}

// Connected returns when a host is connected. A read would answer at once, and polling tells a hang-up at
// once; only a write waits. So it writes 8 zero bytes, which mean nothing on this channel.
func (p *Port) Connected() error {
	var noop [8]byte
	if _, err := p.Write(noop[:]); err != nil {
		return fmt.Errorf("wait for host: %w", err)
	}
	return nil
}
