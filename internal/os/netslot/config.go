package netslot

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"time"

	"github.com/pandastack/pandastack/internal/os/egress"
)

// The guest's addresses, which are the same in every slot.
var (
	guestAddress = netip.MustParsePrefix("192.168.241.2/29")
	gateway      = netip.MustParseAddr("192.168.241.1")
	guestMAC     = net.HardwareAddr{0x02, 0xfc, 0x00, 0x00, 0x00, 0x05}
	tapMAC       = net.HardwareAddr{0x02, 0xfc, 0x00, 0x00, 0x00, 0x01}
)

const (
	tapName      = "tap0"
	innerName    = "veth0"
	slotBits     = 30
	maxSlots     = 16384
	defaultMTU   = 1500
	defaultReady = 4
	upLimit      = 2 * time.Second // how long a link may take to come up
)

// Config configures a pool. The zero value of each field selects a default.
type Config struct {
	Prefix    string         // begins all names, 1 to 8 of a-z and 0-9; "": "panda"
	Range     netip.Prefix   // IPv4, /16 or smaller, for the slots' /30s; zero: the first candidate unused on this host
	Slots     int            // maximum number of slots; 0: as many as Range holds, at most 16384
	Ready     int            // how many slots Run keeps prepared; 0: 4
	Namespace string         // path of the host's network namespace; "": the process's own
	Uplinks   []string       // links by which guests may leave; empty: those with a default route at Open
	Allow     []netip.Prefix // reserved ranges that guests may reach nevertheless
	// Upstream resolvers; empty: those of /etc/resolv.conf, which is read again when it changes.
	Resolvers []netip.AddrPort
	// In and Out limit the traffic to and from the guest of each slot, in bytes a second; 0: no limit.
	In, Out int64
	// Connections and NewConnections limit the connections of the guest of each slot: those at once, and those it opens
	// a second, after a burst of five times as many; 0: no limit.
	Connections, NewConnections int
	// ServicePort is a port of the gateway where guests reach Pool.Service, unless they may reach nothing; 0: none.
	ServicePort uint16
	Logger      *slog.Logger // nil: silent
	// Decided is called with each decision of the slots' policies on names and connections. It must not block. May be
	// nil.
	Decided func(owner string, index int, d egress.Decision)
}

var prefixForm = regexp.MustCompile(`^[a-z][a-z0-9]{0,7}$`)

// candidates are tried in order if no range is configured. They are far from the default ranges of routers, container
// engines and cloud networks.
var candidates = []netip.Prefix{
	netip.MustParsePrefix("10.213.0.0/16"),
	netip.MustParsePrefix("10.187.0.0/16"),
	netip.MustParsePrefix("10.241.0.0/16"),
	netip.MustParsePrefix("10.119.0.0/16"),
	netip.MustParsePrefix("172.29.0.0/16"),
}

// complete validates c and fills in the defaults that do not depend on the host.
func (c Config) complete() (Config, error) {
	var all error
	if c.Prefix == "" {
		c.Prefix = "panda"
	}
	if !prefixForm.MatchString(c.Prefix) {
		all = errors.Join(all,
			fmt.Errorf("prefix %q must have 1 to 8 characters of a-z and 0-9 and begin with a letter", c.Prefix))
	}
	if c.Range.IsValid() &&
		(!c.Range.Addr().Is4() || c.Range.Bits() < 16 || c.Range.Bits() > slotBits || c.Range != c.Range.Masked()) {
		all = errors.Join(all, fmt.Errorf("range %s must be an IPv4 network between /16 and /30", c.Range))
	}
	if c.Slots < 0 || c.Slots > maxSlots || c.Ready < 0 {
		all = errors.Join(all, fmt.Errorf("slots %d and ready %d must be from 0 to %d", c.Slots, c.Ready, maxSlots))
	}
	for _, rate := range []int64{c.In, c.Out} {
		if rate != 0 && rate < minRate {
			all = errors.Join(all, fmt.Errorf("rate %d is below the minimum of %d bytes a second", rate, minRate))
		}
	}
	if c.Connections < 0 || c.NewConnections < 0 || max(c.Connections, c.NewConnections) > maxFlows {
		all = errors.Join(all, fmt.Errorf("connections %d and new connections %d must be from 0 to %d",
			c.Connections, c.NewConnections, maxFlows))
	}
	for _, p := range c.Allow {
		if !p.Addr().Is4() {
			all = errors.Join(all, fmt.Errorf("allow %s is not an IPv4 network", p))
		}
	}
	if c.Slots == 0 {
		c.Slots = maxSlots
	}
	if c.Ready == 0 {
		c.Ready = defaultReady
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, all
}

// RangeError reports that no unused range is left for the slots.
type RangeError struct {
	Wanted netip.Prefix // the configured range; zero: every candidate was in use
	By     netip.Prefix // the route or address of the host that overlaps
}

// Error implements error.
func (e *RangeError) Error() string {
	if !e.Wanted.IsValid() {
		return fmt.Sprintf(
			"all default ranges for slots are in use on this host (the last by %s); configure another range",
			e.By,
		)
	}
	return fmt.Sprintf("range %s for slots is in use on this host by %s; configure another range", e.Wanted, e.By)
}

// chooseRange returns the range for slots. inUse are the host's routes and addresses without those of its own slots;
// left are host addresses of slots that an earlier process left, whose range is kept. A route to a larger network
// around a range is no obstacle: the slots' own routes are more specific.
func chooseRange(wanted netip.Prefix, inUse []netip.Prefix, left []netip.Addr) (netip.Prefix, error) {
	list := candidates
	if wanted.IsValid() {
		list = []netip.Prefix{wanted}
	}
	var by netip.Prefix
	for _, c := range list {
		if len(left) > 0 && c.Contains(left[0]) {
			return c, nil
		}
		if by = unusableReason(c, inUse); !by.IsValid() && (len(left) == 0 || wanted.IsValid()) {
			return c, nil
		}
	}
	if !by.IsValid() { // the slots that were left lie in another range and will be removed
		return chooseRange(wanted, inUse, nil)
	}
	return netip.Prefix{}, &RangeError{Wanted: wanted, By: by}
}

func unusableReason(c netip.Prefix, inUse []netip.Prefix) netip.Prefix {
	for _, p := range inUse {
		if p.Bits() >= c.Bits() && c.Overlaps(p) {
			return p
		}
	}
	return netip.Prefix{}
}

// slotAddresses returns the addresses of slot number index in the range: its host's end and its guest's address.
func slotAddresses(r netip.Prefix, index int) (host, guest netip.Addr) {
	base := r.Addr().As4()
	n := uint32(base[0])<<24 | uint32(base[1])<<16 | uint32(base[2])<<8 | uint32(base[3])
	n += uint32(index)<<(32-slotBits) + 1
	at := func(n uint32) netip.Addr {
		return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
	return at(n), at(n + 1)
}

// capacity returns how many slots the range holds.
func capacity(r netip.Prefix) int { return 1 << (slotBits - r.Bits()) }
