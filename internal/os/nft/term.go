package nft

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// reg is the register that all terms use. No term leaves a value in it for the next.
const reg = unix.NFT_REG_1

// Offsets into the headers, from RFC 791, RFC 9293 and Ethernet II.
const (
	etherSource = 6
	ipSource    = 12
	ipDest      = 16
	portDest    = 2
	tcpFlags    = 13
	tcpSyn      = 0x02
	tcpOptMSS   = 2
)

// CTState is a set of connection tracking states.
type CTState uint32

// Connection tracking states of a packet, which can be combined.
const (
	Invalid     = CTState(expr.CtStateBitINVALID)
	Established = CTState(expr.CtStateBitESTABLISHED)
	Related     = CTState(expr.CtStateBitRELATED)
	New         = CTState(expr.CtStateBitNEW)
)

// statusDNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const statusDNAT = 1 << 5

// Term is one match or verdict of a rule: its text, and its kernel expressions.
type Term struct {
	text  string
	exprs []expr.Any
}

func cmp(op expr.CmpOp, data []byte) expr.Any {
	return &expr.Cmp{Op: op, Register: reg, Data: data}
}

func meta(key expr.MetaKey) expr.Any { return &expr.Meta{Key: key, Register: reg} }

func payload(base expr.PayloadBase, offset, size uint32) expr.Any {
	return &expr.Payload{DestRegister: reg, Base: base, Offset: offset, Len: size}
}

// name16 returns an interface name as the kernel compares it. A trailing "*" stands for any ending.
func name16(name string) []byte {
	if begin, ok := strings.CutSuffix(name, "*"); ok {
		return []byte(begin)
	}
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

// InIface matches packets that arrive on an interface. A trailing "*" in name stands for any ending.
func InIface(name string) Term {
	return Term{fmt.Sprintf("iifname %q", name), []expr.Any{meta(expr.MetaKeyIIFNAME), cmp(expr.CmpOpEq, name16(name))}}
}

// OutIface matches packets that leave by an interface. A trailing "*" in name stands for any ending.
func OutIface(name string) Term {
	return Term{fmt.Sprintf("oifname %q", name), []expr.Any{meta(expr.MetaKeyOIFNAME), cmp(expr.CmpOpEq, name16(name))}}
}

// OutIfaceIn matches packets that leave by an interface named in set.
func OutIfaceIn(set string) Term {
	return Term{
		"oifname @" + set,
		[]expr.Any{meta(expr.MetaKeyOIFNAME), &expr.Lookup{SourceRegister: reg, SetName: set}},
	}
}

// OutIfaceNotIn matches packets that leave by an interface not named in set.
func OutIfaceNotIn(set string) Term {
	return Term{"oifname != @" + set, []expr.Any{
		meta(expr.MetaKeyOIFNAME), &expr.Lookup{SourceRegister: reg, SetName: set, Invert: true}}}
}

func protocolFamily(p byte) []expr.Any {
	return []expr.Any{meta(expr.MetaKeyNFPROTO), cmp(expr.CmpOpEq, []byte{p})}
}

// IPv6 matches all packets of IP version 6.
func IPv6() Term { return Term{"meta nfproto ipv6", protocolFamily(unix.NFPROTO_IPV6)} }

// EtherSourceNot matches frames from another hardware address than mac.
func EtherSourceNot(mac net.HardwareAddr) Term {
	return Term{"ether saddr != " + mac.String(), []expr.Any{
		payload(expr.PayloadBaseLLHeader, etherSource, 6), cmp(expr.CmpOpNeq, mac)}}
}

func address(word string, offset uint32, op expr.CmpOp, p netip.Prefix) Term {
	sign := ""
	if op == expr.CmpOpNeq {
		sign = "!= "
	}
	text := p.String()
	if p.IsSingleIP() {
		text = p.Addr().String()
	}
	net4 := p.Masked().Addr().As4()
	exprs := append(protocolFamily(unix.NFPROTO_IPV4), payload(expr.PayloadBaseNetworkHeader, offset, 4))
	if !p.IsSingleIP() {
		exprs = append(exprs, &expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4,
			Mask: net.CIDRMask(p.Bits(), 32), Xor: make([]byte, 4)})
	}
	return Term{fmt.Sprintf("ip %s %s%s", word, sign, text), append(exprs, cmp(op, net4[:]))}
}

// Source matches packets whose IPv4 source lies in p.
func Source(p netip.Prefix) Term { return address("saddr", ipSource, expr.CmpOpEq, p) }

// SourceNot matches IPv4 packets whose source lies outside p.
func SourceNot(p netip.Prefix) Term { return address("saddr", ipSource, expr.CmpOpNeq, p) }

// Dest matches packets whose IPv4 destination lies in p.
func Dest(p netip.Prefix) Term { return address("daddr", ipDest, expr.CmpOpEq, p) }

// DestIn matches packets whose IPv4 destination is in set.
func DestIn(set string) Term {
	exprs := append(protocolFamily(unix.NFPROTO_IPV4), payload(expr.PayloadBaseNetworkHeader, ipDest, 4))
	return Term{"ip daddr @" + set, append(exprs, &expr.Lookup{SourceRegister: reg, SetName: set})}
}

func port(word, end string, proto byte, offset uint32, port uint16) Term {
	return Term{fmt.Sprintf("%s %s %d", word, end, port), []expr.Any{
		meta(expr.MetaKeyL4PROTO), cmp(expr.CmpOpEq, []byte{proto}),
		payload(expr.PayloadBaseTransportHeader, offset, 2), cmp(expr.CmpOpEq, binaryutil.BigEndian.PutUint16(port)),
	}}
}

// TCP matches TCP segments to a port.
func TCP(to uint16) Term { return port("tcp", "dport", unix.IPPROTO_TCP, portDest, to) }

// UDP matches UDP datagrams to a port.
func UDP(to uint16) Term { return port("udp", "dport", unix.IPPROTO_UDP, portDest, to) }

// UDPFrom matches UDP datagrams from a port.
func UDPFrom(from uint16) Term { return port("udp", "sport", unix.IPPROTO_UDP, 0, from) }

// Protocol matches packets of "tcp", "udp" or "icmp".
func Protocol(name string) Term {
	numbers := map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "icmp": unix.IPPROTO_ICMP}
	return Term{"meta l4proto " + name, []expr.Any{meta(expr.MetaKeyL4PROTO), cmp(expr.CmpOpEq, []byte{numbers[name]})}}
}

// Tracked matches packets whose connection tracking state is one of s.
func Tracked(s CTState) Term {
	var words []string
	for _, w := range []struct {
		bit  CTState
		text string
	}{{Invalid, "invalid"}, {Established, "established"}, {Related, "related"}, {New, "new"}} {
		if s&w.bit != 0 {
			words = append(words, w.text)
		}
	}
	return Term{"ct state " + strings.Join(words, ","), ctBits(expr.CtKeySTATE, uint32(s))}
}

func ctBits(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: reg, Key: key},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		cmp(expr.CmpOpNeq, make([]byte, 4)),
	}
}

// Translated matches packets of connections whose destination was translated when they began.
func Translated() Term { return Term{"ct status dnat", ctBits(expr.CtKeySTATUS, statusDNAT)} }

// Original matches packets in the direction of the first packet of their connection.
func Original() Term {
	return Term{
		"ct direction original",
		[]expr.Any{&expr.Ct{Register: reg, Key: expr.CtKeyDIRECTION}, cmp(expr.CmpOpEq, []byte{0})},
	}
}

// Reply matches packets against the direction of the first packet of their connection.
func Reply() Term {
	return Term{
		"ct direction reply",
		[]expr.Any{&expr.Ct{Register: reg, Key: expr.CtKeyDIRECTION}, cmp(expr.CmpOpEq, []byte{1})},
	}
}

// MarkTracked sets the mark of the packet's connection.
func MarkTracked(mark uint32) Term {
	return Term{fmt.Sprintf("ct mark set 0x%08x", mark), []expr.Any{
		&expr.Immediate{Register: reg, Data: binaryutil.NativeEndian.PutUint32(mark)},
		&expr.Ct{Register: reg, Key: expr.CtKeyMARK, SourceRegister: true},
	}}
}

// markMask is the part of an interface index that goes into a mark.
const markMask = 0x00ffffff

// IfaceMark returns the mark that MarkByIn and MarkByOut set for an interface index.
func IfaceMark(base uint32, index int) uint32 { return uint32(index)&markMask ^ base }

// MarkByIn marks the packet's connection with base and the index of its input interface.
func MarkByIn(base uint32) Term { return markBy("iif", expr.MetaKeyIIF, base) }

// MarkByOut marks the packet's connection with base and the index of its output interface.
func MarkByOut(base uint32) Term { return markBy("oif", expr.MetaKeyOIF, base) }

func markBy(word string, key expr.MetaKey, base uint32) Term {
	return Term{fmt.Sprintf("ct mark set meta %s & 0x%08x ^ 0x%08x", word, markMask, base), []expr.Any{
		meta(key),
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(markMask), Xor: binaryutil.NativeEndian.PutUint32(base)},
		&expr.Ct{Register: reg, Key: expr.CtKeyMARK, SourceRegister: true},
	}}
}

// ClampMSS lowers the segment size announced by a TCP SYN to the MTU of the route.
func ClampMSS() Term {
	return Term{"tcp flags syn tcp option maxseg size set rt mtu", []expr.Any{
		meta(expr.MetaKeyL4PROTO), cmp(expr.CmpOpEq, []byte{unix.IPPROTO_TCP}),
		payload(expr.PayloadBaseTransportHeader, tcpFlags, 1),
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{tcpSyn}, Xor: []byte{0}},
		cmp(expr.CmpOpNeq, []byte{0}),
		&expr.Rt{Register: reg, Key: expr.RtTCPMSS},
		&expr.Byteorder{SourceRegister: reg, DestRegister: reg, Op: expr.ByteorderHton, Len: 2, Size: 2},
		&expr.Exthdr{SourceRegister: reg, Type: tcpOptMSS, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt},
	}}
}

// Count counts the packets and bytes that reach this term of the rule.
func Count() Term { return Term{"counter", []expr.Any{&expr.Counter{}}} }

// AtMost continues the rule for at most so many packets a second, with a burst of two seconds' worth.
func AtMost(perSecond uint32) Term {
	return Term{fmt.Sprintf("limit rate %d/second burst %d packets", perSecond, 2*perSecond), []expr.Any{
		&expr.Limit{
			Type:  expr.LimitTypePkts,
			Rate:  uint64(perSecond),
			Unit:  expr.LimitTimeSecond,
			Burst: 2 * perSecond,
		}}}
}

// Over continues the rule for the packets beyond so many a second, after a burst.
func Over(perSecond, burst uint32) Term {
	return Term{fmt.Sprintf("limit rate over %d/second burst %d packets", perSecond, burst), []expr.Any{
		&expr.Limit{
			Type:  expr.LimitTypePkts,
			Rate:  uint64(perSecond),
			Over:  true,
			Unit:  expr.LimitTimeSecond,
			Burst: burst,
		}}}
}

// ConnectionsOver matches packets of connections beyond so many that reached this term and exist.
//
// The kernel does not count TCP connections that have ended, although it tracks them for two minutes more.
func ConnectionsOver(n uint32) Term {
	return Term{fmt.Sprintf("ct count over %d", n), []expr.Any{
		&expr.Connlimit{Count: n, Flags: expr.NFT_CONNLIMIT_F_INV},
	}}
}

// NoTrack exempts the packet from connection tracking, before which the rule must run.
func NoTrack() Term { return Term{"notrack", []expr.Any{&expr.Notrack{}}} }

// ToLog sends the beginning of the packet to a log group. The packet continues.
func ToLog(group uint16) Term {
	return Term{fmt.Sprintf("log group %d snaplen %d queue-threshold 1", group, logSnap), []expr.Any{
		&expr.Log{
			Key:        1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN | 1<<unix.NFTA_LOG_QTHRESHOLD,
			Group:      group,
			Snaplen:    logSnap,
			QThreshold: 1,
		}}}
}

// Accept ends the evaluation of the hook's chain: the packet continues.
func Accept() Term { return Term{"accept", []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}} }

// Drop drops the packet.
func Drop() Term { return Term{"drop", []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}} }

// RejectTCP drops a TCP segment and replies with a reset. The rule must match TCP before.
func RejectTCP() Term {
	return Term{"reject with tcp reset", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}}
}

// Reject drops the packet and replies that it is prohibited.
func Reject() Term {
	return Term{"reject with icmpx admin-prohibited", []expr.Any{
		&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}}}
}

// Jump continues in another chain of the table, and returns if that chain decides nothing.
func Jump(chain string) Term {
	return Term{"jump " + chain, []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}}
}

// Return returns to the chain that jumped here.
func Return() Term { return Term{"return", []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}} }

func translate(word string, kind expr.NATType, to netip.Addr) Term {
	a := to.As4()
	return Term{fmt.Sprintf("%s ip to %s", word, to), []expr.Any{
		&expr.Immediate{Register: reg, Data: a[:]},
		&expr.NAT{Type: kind, Family: unix.NFPROTO_IPV4, RegAddrMin: reg},
	}}
}

// DNAT rewrites the destination address. The port stays the same.
func DNAT(to netip.Addr) Term { return translate("dnat", expr.NATTypeDestNAT, to) }

// SNAT rewrites the source address. The port stays the same where possible.
func SNAT(to netip.Addr) Term { return translate("snat", expr.NATTypeSourceNAT, to) }

// Masquerade rewrites the source address to that of the outgoing interface.
func Masquerade() Term { return Term{"masquerade", []expr.Any{&expr.Masq{}}} }

// Redirect sends the packet to a port of this namespace, on the address of the input interface.
func Redirect(port uint16) Term {
	return Term{fmt.Sprintf("redirect to :%d", port), []expr.Any{
		&expr.Immediate{Register: reg, Data: binaryutil.BigEndian.PutUint16(port)},
		&expr.Redir{RegisterProtoMin: reg, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED},
	}}
}
