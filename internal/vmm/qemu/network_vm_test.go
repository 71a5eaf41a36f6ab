//go:build vm

package qemu_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestlink"
	"github.com/pandastack/pandastack/internal/vmm"
)

// newTapAndListener returns a tap and a listener in a new network namespace, which exists as long
// as one of them is open.
func newTapAndListener(t *testing.T) (tap *os.File, l net.Listener) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread stays in another namespace and ends with the test
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	req, err := unix.NewIfreq("tap0")
	if err != nil {
		t.Fatal(err)
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		t.Fatal(err)
	}
	link, err := netlink.LinkByName("tap0")
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr("192.168.241.1/29")
	if err != nil {
		t.Fatal(err)
	}
	mac := net.HardwareAddr{2, 0xfc, 0, 0, 0, 1}
	for _, err := range []error{netlink.LinkSetHardwareAddr(link, mac), netlink.AddrAdd(link, addr),
		netlink.LinkSetUp(link)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err = net.Listen("tcp4", "192.168.241.1:7000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	tap = os.NewFile(uintptr(fd), "tap0")
	t.Cleanup(func() { _ = tap.Close() })
	return tap, l
}

// TestNetwork checks that a machine reaches its gateway after boot, and that a restored copy
// reaches the gateway of another network slot.
func TestNetwork(t *testing.T) {
	l := lab(t)
	d := l.Open(t)
	spec := func(id string) vmm.Spec {
		s := l.Spec
		s.ID, s.Dir = id, l.Dir+"/"+id
		if err := os.MkdirAll(s.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		s.Disks = []vmm.Disk{{Path: s.Dir + "/disk"}}
		l.Disk(t, s.Disks[0].Path)
		t.Cleanup(func() { _ = d.Kill(t.Context(), s) })
		return s
	}
	var image vmm.Image
	// The third machine is restored from a checkpoint of the second's monitor, with a tap that no
	// QEMU has configured.
	ids := []string{"first", "second", "third"}
	for i, id := range ids {
		t.Run(id, func(t *testing.T) {
			tap, listener := newTapAndListener(t)
			s := spec(id)
			s.NIC = &vmm.NIC{Tap: tap, MAC: net.HardwareAddr{2, 0xfc, 0, 0, 0, 5}}
			var m vmm.Machine
			var err error
			if i == 0 {
				m, err = d.Boot(t.Context(), s)
			} else {
				m, err = d.Prepare(t.Context(), s, image)
			}
			if err != nil {
				t.Fatal(err)
			}
			conn, err := m.Dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			link, err := guestlink.Open(
				t.Context(),
				conn,
				guestlink.Options{Generation: uint64(i + 1), Identity: &guestapi.Identity{
					MachineID: id, Hostname: id, Generation: uint64(i + 1), Time: time.Now(), Entropy: make([]byte, 64),
					Network: &guestapi.Network{Address: "192.168.241.2/29", Gateway: "192.168.241.1"},
				}},
			)
			if err != nil {
				t.Fatal(err)
			}
			defer link.Close()
			if i > 0 {
				before, err := os.Open(l.Dir + "/" + ids[i-1] + "/disk")
				if err != nil {
					t.Fatal(err)
				}
				l.Clone(t, before, s.Disks[0].Path)
				if err := before.Close(); err != nil {
					t.Fatal(err)
				}
				if err := m.Load(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := link.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			waitForGuest(t, link, listener, id)
			if i == 1 {
				m.(vmm.CheckpointMarker).MarkWarmedUp()
			}
			if i < 2 {
				image = saveImage(t, m, l.Dir+"/image-"+id)
			}
			if err := d.Kill(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// waitForGuest makes the guest send word to the listener.
func waitForGuest(t *testing.T, link *guestlink.Link, listener net.Listener, word string) {
	t.Helper()
	p, err := link.Start(t.Context(), guestapi.ProcessSpec{Argv: []string{"/bin/bash", "-c",
		fmt.Sprintf("echo %s > /dev/tcp/192.168.241.1/7000", word)}, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := listener.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	c, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := io.ReadAll(c); err != nil || string(got) != word+"\n" {
		t.Errorf("got %q, %v; want %q", got, err, word)
	}
}

func saveImage(t *testing.T, m vmm.Machine, dir string) vmm.Image {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := m.Capture(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	image, err := c.Save(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return image
}
