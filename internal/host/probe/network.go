package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// network makes a namespace, and in it a pair of links, a tap and an nftables table. All of it ends with the
// namespace when the probe returns.
func network(context.Context) Finding {
	if os.Geteuid() != 0 {
		return fail("run pandastack as root (sudo)", "%v", errNotRoot)
	}
	done := make(chan error, 1)
	go func() { done <- inNamespace(tryNetwork) }()
	if err := <-done; err != nil {
		return fail("use a kernel with network namespaces, tun, veth and nf_tables; load their modules", "%v", err)
	}
	return ok("a namespace with veth, tap and nftables was made")
}

// inNamespace runs f in a new network namespace on a thread of its own. The runtime may reuse the thread only once it
// is back in its own namespace.
func inNamespace(f func(netns.NsHandle) error) (err error) {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	defer home.Close()
	there, err := netns.New()
	if err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	defer func() {
		back := netns.Set(home)
		if back == nil {
			runtime.UnlockOSThread()
		}
		err = errors.Join(err, back, there.Close())
	}()
	return f(there)
}

func tryNetwork(ns netns.NsHandle) error {
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "probe0"}, PeerName: "probe1"}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("make a veth pair: %w", err)
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/net/tun: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("probe2")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return fmt.Errorf("make a tap: %w", err)
	}
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	table := conn.AddTable(&nftables.Table{Name: "probe", Family: nftables.TableFamilyINet})
	conn.AddChain(&nftables.Chain{
		Name: "post", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("make an nftables NAT chain: %w", err)
	}
	return nil
}
