//go:build vm

package machine

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// reach is a program for guests: it prints which of the given addresses accept a connection.
const reach = `python3 - <<'END'
import socket
for a in %q.split():
    host, port = a.rsplit(":", 1)
    s = socket.socket()
    s.settimeout(2)
    try:
        s.connect((host, int(port)))
        print(a, "connected")
    except OSError:
        pass
    s.close()
END`

// serve is a program for guests: it serves port 8080 of every address.
const serve = `nohup python3 -c '
import socket
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("0.0.0.0", 8080))
s.listen()
while True:
    c, _ = s.accept()
    c.sendall(b"here")
    c.close()
' >/dev/null 2>&1 &`

// TestNetworkIsolation lets a guest try addresses that it must never reach: the host, another guest, metadata,
// private ranges. The host reaches the guest.
func TestNetworkIsolation(t *testing.T) {
	l := host(t)
	a := l.create(t, hostapi.Create{ID: "wall1"})
	b := l.create(t, hostapi.Create{ID: "wall2"})
	l.run(t, b.ID, serve)
	wait(t, "the host reaches the guest", func() bool {
		conn, err := net.DialTimeout("tcp", b.GuestIP+":8080", 5*time.Second)
		if err != nil {
			return false
		}
		defer conn.Close()
		word := make([]byte, 4)
		_, err = conn.Read(word)
		return err == nil && string(word) == "here"
	})
	// A server of the host, on all of its addresses.
	server, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	targets := []string{"192.168.241.1:" + port, "169.254.169.254:80", b.GuestIP + ":8080"}
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range own {
		prefix, err := netip.ParsePrefix(addr.String())
		if err == nil && prefix.Addr().Is4() && !prefix.Addr().IsLoopback() {
			targets = append(targets, fmt.Sprintf("%s:%s", prefix.Addr(), port))
		}
	}
	if got := l.run(t, a.ID, fmt.Sprintf(reach, strings.Join(targets, " "))); got != "" {
		t.Errorf("the guest reached:\n%s\nwant none of %v", got, targets)
	}
	if got := l.run(t, b.ID, fmt.Sprintf(reach, "127.0.0.1:8080")); got != "127.0.0.1:8080 connected" {
		t.Errorf("connection of the guest to itself = %q, want one", got)
	}
}
