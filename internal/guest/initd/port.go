package initd

import (
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Port is the device of the guest channel. Its calls wait in the runtime's poller, never in the kernel: with one
// processor, the goroutines that a request wakes would wait until the runtime takes the processor from a thread
// blocked in a system call. The runtime notices such a thread by polling every 20 µs, which costs a timer interrupt
// and two context switches each time.
type Port struct{ file *os.File }

// OpenPort opens the virtio-serial port of the given name, and waits until the port exists.
func OpenPort(name string) (*Port, error) {
	var device string
	if !poll(func() bool { device = findPort(name); return device != "" }) {
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
	entries, _ := os.ReadDir(class) // the class does not exist before the first port
	for _, e := range entries {
		b, _ := os.ReadFile(path.Join(class, e.Name(), "name")) // a port may have no name
		device := "/dev/" + e.Name()
		if strings.TrimSpace(string(b)) == name && unix.Access(device, unix.F_OK) == nil {
			return device
		}
	}
	return ""
}

// Read implements io.Reader. It returns io.EOF while no host is connected.
func (p *Port) Read(b []byte) (int, error) { return p.file.Read(b) }

// Write implements io.Writer. It waits while no host is connected.
func (p *Port) Write(b []byte) (int, error) { return p.file.Write(b) }

// Connected returns when a host is connected. A read would return at once, and so would a poll for a hang-up; only a
// write waits. So Connected writes 8 zero bytes, which have no meaning on this channel.
func (p *Port) Connected() error {
	var noop [8]byte
	if _, err := p.Write(noop[:]); err != nil {
		return fmt.Errorf("wait for host: %w", err)
	}
	return nil
}
