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

// rates bound what goes to and comes from a guest, in bytes a second; 0: all there is.
type rates struct{ in, out int64 }

// rates are those of every slot.
func (p *Pool) rates() rates { return rates{p.cfg.In, p.cfg.Out} }

// SetRates bounds what goes to and comes from the guest, in bytes a second, until the slot is given back. 0, or more
// than the pool's bound, is that. What waited in the slot is dropped. ErrGiven: the slot was given back.
func (s *Slot) SetRates(in, out int64) error {
	all := s.pool.rates()
	r := rates{tighter(in, all.in), tighter(out, all.out)}
	for _, rate := range []int64{r.in, r.out} {
		if rate != 0 && rate < leastRate {
			return fmt.Errorf("slot %d: rate %d is below %d bytes a second", s.Index, rate, leastRate)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.given {
		return fmt.Errorf("slot %d: %w", s.Index, ErrGiven)
	}
	s.bounded = true // also if it fails half way
	return s.inside(func() error { return r.set(false) })
}

func tighter(asked, pool int64) int64 {
	if asked == 0 || pool != 0 && pool < asked {
		return pool
	}
	return asked
}

// set bounds what goes through the slot in whose namespace the calling thread is. Nothing that waited for a former
// owner is left. fresh: nothing was ever set there. What leaves by tap0 goes to the guest, what leaves by veth0
// comes from it.
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
	return &netlink.Tbf{
		QdiscAttrs: at,
		Rate:       uint64(rate),
		Limit:      burst + queue,
		Buffer:     netlink.Xmittime(uint64(rate), burst),
	}
}
