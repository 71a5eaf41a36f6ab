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

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/nft"
	"github.com/pandastack/pandastack/internal/undo"
)

// linkName is the name of the host's end of a slot, and of its namespace.
func (p *Pool) linkName(index int) string { return p.cfg.Prefix + "-" + strconv.Itoa(index) }

// build makes slot number index from nothing: namespace, links, rules, resolver. After an error nothing of
// it is left.
func (p *Pool) build(ctx context.Context, index int) (s *Slot, err error) {
	name := p.linkName(index)
	hostIP, guestIP := place(p.cfg.Range, index)
	s = p.newSlot(index)
	var back undo.Stack
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
		back.Push("close slot", func(context.Context) error { return s.shut() })
		back.Push("remove link", func(context.Context) error { return p.removeLink(name) })
		if err := p.furnish(ctx, s, hostIP, guestIP); err != nil {
			return err
		}
		if err := enter(p.host); err != nil {
			return err
		}
		return hostEnd(name, hostIP)
	})
	return s, err
}

// furnish fills the namespace of the calling thread.
func (p *Pool) furnish(ctx context.Context, s *Slot, hostIP, guestIP netip.Addr) error {
	if err := namespaceSettings(); err != nil {
		return err
	}
	tap, err := openTap()
	if err != nil {
		return err
	}
	s.Tap = tap
	if err := p.innerLinks(s.Index, hostIP, guestIP); err != nil {
		return err
	}
	if err := nft.Replace(slotRules(p.closed, hostIP, guestIP, openRules(), learned{})); err != nil {
		return err
	}
	return s.listen(ctx)
}

// namespaceSettings makes the namespace a silent IPv4 router.
func namespaceSettings() error {
	for _, s := range []struct{ name, value string }{
		{"net/ipv4/ip_forward", "1"},
		{"net/ipv4/conf/all/arp_ignore", "1"}, // answer for the address of the link asked on, no other
		{"net/ipv4/conf/all/send_redirects", "0"},
		{"net/ipv4/conf/default/send_redirects", "0"},
	} {
		if err := sysctl(s.name, s.value); err != nil {
			return err
		}
	}
	for _, which := range []string{"all", "default"} {
		if err := sysctlIfThere("net/ipv6/conf/"+which+"/disable_ipv6", "1"); err != nil {
			return err
		}
	}
	return nil
}

// innerLinks makes the link to the host and gives both links their addresses and neighbours. The guest is
// a fixed neighbour: packets to it need no ARP, and none of its ARP answers is believed.
func (p *Pool) innerLinks(index int, hostIP, guestIP netip.Addr) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = innerName, p.mtu
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: p.linkName(index), PeerMTU: uint32(p.mtu), PeerNamespace: netlink.NsFd(p.host.Fd())}
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

// hostEnd sets up the host's end of a slot, from a thread in the host's namespace.
func hostEnd(name string, hostIP netip.Addr) error {
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
	if err := sysctlIfThere(filepath.Join("net/ipv6", conf, "disable_ipv6"), "1"); err != nil {
		return err
	}
	if err := h.AddrAdd(link, addr(netip.PrefixFrom(hostIP, slotBits))); err != nil {
		return fmt.Errorf("address link %s: %w", name, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("raise link %s: %w", name, err)
	}
	return nil
}

// removeLink removes the host's end of a slot and with it the other. None of that name is no error.
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

// demolish removes all of a slot, whatever is there of it.
func (p *Pool) demolish(s *Slot) error {
	name := p.linkName(s.Index)
	return errors.Join(s.shut(), p.removeLink(name), p.forgetHostFlows(s.GuestIP), removeNamespace(name))
}

// renew makes a slot that was used fit for another owner: its tap is opened anew, its connections
// forgotten, its rules those of the beginning. A *BusyError: the former monitor still holds the tap.
func (p *Pool) renew(ctx context.Context, s *Slot) error {
	if err := s.shut(); err != nil {
		return err
	}
	hostIP, _ := place(p.cfg.Range, s.Index)
	err := s.inside(func() error {
		tap, err := openTap()
		if errors.Is(err, unix.EBUSY) {
			return &BusyError{Index: s.Index}
		}
		if err != nil {
			return err
		}
		s.Tap = tap
		if err := nft.Replace(slotRules(p.closed, hostIP, s.GuestIP, openRules(), learned{})); err != nil {
			return err
		}
		if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
			return fmt.Errorf("forget connections: %w", err)
		}
		return s.listen(ctx)
	})
	if err == nil {
		err = p.forgetHostFlows(s.GuestIP)
	}
	if err != nil {
		return fmt.Errorf("renew slot %d: %w", s.Index, errors.Join(err, s.shut()))
	}
	return nil
}

// ofGuest matches connections from or to one slot, on the host.
type ofGuest netip.Addr

// MatchConntrackFlow tells whether either end of either direction is the slot.
func (a ofGuest) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	for _, ip := range []net.IP{f.Forward.SrcIP, f.Forward.DstIP, f.Reverse.SrcIP, f.Reverse.DstIP} {
		if got, ok := netip.AddrFromSlice(ip); ok && got.Unmap() == netip.Addr(a) {
			return true
		}
	}
	return false
}

// forgetHostFlows removes the host's memory of connections with a slot.
func (p *Pool) forgetHostFlows(guest netip.Addr) error {
	return within(p.host, func() error { return forgetFlows(ofGuest(guest)) })
}

// fromGuest matches connections that one address began.
type fromGuest netip.Addr

// MatchConntrackFlow tells whether the first packet came from the address.
func (a fromGuest) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	src, ok := netip.AddrFromSlice(f.Forward.SrcIP)
	return ok && src.Unmap() == netip.Addr(a)
}

// forgetFlows removes the memory of connections in the namespace of the calling thread.
func forgetFlows(which netlink.CustomConntrackFilter) error {
	if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, which); err != nil {
		return fmt.Errorf("forget connections: %w", err)
	}
	return nil
}

// openInside opens the namespace of a slot by its name.
func openInside(name string) (*os.File, error) {
	f, err := os.Open(filepath.Join(namespaces, name))
	if err != nil {
		return nil, fmt.Errorf("open namespace: %w", err)
	}
	return f, nil
}
