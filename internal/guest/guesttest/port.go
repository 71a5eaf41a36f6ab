package guesttest

import (
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// server is a program that listens on a free port and prints it, or on the Unix socket whose path it is given. It
// sends back in capitals all it received once the other side has ended its direction.
const server = `
import socket, sys
if len(sys.argv) > 1:
    s = socket.socket(socket.AF_UNIX)
    s.bind(sys.argv[1])
    s.listen()
    print("ready", flush=True)
else:
    s = socket.create_server(("127.0.0.1", 0))
    print(s.getsockname()[1], flush=True)
while True:
    c, _ = s.accept()
    b = b""
    while True:
        d = c.recv(65536)
        if not d: break
        b += d
    c.sendall(b.upper())
    c.close()
`

func port(t *testing.T, e Env) {
	if o := Exec(t, e.Guest, guestapi.ProcessSpec{Shell: "command -v python3"}); o.Exit.Code != 0 {
		t.Skip("probe python3: the guest has no python3")
	}
	ctx := Context(t)
	p, err := e.Guest.Start(ctx, guestapi.ProcessSpec{Argv: []string{"python3", "-c", server}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = e.Guest.Signal(ctx, guestapi.ProcessRef{PID: p.PID()}, 9, true)
		_ = p.Close()
	}()
	ev, err := p.Next(ctx)
	if err != nil || ev.Exit != nil {
		t.Fatalf("server: %+v, %v", ev, err)
	}
	number, err := strconv.Atoi(strings.TrimSpace(string(ev.Data)))
	if err != nil {
		t.Fatal(err)
	}
	all, err := e.Guest.Ports(ctx)
	found := false
	for _, q := range all {
		found = found ||
			int(q.Port) == number && q.Address == "127.0.0.1" && q.PID == p.PID() &&
				strings.HasPrefix(q.Program, "python3")
	}
	if err != nil || !found {
		t.Errorf("Ports: port %d is not among %+v: %v", number, all, err)
	}
	c, err := e.Guest.DialPort(ctx, uint16(number))
	if err != nil {
		t.Fatal(err)
	}
	exchange(t, c)
	if _, err := e.Guest.DialPort(ctx, 1); !errors.Is(err, guestapi.ErrRefused) {
		t.Errorf("DialPort of a closed port: got error %v", err)
	}
}

func socket(t *testing.T, e Env) {
	if o := Exec(t, e.Guest, guestapi.ProcessSpec{Shell: "command -v python3"}); o.Exit.Code != 0 {
		t.Skip("probe python3: the guest has no python3")
	}
	ctx := Context(t)
	dir := strings.TrimSpace(Exec(t, e.Guest, guestapi.ProcessSpec{Shell: "mktemp -d"}).Stdout)
	defer Exec(t, e.Guest, guestapi.ProcessSpec{Argv: []string{"rm", "-r", dir}})
	path := dir + "/socket"
	p, err := e.Guest.Start(ctx, guestapi.ProcessSpec{Argv: []string{"python3", "-c", server, path}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = e.Guest.Signal(ctx, guestapi.ProcessRef{PID: p.PID()}, 9, true)
		_ = p.Close()
	}()
	if ev, err := p.Next(ctx); err != nil || ev.Exit != nil {
		t.Fatalf("server: %+v, %v", ev, err)
	}
	c, err := e.Guest.DialSocket(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	exchange(t, c)
	for name, want := range map[string]error{
		dir + "/none":                     guestapi.ErrRefused,
		dir:                               guestapi.ErrRefused,
		"socket":                          guestapi.ErrInvalid,
		"@socket":                         guestapi.ErrInvalid,
		"":                                guestapi.ErrInvalid,
		"/" + strings.Repeat("long", 100): guestapi.ErrInvalid,
	} {
		if c, err := e.Guest.DialSocket(ctx, name); !errors.Is(err, want) {
			t.Errorf("DialSocket of %q: got %v, %v, want %v", name, c, err, want)
		}
	}
}

// exchange sends c a long text and expects it back in capitals, which is what the server does. It closes c.
func exchange(t *testing.T, c net.Conn) {
	t.Helper()
	defer func() { _ = c.Close() }()
	want := strings.Repeat("bamboo ", 100_000)
	if _, err := io.WriteString(c, want); err != nil {
		t.Fatal(err)
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if err != nil || string(got) != strings.ToUpper(want) {
		t.Errorf("got %d bytes of %d, or other bytes: %v", len(got), len(want), err)
	}
}
