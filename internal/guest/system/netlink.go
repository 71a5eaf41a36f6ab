package system

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// message is a netlink request under construction, in the machine's byte order.
type message []byte

func newMessage(kind, flags uint16) message {
	m := make(message, unix.NLMSG_HDRLEN)
	binary.NativeEndian.PutUint16(m[4:], kind)
	binary.NativeEndian.PutUint16(m[6:], flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	return m
}

func (m *message) bytes(b ...byte) { *m = append(*m, b...) }

func (m *message) word(v uint32) { *m = binary.NativeEndian.AppendUint32(*m, v) }

// attribute appends an attribute; its length is padded to 4.
func (m *message) attribute(kind uint16, value []byte) {
	*m = binary.NativeEndian.AppendUint16(*m, uint16(4+len(value)))
	*m = binary.NativeEndian.AppendUint16(*m, kind)
	*m = append(*m, value...)
	for len(*m)%4 != 0 {
		*m = append(*m, 0)
	}
}

// configure gives a card its address as the only one of its family, a default route and the MTU.
func configure(link string, n Network) error {
	card, err := net.InterfaceByName(link)
	if err != nil {
		return fmt.Errorf("find network card %s: %w", link, err)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // every reply was read
	if err := removeOthers(fd, card, n.Address); err != nil {
		return err
	}
	if err := request(fd, linkUp(card.Index, n.MTU)); err != nil {
		return fmt.Errorf("bring up %s: %w", link, err)
	}
	if err := request(fd, address(unix.RTM_NEWADDR, card.Index, n.Address)); err != nil {
		return fmt.Errorf("set address of %s: %w", link, err)
	}
	if !n.Gateway.IsValid() {
		return nil
	}
	if err := request(fd, defaultRoute(card.Index, n.Gateway)); err != nil {
		return fmt.Errorf("set route of %s: %w", link, err)
	}
	return nil
}

// removeOthers removes all other addresses of the same family from the card.
func removeOthers(fd int, card *net.Interface, keep netip.Prefix) error {
	have, err := card.Addrs()
	if err != nil {
		return fmt.Errorf("read addresses of %s: %w", card.Name, err)
	}
	for _, a := range have {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || p == keep || p.Addr().Is4() != keep.Addr().Is4() || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if err := request(fd, address(unix.RTM_DELADDR, card.Index, p)); err != nil {
			return fmt.Errorf("remove address %s: %w", p, err)
		}
	}
	return nil
}

func linkUp(index, mtu int) message {
	m := newMessage(unix.RTM_NEWLINK, 0)
	m.bytes(unix.AF_UNSPEC, 0, 0, 0)
	m.word(uint32(index))
	m.word(unix.IFF_UP)
	m.word(unix.IFF_UP)
	if mtu > 0 {
		m.attribute(unix.IFLA_MTU, binary.NativeEndian.AppendUint32(nil, uint32(mtu)))
	}
	return m
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func address(kind uint16, index int, p netip.Prefix) message {
	m := newMessage(kind, 0)
	if kind == unix.RTM_NEWADDR {
		m = newMessage(kind, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	}
	m.bytes(family(p.Addr()), byte(p.Bits()), 0, unix.RT_SCOPE_UNIVERSE)
	m.word(uint32(index))
	m.attribute(unix.IFA_LOCAL, p.Addr().AsSlice())
	m.attribute(unix.IFA_ADDRESS, p.Addr().AsSlice())
	return m
}

func defaultRoute(index int, gateway netip.Addr) message {
	m := newMessage(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	m.bytes(family(gateway), 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST)
	m.word(0)
	m.attribute(unix.RTA_GATEWAY, gateway.AsSlice())
	m.attribute(unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(index)))
	return m
}

// request sends m and waits for the kernel's reply to it.
func request(fd int, m message) error {
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	if err := unix.Sendto(fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 8<<10)
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return err
	}
	if n < unix.NLMSG_HDRLEN+4 || binary.NativeEndian.Uint16(buf[4:]) != unix.NLMSG_ERROR {
		return fmt.Errorf("netlink reply has %d bytes, too few for an acknowledgement", n)
	}
	if code := int32(binary.NativeEndian.Uint32(buf[unix.NLMSG_HDRLEN:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// LinkUp brings a network card up.
func LinkUp(name string) error {
	card, err := net.InterfaceByName(name)
	if err != nil {
		return fmt.Errorf("find network card %s: %w", name, err)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // every reply was read
	return request(fd, linkUp(card.Index, 0))
}
