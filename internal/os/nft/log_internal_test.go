package nft

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// message wraps a packet as the kernel does.
func message(packet []byte) []byte {
	m := binary.NativeEndian.AppendUint32(nil, 0)
	m = binary.NativeEndian.AppendUint16(m, logPacket)
	m = append(m, make([]byte, 10)...)
	m = append(m, 2, 0, 0, 7)
	m = appendAttr(m, 1, []byte{0, 0, 0, 0})
	m = appendAttr(m, attrPayload, packet)
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	return m
}

func ip4(protocol, options byte, rest ...byte) []byte {
	b := make([]byte, 20+4*int(options))
	b[0], b[9] = 0x45+options, protocol
	copy(b[16:], []byte{198, 51, 100, 7})
	return append(b, rest...)
}

func TestParseLog(t *testing.T) {
	six := make([]byte, 40)
	six[0], six[6], six[39] = 0x60, 17, 9
	fragment := ip4(17, 0, 0, 1, 0, 53)
	fragment[7] = 8
	for name, tt := range map[string]struct {
		packet []byte
		want   Logged
	}{
		"tcp":      {ip4(6, 0, 0, 1, 1, 187), Logged{"tcp", netip.MustParseAddrPort("198.51.100.7:443")}},
		"options":  {ip4(17, 3, 0, 1, 0, 53), Logged{"udp", netip.MustParseAddrPort("198.51.100.7:53")}},
		"cut":      {ip4(6, 0, 0, 1), Logged{"tcp", netip.MustParseAddrPort("198.51.100.7:0")}},
		"fragment": {fragment, Logged{"udp", netip.MustParseAddrPort("198.51.100.7:0")}},
		"icmp":     {ip4(1, 0, 8, 0, 0, 0), Logged{"icmp", netip.MustParseAddrPort("198.51.100.7:0")}},
		"other":    {ip4(47, 0), Logged{"47", netip.MustParseAddrPort("198.51.100.7:0")}},
		"ipv6":     {append(six, 0, 1, 1, 187), Logged{"udp", netip.MustParseAddrPort("[::9]:443")}},
	} {
		t.Run(name, func(t *testing.T) {
			got := parseLog(append(message(tt.packet), message(tt.packet)...))
			if len(got) != 2 || got[0] != tt.want || got[1] != tt.want {
				t.Errorf("parseLog: got %v, want two of %v", got, tt.want)
			}
		})
	}
	for name, b := range map[string][]byte{
		"empty":                 nil,
		"short":                 {1, 2, 3},
		"no packet":             message(nil),
		"half a header":         message([]byte{0x46, 0}),
		"length beyond the end": message(ip4(6, 0))[:30],
	} {
		if got := parseLog(b); len(got) != 0 {
			t.Errorf("parseLog of %s: got %v, want nothing", name, got)
		}
	}
}

// FuzzLog checks that no bytes make the parser panic, and that the packets it returns are complete.
func FuzzLog(f *testing.F) {
	f.Add(message(ip4(6, 0, 0, 1, 1, 187)))
	f.Add(message(ip4(17, 15, 0, 1, 0, 53)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, p := range parseLog(b) {
			if !p.To.IsValid() || p.Protocol == "" {
				t.Errorf("parseLog: got %+v", p)
			}
		}
	})
}
