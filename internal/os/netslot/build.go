package netslot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/lib/cleanup"
	"github.com/pandastack/pandastack/internal/os/nft"
)

// linkName returns the name of the host's end of a slot, which is also that of its namespace.
func (p *Pool) linkName(index int) string { return p.cfg.Prefix + "-" + strconv.Itoa(index) }

// build makes slot number index from scratch: namespace, links, rules, resolver. After an error nothing of it is
// left.
func (p *Pool) build(ctx context.Context, index int) (s *Slot, err error) {
	name := p.linkName(index)
	hostIP, guestIP := slotAddresses(p.cfg.Range, index)
	s = p.newSlot(index)
	var back cleanup.Stack
	defer func() {
		if err != nil {
			s, err = nil, fmt.Errorf("prepare slot %d: %w", index, back.Settle(ctx, err))
		}
	}()
	err = onThread(func() error {
		ns, err := makeNamespace(name)
		if err != nil {
			return err
		}
		back.Push("remove namespace", func(context.Context) error { return removeNamespace(name) })
		defer ns.Close()
		back.Push("close slot", func(context.Context) error { return errors.Join(s.closeFiles(), s.closeKernel()) })
		back.Push("remove link", func(context.Context) error { return p.removeLink(name) })
		if err := p.provision(ctx, s, hostIP, guestIP); err != nil {
			return err
		}
		if err := enter(p.host); err != nil {
			return err
		}
		if err := configureHostEnd(name, hostIP); err != nil {
			return err
		}
		if err := waitUp(ctx, name); err != nil {
			return err
		}
		if err := enter(ns); err != nil {
			return err
		}
		return waitUp(ctx, innerName)
	})
	return s, err
}

// waitUp waits until one end of a pair, in the calling thread's namespace, carries packets. The kernel enables it a
// little after the other end comes up, and drops packets until then: a guest would lose its first packet, and with it
// a second. After two seconds waitUp returns without an error.
func waitUp(ctx context.Context, name string) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, upLimit, errors.New("link did not come up"))
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		link, err := h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find link %s: %w", name, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// provision fills the namespace of the calling thread.
func (p *Pool) provision(ctx context.Context, s *Slot, hostIP, guestIP netip.Addr) error {
	if err := namespaceSettings(); err != nil {
		return err
	}
	tap, err := openTap()
	if err != nil {
		return err
	}
	s.Tap = tap
	if err := p.configureLinks(s.Index, hostIP, guestIP); err != nil {
		return err
	}
	if err := p.rates().set(true); err != nil {
		return err
	}
	err = s.withKernel(func(k *kernel) error {
		return k.rules.Replace(p.slotRules(hostIP, guestIP))
	})
	if errors.Is(err, unix.ENOENT) {
		err = fmt.Errorf("%w; the kernel needs nft_limit and nft_connlimit", err)
	}
	if err != nil {
		return err
	}
	return s.listen(ctx)
}

// namespaceSettings makes the namespace a silent IPv4 router.
func namespaceSettings() error {
	for _, s := range []struct{ name, value string }{
		{"net/ipv4/ip_forward", "1"},
		{"net/ipv4/conf/all/arp_ignore", "1"}, // reply only for the address of the link that was asked
		{"net/ipv4/conf/all/send_redirects", "0"},
		{"net/ipv4/conf/default/send_redirects", "0"},
	} {
		if err := sysctl(s.name, s.value); err != nil {
			return err
		}
	}
	for _, which := range []string{"all", "default"} {
		if err := sysctlIfExists("net/ipv6/conf/"+which+"/disable_ipv6", "1"); err != nil {
			return err
		}
	}
	return nil
}

// configureLinks makes the link to the host and configures the addresses and neighbours of both links. The guest is a
// fixed neighbour: packets to it need no ARP, and its own ARP replies are not trusted.
func (p *Pool) configureLinks(index int, hostIP, guestIP netip.Addr) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = innerName, p.mtu
	veth := &netlink.Veth{
		LinkAttrs:     attrs,
		PeerName:      p.linkName(index),
		PeerMTU:       uint32(p.mtu),
		PeerNamespace: netlink.NsFd(p.host.Fd()),
	}
	if err := h.LinkAdd(veth); err != nil {
		return fmt.Errorf("make link %s: %w", veth.PeerName, err)
	}
	inner, err := h.LinkByName(innerName)
	if err != nil {
		return fmt.Errorf("find %s: %w", innerName, err)
	}
	tap, err := h.LinkByName(tapName)
	if err != nil {
		return fmt.Errorf("find %s: %w", tapName, err)
	}
	steps := []struct {
		what string
		do   func() error
	}{
		{"set hardware address of tap0", func() error { return h.LinkSetHardwareAddr(tap, tapMAC) }},
		{"set MTU of tap0", func() error { return h.LinkSetMTU(tap, p.mtu) }},
		{"address tap0", func() error { return h.AddrAdd(tap, addr(netip.PrefixFrom(gateway, guestAddress.Bits()))) }},
		{"address veth0", func() error { return h.AddrAdd(inner, addr(netip.PrefixFrom(guestIP, slotBits))) }},
		{"raise tap0", func() error { return h.LinkSetUp(tap) }},
		{"raise veth0", func() error { return h.LinkSetUp(inner) }},
		{"fix the guest's hardware address", func() error {
			return h.NeighSet(&netlink.Neigh{LinkIndex: tap.Attrs().Index, State: netlink.NUD_PERMANENT,
				IP: guestAddress.Addr().AsSlice(), HardwareAddr: guestMAC})
		}},
		{"route to the host", func() error {
			return h.RouteAdd(&netlink.Route{LinkIndex: inner.Attrs().Index, Gw: hostIP.AsSlice()})
		}},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return nil
}

func addr(p netip.Prefix) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}}
}

// configureHostEnd configures the host's end of a slot, from a thread in the host's namespace.
func configureHostEnd(name string, hostIP netip.Addr) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	conf := filepath.Join("conf", name)
	for _, s := range []struct{ name, value string }{
		{filepath.Join("net/ipv4", conf, "forwarding"), "1"},
		{filepath.Join("net/ipv4", conf, "rp_filter"), "1"},
	} {
		if err := sysctl(s.name, s.value); err != nil {
			return err
		}
	}
	if err := sysctlIfExists(filepath.Join("net/ipv6", conf, "disable_ipv6"), "1"); err != nil {
		return err
	}
	if err := h.AddrAdd(link, addr(netip.PrefixFrom(hostIP, slotBits))); err != nil {
		return fmt.Errorf("set address of link %s: %w", name, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up link %s: %w", name, err)
	}
	return nil
}

// removeLink removes the host's end of a slot and with it the other end. It is not an error if no link has the name.
func (p *Pool) removeLink(name string) error {
	return within(p.host, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		defer h.Close()
		link, err := h.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if err == nil {
			err = h.LinkDel(link)
		}
		if err != nil {
			return fmt.Errorf("remove link %s: %w", name, err)
		}
		return nil
	})
}

// destroyNamespace removes all of a slot, as far as it exists.
func (p *Pool) destroyNamespace(s *Slot) error {
	name := p.linkName(s.Index)
	return errors.Join(s.closeFiles(), s.closeKernel(), p.forgetHostFlows(name), p.removeLink(name),
		removeNamespace(name))
}

// renew prepares a used slot for another owner: it opens the tap again, forgets its connections and resets its rules.
// The error is a *BusyError if the former monitor still holds the tap.
func (p *Pool) renew(ctx context.Context, s *Slot) error {
	if err := s.closeFiles(); err != nil {
		return err
	}
	s.mu.Lock()
	bounded := s.bounded
	s.mu.Unlock()
	err := s.inside(func() error {
		tap, err := openTap()
		if errors.Is(err, unix.EBUSY) {
			return &BusyError{Index: s.Index}
		}
		if err != nil {
			return err
		}
		s.Tap = tap
		if bounded || p.rates() != (rates{}) {
			if err := p.rates().set(false); err != nil {
				return err
			}
		}
		if err := s.withKernel(p.reset(s)); err != nil {
			return err
		}
		return s.listen(ctx)
	})
	if err == nil {
		err = p.forgetHostFlows(p.linkName(s.Index))
	}
	if err != nil {
		return fmt.Errorf("renew slot %d: %w", s.Index, errors.Join(err, s.closeFiles()))
	}
	return nil
}

// reset gives a used slot the rules of a new one and forgets its connections. A slot made by another process gets all
// rules, since they may be those of another version. Otherwise only rules that change during use are set, because the
// kernel takes long to remove hooks.
func (p *Pool) reset(s *Slot) func(*kernel) error {
	return func(k *kernel) error {
		if s.adopted {
			hostIP, _ := slotAddresses(p.cfg.Range, s.Index)
			if err := k.rules.Replace(p.slotRules(hostIP, s.GuestIP)); err != nil {
				return err
			}
		} else {
			sets, chains := policyRules(openRules(), learned{}, p.cfg.ServicePort)
			chains = append(chains, flowChain(p.connections()))
			if err := k.rules.Update(slotTable, sets, chains); err != nil {
				return err
			}
		}
		return k.flows.forgetAll()
	}
}

// slotRules returns the table of a new slot.
func (p *Pool) slotRules(hostIP, guestIP netip.Addr) nft.Table {
	return slotRules(p.closed, hostIP, guestIP, openRules(), learned{}, p.connections(), p.cfg.ServicePort,
		p.cfg.Decided != nil)
}

// openNamespace opens the namespace of a slot by its name.
func openNamespace(name string) (*os.File, error) {
	f, err := os.Open(filepath.Join(namespaces, name))
	if err != nil {
		return nil, fmt.Errorf("open namespace: %w", err)
	}
	return f, nil
}
