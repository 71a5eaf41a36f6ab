package egress

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// File reads resolvers from a file in the format of resolv.conf(5), again whenever the file changes. Its methods are
// safe for concurrent use.
type File struct {
	path string

	mu      sync.Mutex
	changed time.Time
	size    int64
	servers []netip.AddrPort
}

// NewFile returns a File of path. It does not read it.
func NewFile(path string) *File { return &File{path: path} }

// Upstreams lists the resolvers, best first.
func (f *File) Upstreams() ([]netip.AddrPort, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err != nil {
		return nil, fmt.Errorf("find resolvers: %w", err)
	}
	if f.servers != nil && info.ModTime().Equal(f.changed) && info.Size() == f.size {
		return f.servers, nil
	}
	c, err := dns.ClientConfigFromFile(f.path)
	if err != nil {
		return nil, fmt.Errorf("read resolvers: %w", err)
	}
	port, err := strconv.ParseUint(c.Port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("read resolvers: port %q: %w", c.Port, err)
	}
	var servers []netip.AddrPort
	for _, s := range c.Servers {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("read resolvers: %w", err)
		}
		servers = append(servers, netip.AddrPortFrom(a, uint16(port)))
	}
	f.servers, f.changed, f.size = servers, info.ModTime(), info.Size()
	return servers, nil
}
