package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Numbers of linux/netfilter/nfnetlink_log.h.
const (
	logPacket    = unix.NFNL_SUBSYS_ULOG << 8
	logConfig    = unix.NFNL_SUBSYS_ULOG<<8 | 1
	logBind      = 1
	logCopyBytes = 2

	attrPayload = 9
	attrCommand = 1
	attrMode    = 2
	attrAtOnce  = 5

	logSnap    = 128     // bytes of a packet that are logged
	logMessage = 1 << 16 // bytes per read
)

// Logged describes a packet that a rule with ToLog logged.
type Logged struct {
	Protocol string         // "tcp", "udp", "icmp", or its number
	To       netip.AddrPort // port 0 if the protocol has none
}

// Log reads the packets that rules with ToLog log in one namespace. Close ends a Next in progress; otherwise one
// goroutine uses a Log.
type Log struct {
	f   *os.File
	buf []byte
}

// OpenLog opens a log group in the namespace of the calling thread. A group has one reader at most. The caller closes
// the Log.
func OpenLog(group uint16) (*Log, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netfilter's log: %w", err)
	}
	l := &Log{f: os.NewFile(uintptr(fd), "netfilter log"), buf: make([]byte, logMessage)}
	if err := l.bind(group); err != nil {
		return nil, errors.Join(fmt.Errorf("listen to group %d of netfilter's log: %w", group, err), l.f.Close())
	}
	return l, nil
}

// bind subscribes to the packets of a group, each at once, and reads the kernel's reply.
func (l *Log) bind(group uint16) error {
	m := binary.NativeEndian.AppendUint32(nil, 0) // the length, set below
	m = binary.NativeEndian.AppendUint16(m, logConfig)
	m = binary.NativeEndian.AppendUint16(m, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	m = append(m, make([]byte, 8)...) // number and port, which the kernel repeats
	m = append(m, unix.AF_UNSPEC, 0)
	m = binary.BigEndian.AppendUint16(m, group)
	m = appendAttr(m, attrCommand, []byte{logBind})
	m = appendAttr(m, attrMode, append(binary.BigEndian.AppendUint32(nil, logSnap), logCopyBytes, 0))
	m = appendAttr(m, attrAtOnce, binary.BigEndian.AppendUint32(nil, 1))
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	if _, err := l.f.Write(m); err != nil {
		return err
	}
	n, err := l.f.Read(l.buf)
	if err != nil {
		return err
	}
	answer := l.buf[:n]
	if n < 20 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("no reply from the kernel")
	}
	if code := int32(binary.NativeEndian.Uint32(answer[16:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

func appendAttr(m []byte, kind uint16, data []byte) []byte {
	m = binary.NativeEndian.AppendUint16(m, uint16(4+len(data)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = append(m, data...)
	for len(m)%4 != 0 {
		m = append(m, 0)
	}
	return m
}

// Next waits for packets. Packets that arrive faster than they are read are lost. After Close it returns
// os.ErrClosed.
func (l *Log) Next() ([]Logged, error) {
	for {
		n, err := l.f.Read(l.buf)
		if errors.Is(err, unix.ENOBUFS) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if all := parseLog(l.buf[:n]); len(all) > 0 {
			return all, nil
		}
	}
}

// Close stops the log.
func (l *Log) Close() error { return l.f.Close() }

// parseLog parses netlink messages, written by the kernel, around packets, written by a guest. It skips what it
// cannot parse.
func parseLog(b []byte) []Logged {
	var all []Logged
	for len(b) >= 16 {
		length := int(binary.NativeEndian.Uint32(b))
		if length < 16 || length > len(b) {
			break
		}
		message := b[16:length]
		if binary.NativeEndian.Uint16(b[4:]) == logPacket && len(message) >= 4 {
			if p, ok := parsePacket(payloadOf(message[4:])); ok {
				all = append(all, p)
			}
		}
		b = b[min((length+3)&^3, len(b)):]
	}
	return all
}

// payloadOf returns the attribute that holds the packet.
func payloadOf(attrs []byte) []byte {
	for len(attrs) >= 4 {
		length := int(binary.NativeEndian.Uint16(attrs))
		if length < 4 || length > len(attrs) {
			return nil
		}
		if binary.NativeEndian.Uint16(attrs[2:]) == attrPayload {
			return attrs[4:length]
		}
		attrs = attrs[min((length+3)&^3, len(attrs)):]
	}
	return nil
}

// parsePacket parses the destination of a packet.
func parsePacket(b []byte) (Logged, bool) {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		head := int(b[0]&15) * 4
		first := binary.BigEndian.Uint16(b[6:])&0x1fff == 0 // later fragments have no ports
		if head < 20 || head > len(b) {
			return Logged{}, false
		}
		return logged(b[9], netip.AddrFrom4([4]byte(b[16:20])), b[head:], first), true
	case len(b) >= 40 && b[0]>>4 == 6:
		return logged(b[6], netip.AddrFrom16([16]byte(b[24:40])), b[40:], true), true
	}
	return Logged{}, false
}

func logged(protocol byte, to netip.Addr, rest []byte, first bool) Logged {
	port := uint16(0)
	name := strconv.Itoa(int(protocol))
	switch protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP:
		name = map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}[protocol]
		if first && len(rest) >= 4 {
			port = binary.BigEndian.Uint16(rest[2:])
		}
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		name = "icmp"
	}
	return Logged{Protocol: name, To: netip.AddrPortFrom(to, port)}
}
