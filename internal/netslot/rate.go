package netslot

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Bounds of what may go through a slot at once beyond its rate, and of what waits there, in bytes. What comes
// when as much waits is dropped, as on a line of that rate.
const (
	leastBurst = 128 << 10
	mostBurst  = 8 << 20
	leastQueue = 256 << 10
	mostQueue  = 32 << 20
)

// leastRate is the lowest bound, in bytes a second: the kernel counts the time for a burst in 32 bits.
const leastRate = 1 << 10

// rates are the links of a slot with what may go out of each, in bytes a second; 0: all there is. What
// leaves by tap0 goes to the guest, what leaves by veth0 comes from it.
func (p *Pool) rates() map[string]int64 {
	return map[string]int64{tapName: p.cfg.In, innerName: p.cfg.Out}
}

// setRates bounds what goes through the slot in whose namespace the calling thread is. Nothing that waited for
// a former owner is left. fresh: nothing was ever set there.
func (p *Pool) setRates(fresh bool) error {
	if fresh && p.cfg.In == 0 && p.cfg.Out == 0 {
		return nil
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	for name, rate := range p.rates() {
		link, err := h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		root := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
		if !fresh {
			if err := h.QdiscDel(bucket(root, leastRate)); err != nil && !unset(err) {
				return fmt.Errorf("unbind the rate of %s: %w", name, err)
			}
		}
		if rate == 0 {
			continue
		}
		if err := h.QdiscAdd(bucket(root, rate)); err != nil {
			return fmt.Errorf("bound the rate of %s: %w; the kernel needs sch_tbf (CONFIG_NET_SCH_TBF)", name, err)
		}
	}
	return nil
}

// unset tells whether a bound could not be taken away because there is none: the kernel has no such queue, another
// one, or none at all.
func unset(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

// bucket lets rate bytes a second through, and a tenth of a second's at once.
func bucket(at netlink.QdiscAttrs, rate int64) *netlink.Tbf {
	burst := uint32(min(max(rate/10, leastBurst), mostBurst))
	queue := uint32(min(max(rate/5, leastQueue), mostQueue))
	return &netlink.Tbf{QdiscAttrs: at, Rate: uint64(rate), Limit: burst + queue, Buffer: netlink.Xmittime(uint64(rate), burst)}
}
