package node

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/budget"
	"github.com/pandastack/pandastack/internal/lib/config"
)

func TestNodeMemory(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	for _, c := range []struct {
		name         string
		configured   int // MiB
		reserve      int // MiB
		total, limit int64
		want         int64
	}{
		{"the reserve", 0, 1024, 64 * gib, 0, gib},
		{"a small host", 0, 1024, gib, 0, gib / 2},
		{"a tiny host", 0, 1024, 300 * mib, 0, 256 * mib},
		{"a control group", 0, 4096, 64 * gib, 2 * gib, gib},
		{"no reserve", 0, 0, 64 * gib, 0, 256 * mib},
		{"configured", 3000, 1024, 4 * gib, 0, 3000 * mib},
	} {
		got := nodeMemory(config.Capacity{NodeMemoryMiB: c.configured, MemoryReserveMiB: c.reserve}, c.total, c.limit)
		if got != c.want {
			t.Errorf("%s: %d MiB, want %d", c.name, got/mib, c.want/mib)
		}
	}
}

func TestCgroupMemory(t *testing.T) {
	dir := t.TempDir()
	write := func(path, text string) string {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("a/memory.max", "max\n")
	write("a/b/memory.max", "4096\n")
	write("a/b/c/memory.max", "8192\n")
	for membership, want := range map[string]int64{
		"0::/a/b/c\n": 4096, "0::/a\n": 0, "0::/\n": 0, "1:name=systemd:/a/b\n": 0, "0::/../../a/b\n": 4096,
	} {
		got, err := cgroupMemory(write("membership", membership), dir)
		if err != nil || got != want {
			t.Errorf("cgroupMemory(%q) = %d, %v; want %d", membership, got, err, want)
		}
	}
	if got, err := cgroupMemory(filepath.Join(dir, "missing"), dir); err != nil || got != 0 {
		t.Errorf("cgroupMemory() without control groups = %d, %v; want 0", got, err)
	}
}

// The process keeps below the memory of the node, or below what the operator has set if that is less.
func TestLimitMemory(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	n := newNode(t, "PANDASTACK_CAPACITY_NODE_MEMORY_MIB=300")
	got, err := n.limitMemory()
	if err != nil || got != 300<<20 || debug.SetMemoryLimit(-1) != 300<<20 {
		t.Errorf("limitMemory() = %d, %v with a limit of %d; want 300 MiB", got, err, debug.SetMemoryLimit(-1))
	}
	if err := n.undo.Unwind(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := debug.SetMemoryLimit(-1); got != before {
		t.Errorf("the limit after the node is %d, want that of before, %d", got, before)
	}
	debug.SetMemoryLimit(280 << 20)
	if got, err := newNode(t, "PANDASTACK_CAPACITY_NODE_MEMORY_MIB=300").limitMemory(); err != nil || got != 280<<20 {
		t.Errorf("limitMemory() = %d, %v; want the operator's 280 MiB", got, err)
	}
}

func TestProtect(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("probe root: only root lowers a score")
	}
	file := filepath.Join(t.TempDir(), "oom_score_adj")
	for before, want := range map[string]string{"0\n": "-500", "500\n": "-500", "-900\n": "-900\n"} {
		if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := protect(file); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(got), want) {
			t.Errorf("the score of %q becomes %q, %v; want %q", before, got, err, want)
		}
	}
}

// One address gets its share of the connections, and another one is served meanwhile.
func TestConnectionsOfOneAddressAreBounded(t *testing.T) {
	n := newNode(t)
	n.shares = newShares(n.Config.Capacity, 256<<20)
	n.shares.connections = budget.New(budget.Config{
		Name: "connections", Total: 8, Levels: []budget.Level{{Name: "address"}},
	})
	n.Config.Listen = "127.0.0.1:0"
	l, err := n.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn, 8)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("x")) // the client reads it
			accepted <- c
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	dial := func(from string) bool {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_, err = io.ReadFull(c, make([]byte, 1))
		return err == nil
	}
	var first net.Conn
	for i := range 4 {
		if !dial("127.0.0.1") {
			t.Fatalf("connection %d of an address was refused", i)
		}
		first = <-accepted
	}
	if dial("127.0.0.1") {
		t.Error("one address has more than half of the connections")
	}
	if !dial("127.0.0.2") {
		t.Error("another address was refused")
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if used := n.shares.connections.Used(); used != 4 {
		t.Errorf("%d connections are counted, want 4", used)
	}
}
