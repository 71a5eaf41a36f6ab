package netslot

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"

	"github.com/pandastack/pandastack/internal/os/egress"
)

// Slot is one network place. Its fields do not change while it is taken.
type Slot struct {
	Index   int          // from 0; finds the slot again after a restart
	GuestIP netip.Addr   // where the host reaches the guest
	Address netip.Prefix // the guest's own address, the same in every slot
	Gateway netip.Addr   // the guest's gateway
	DNS     netip.Addr   // the guest's resolver
	MAC     net.HardwareAddr
	MTU     int
	TapName string
	// Tap is the guest's link, to be given to one monitor process; it stays open here until the slot is
	// given back. Nil in an adopted slot, whose monitor holds it.
	Tap *os.File

	pool    *Pool
	adopted bool // made by an earlier process

	kernelMu sync.Mutex // taken after mu where both are
	kernel   *kernel    // +checklocks:kernelMu; nil while none is open

	mu    sync.Mutex        // guards what follows, and orders changes of the slot's rules
	names *egress.DNSServer // the resolver; nil when it does not listen
	told  *dropLog          // nil when nobody hears what is refused
	guard *egress.Enforcer  // what the resolver and the proxy ask; nil before the first policy
	rules *egress.Rules     // what the guard holds; nil with it
	proxy *egress.Proxy     // nil while names decide nothing
	given bool              // back to the pool: the place may be another owner's
	// bounded: it had rates of its own.
	bounded bool
}

func (p *Pool) newSlot(index int) *Slot {
	_, guest := place(p.cfg.Range, index)
	return &Slot{Index: index, GuestIP: guest, Address: guestAddress, Gateway: gateway, DNS: gateway,
		MAC: append(net.HardwareAddr(nil), guestMAC...), MTU: p.mtu, TapName: tapName, pool: p}
}

// inside runs do on a thread in the slot's namespace.
func (s *Slot) inside(do func() error) error {
	ns, err := openInside(s.pool.linkName(s.Index))
	if err != nil {
		return err
	}
	defer ns.Close()
	return within(ns, do)
}

// denyAll closes what this process holds of a slot: the tap and the resolver.
func (s *Slot) denyAll() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.proxy != nil {
		err = s.proxy.Close()
		s.proxy = nil
	}
	if s.told != nil {
		err = errors.Join(err, s.told.close())
		s.told = nil
	}
	if s.names != nil {
		err = errors.Join(err, s.names.Close())
		s.names = nil
	}
	s.guard, s.rules = nil, nil
	if s.Tap != nil {
		if e := s.Tap.Close(); e != nil && !errors.Is(e, os.ErrClosed) {
			err = errors.Join(err, e)
		}
		s.Tap = nil
	}
	return err
}

// listen starts the resolver of the slot, from a thread in its namespace.
func (s *Slot) listen(ctx context.Context) error {
	n, err := s.pool.listenNames(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = n
	if s.pool.cfg.Decided == nil || s.told != nil {
		return nil
	}
	s.told, err = s.pool.openDropLog(s.Index)
	return err
}

// isClean is the same place as another value, so that a former owner's pointer is of no use any more.
func (s *Slot) isClean() *Slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.pool.newSlot(s.Index)
	n.Tap, n.names, n.told = s.Tap, s.names, s.told
	s.Tap, s.names, s.told = nil, nil, nil
	s.kernelMu.Lock()
	defer s.kernelMu.Unlock()
	n.kernel, s.kernel = s.kernel, nil
	return n
}
