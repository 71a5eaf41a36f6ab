// Package ports lists the listening TCP ports of the guest and connects to them.
//
// It reads /proc and holds no state. All functions are safe for concurrent use.
package ports

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// maxPorts limits a listing; maxProcesses limits the search for the processes that listen.
const (
	maxPorts     = 4096
	maxProcesses = 4096
	dialLimit    = 10 * time.Second

	maxSocketPath = 107 // unix(7): sun_path, less its terminating null byte
)

// Ports lists and dials the ports of one machine. Proc is its /proc.
type Ports struct{ Proc string }

type listener struct {
	port  guestapi.Port
	addr  netip.Addr
	inode string
}

// List returns all listening TCP ports, each address once.
func (p Ports) List(context.Context) ([]guestapi.Port, error) {
	all, err := p.listeners()
	if err != nil {
		return nil, err
	}
	p.owners(all)
	ports := make([]guestapi.Port, 0, len(all))
	for _, l := range all {
		ports = append(ports, l.port)
	}
	slices.SortFunc(ports, func(a, b guestapi.Port) int {
		return 2*int(int32(a.Port)-int32(b.Port)) + strings.Compare(a.Address, b.Address)
	})
	return ports, nil
}

func (p Ports) listeners() ([]listener, error) {
	var all []listener
	for _, name := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile(path.Join(p.Proc, "net", name))
		if errors.Is(err, unix.ENOENT) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("list ports: %w", err)
		}
		all = parse(all, b)
	}
	return all, nil
}

// parse appends the listening sockets of /proc/net/tcp or tcp6 to all. It skips lines it cannot parse.
func parse(all []listener, b []byte) []listener {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) < 10 || string(f[3]) != "0A" || len(all) >= maxPorts {
			continue
		}
		host, number, ok := strings.Cut(string(f[1]), ":")
		port, err := strconv.ParseUint(number, 16, 16)
		addr, valid := parseAddr(host)
		if !ok || err != nil || !valid {
			continue
		}
		twice := slices.ContainsFunc(
			all,
			func(l listener) bool { return l.addr == addr && l.port.Port == uint16(port) },
		)
		if !twice {
			all = append(all, listener{guestapi.Port{Port: uint16(port), Address: addr.String()}, addr, string(f[9])})
		}
	}
	return all
}

// parseAddr parses an address as the kernel prints it: words of 4 bytes in the byte order of the machine.
func parseAddr(s string) (netip.Addr, bool) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 4 && len(b) != 16 {
		return netip.Addr{}, false
	}
	for i := 0; i < len(b); i += 4 {
		slices.Reverse(b[i : i+4]) // amd64 and arm64 are little endian
	}
	addr, ok := netip.AddrFromSlice(b)
	return addr, ok
}

// owners finds the process of each listener, as far as it is visible.
func (p Ports) owners(all []listener) {
	if len(all) == 0 {
		return
	}
	entries, _ := os.ReadDir(p.Proc) // without /proc no owner is known
	seen := 0
	for _, e := range entries {
		pid, err := strconv.ParseUint(e.Name(), 10, 32)
		if err != nil {
			continue
		}
		if seen++; seen > maxProcesses {
			return
		}
		p.ownedBy(uint32(pid), all)
	}
}

func (p Ports) ownedBy(pid uint32, all []listener) {
	dir := path.Join(p.Proc, strconv.Itoa(int(pid)))
	fds, _ := os.ReadDir(path.Join(dir, "fd")) // the process may have ended
	for _, fd := range fds {
		to, _ := os.Readlink(path.Join(dir, "fd", fd.Name()))
		inode, ok := strings.CutPrefix(to, "socket:[")
		if !ok {
			continue
		}
		inode = strings.TrimSuffix(inode, "]")
		for i := range all {
			if all[i].inode == inode && all[i].port.PID == 0 {
				comm, _ := os.ReadFile(path.Join(dir, "comm"))
				all[i].port.PID, all[i].port.Program = pid, strings.TrimSpace(string(comm))
			}
		}
	}
}

// DialSocket connects to the Unix stream socket at an absolute path.
func (p Ports) DialSocket(ctx context.Context, name string) (net.Conn, error) {
	if !path.IsAbs(name) || len(name) > maxSocketPath {
		return nil, fmt.Errorf("%w: the path of a socket is absolute and at most %d bytes long", guestapi.ErrInvalid,
			maxSocketPath)
	}
	dialer := net.Dialer{Timeout: dialLimit}
	c, err := dialer.DialContext(ctx, "unix", name)
	if err == nil {
		return c, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, fmt.Errorf("socket %s: %w: %w", name, guestapi.ErrRefused, err)
}

// Dial connects to a port on loopback, IPv4 first. If both connections fail, it tries the other addresses that a
// program listens on.
func (p Ports) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if port == 0 {
		return nil, fmt.Errorf("%w: port 0", guestapi.ErrInvalid)
	}
	dialer := net.Dialer{Timeout: dialLimit}
	var last error
	usual := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	try := func(addr netip.Addr) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(addr, port).String())
	}
	for _, addr := range usual {
		c, err := try(addr)
		if err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		last = errors.Join(last, err)
	}
	all, err := p.listeners()
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		if l.port.Port != port || l.addr.IsUnspecified() || slices.Contains(usual, l.addr) {
			continue
		}
		if c, err := try(l.addr); err == nil {
			return c, nil
		}
	}
	return nil, fmt.Errorf("port %d: %w: %w", port, guestapi.ErrRefused, last)
}
