package initd

import (
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Port is the device of the guest channel. Calls never wait in the kernel but by the runtime's poller: with one
// processor, whatever a request set going would wait until the runtime takes the processor away from a call that
// waits, which it finds out by looking every 20 µs, at the price of a timer interrupt and two switches each.
type Port struct{ file *os.File }

// OpenPort opens the virtio-serial port of the given name, and waits until it is there.
func OpenPort(name string) (*Port, error) {
	var device string
	if !await(func() bool { device = findPort(name); return device != "" }) {
		return nil, fmt.Errorf("virtio port %s does not appear", name)
	}
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", device, err)
	}
	return &Port{os.NewFile(uintptr(fd), device)}, nil
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
func (p *Port) Read(b []byte) (int, error) { return p.file.Read(b) }

// Write implements io.Writer. It waits while no host is connected.
func (p *Port) Write(b []byte) (int, error) { return p.file.Write(b) }

// Connected returns when a host is connected. A read would answer at once, and polling tells a hang-up at
// once; only a write waits. So it writes 8 zero bytes, which mean nothing on this channel.
func (p *Port) Connected() error {
	var noop [8]byte
	if _, err := p.Write(noop[:]); err != nil {
		return fmt.Errorf("wait for host: %w", err)
	}
	return nil
}
