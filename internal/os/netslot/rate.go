package netslot

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Limits of the bytes that may pass a slot at once beyond its rate, and that may wait in it. Packets beyond that are
// dropped, as on a line of that rate.
const (
	leastBurst = 128 << 10
	mostBurst  = 8 << 20
	leastQueue = 256 << 10
	mostQueue  = 32 << 20
)

// minRate is the lowest limit, in bytes a second: the kernel counts the time for a burst in 32 bits.
const minRate = 1 << 10

// rates limits the traffic to and from a guest, in bytes a second; 0: no limit.
type rates struct{ in, out int64 }

// rates returns the limits of every slot.
func (p *Pool) rates() rates { return rates{p.cfg.In, p.cfg.Out} }

// SetRates limits the traffic to and from the guest, in bytes a second, until the slot is released. 0, or more than
// the pool's limit, selects the pool's limit. Packets that waited in the slot are dropped. The error is ErrReleased
// if the slot was released.
func (s *Slot) SetRates(in, out int64) error {
	all := s.pool.rates()
	r := rates{tighter(in, all.in), tighter(out, all.out)}
	for _, rate := range []int64{r.in, r.out} {
		if rate != 0 && rate < minRate {
			return fmt.Errorf("slot %d: rate %d is below %d bytes a second", s.Index, rate, minRate)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return fmt.Errorf("slot %d: %w", s.Index, ErrReleased)
	}
	s.bounded = true // even if setting it fails half way
	return s.inside(func() error { return r.set(false) })
}

func tighter(asked, pool int64) int64 {
	if asked == 0 || pool != 0 && pool < asked {
		return pool
	}
	return asked
}

// set limits the traffic of the slot in whose namespace the calling thread is. No packets of a former owner are left.
// fresh means that no limit was ever set there. Traffic that leaves by tap0 goes to the guest; traffic that leaves by
// veth0 comes from it.
func (r rates) set(fresh bool) error {
	if fresh && r == (rates{}) {
		return nil
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	for name, rate := range map[string]int64{tapName: r.in, innerName: r.out} {
		link, err := h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		root := netlink.QdiscAttrs{
			LinkIndex: link.Attrs().Index,
			Handle:    netlink.MakeHandle(1, 0),
			Parent:    netlink.HANDLE_ROOT,
		}
		if !fresh {
			if err := h.QdiscDel(bucket(root, minRate)); err != nil && !unset(err) {
				return fmt.Errorf("remove rate limit of %s: %w", name, err)
			}
		}
		if rate == 0 {
			continue
		}
		if err := h.QdiscAdd(bucket(root, rate)); err != nil {
			return fmt.Errorf("limit rate of %s: %w; the kernel needs sch_tbf (CONFIG_NET_SCH_TBF)", name, err)
		}
	}
	return nil
}

// unset reports whether err means that there was no limit to remove: the kernel has no such queue, another one, or
// none at all.
func unset(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

// bucket returns a token bucket of rate bytes a second, with a burst of a tenth of a second.
func bucket(at netlink.QdiscAttrs, rate int64) *netlink.Tbf {
	burst := uint32(min(max(rate/10, leastBurst), mostBurst))
	queue := uint32(min(max(rate/5, leastQueue), mostQueue))
	return &netlink.Tbf{
		QdiscAttrs: at,
		Rate:       uint64(rate),
		Limit:      burst + queue,
		Buffer:     netlink.Xmittime(uint64(rate), burst),
	}
}
