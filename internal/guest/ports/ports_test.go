package ports

import (
	"net"
	"os"
	"testing"
)

const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0 0 10 0
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4243 1 0 100 0 0 10 0
   2: 0100007F:0050 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 4244 1 0 100 0 0 10 0
   3: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4245 1 0 100 0 0 10 0
   4: nonsense:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4246 1 0 100 0 0 10 0
`

const table6 = "   0: 00000000000000000000000000000000:1F91 00000000000000000000000000000000:0000 0A " +
	"00000000:00000000 00:00000000 00000000  1000        0 77 1 0 100 0 0 10 0\n" +
	"   1: 00000000000000000000000001000000:0BB8 00000000000000000000000000000000:0000 0A " +
	"00000000:00000000 00:00000000 00000000  1000        0 78 1 0 100 0 0 10 0\n"

func TestParse(t *testing.T) {
	all := parse(parse(nil, []byte(table)), []byte(table6))
	want := []struct {
		port  uint16
		addr  string
		inode string
	}{{8080, "127.0.0.1", "4242"}, {22, "0.0.0.0", "4243"}, {8081, "::", "77"}, {3000, "::1", "78"}}
	if len(all) != len(want) {
		t.Fatalf("parse: got %+v", all)
	}
	for i, w := range want {
		if g := all[i]; g.port.Port != w.port || g.port.Address != w.addr || g.inode != w.inode {
			t.Errorf("listener %d: got %+v, want %+v", i, g, w)
		}
	}
}

// TestListAndDial listens on an address that is neither 127.0.0.1 nor unspecified.
func TestListAndDial(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	p := Ports{Proc: "/proc"}
	all, err := p.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, q := range all {
		found = found || q.Port == port && q.Address == "127.0.0.2" && int(q.PID) == os.Getpid() && q.Program != ""
	}
	if !found {
		t.Errorf("List: port %d is not among %+v", port, all)
	}
	c, err := p.Dial(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

// FuzzParse checks that no content of /proc yields an invalid port.
func FuzzParse(f *testing.F) {
	f.Add([]byte(table))
	f.Add([]byte(table6))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, l := range parse(nil, b) {
			if !l.addr.IsValid() || l.port.Address != l.addr.String() {
				t.Errorf("parse: got %+v", l)
			}
		}
	})
}
