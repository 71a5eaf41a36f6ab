package netslot

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/time/rate"

	"github.com/pandastack/pandastack/internal/os/egress"
)

// Slot is one network slot. Its exported fields do not change while it is in use.
type Slot struct {
	Index   int          // from 0; identifies the slot after a restart
	GuestIP netip.Addr   // where the host reaches the guest
	Address netip.Prefix // the guest's own address, the same in every slot
	Gateway netip.Addr   // the guest's gateway
	DNS     netip.Addr   // the guest's resolver
	MAC     net.HardwareAddr
	MTU     int
	TapName string
	// Tap is the guest's link, for one monitor process; it stays open here until the slot is released. It is nil in
	// an adopted slot, whose monitor holds it.
	Tap *os.File

	pool    *Pool
	adopted bool // made by an earlier process

	kernelMu sync.Mutex // taken after mu if both are
	kernel   *kernel    // +checklocks:kernelMu; nil while none is open

	mu       sync.Mutex        // guards the fields below, and orders changes of the slot's rules
	names    *egress.DNSServer // the resolver; nil when it does not listen
	door     *door             // of the service; nil while there is none
	drops    *dropLog          // nil if Config.Decided is nil
	enforcer *egress.Enforcer  // decides for the resolver and the proxy; nil before the first policy
	rules    *egress.Rules     // the rules of the enforcer; nil with it
	proxy    *egress.Proxy     // nil while the policy contains no names
	dialRate *rate.Limiter     // of new connections through the proxy
	released bool              // released to the pool: the network slot may belong to another owner
	// bounded means that the slot had rates of its own.
	bounded bool
}

func (p *Pool) newSlot(index int) *Slot {
	_, guest := slotAddresses(p.cfg.Range, index)
	return &Slot{Index: index, GuestIP: guest, Address: guestAddress, Gateway: gateway, DNS: gateway,
		MAC: append(net.HardwareAddr(nil), guestMAC...), MTU: p.mtu, TapName: tapName, pool: p,
		dialRate: p.connections().limiter()}
}

// inside runs do on a thread in the slot's namespace.
func (s *Slot) inside(do func() error) error {
	ns, err := openNamespace(s.pool.linkName(s.Index))
	if err != nil {
		return err
	}
	defer ns.Close()
	return within(ns, do)
}

// closeFiles closes the files that this process holds of a slot: the tap and the sockets of resolver, proxy and log.
func (s *Slot) closeFiles() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.proxy != nil {
		err = s.proxy.Close()
		s.proxy = nil
	}
	if s.door != nil {
		err = errors.Join(err, s.door.close())
		s.door = nil
	}
	if s.drops != nil {
		err = errors.Join(err, s.drops.close())
		s.drops = nil
	}
	if s.names != nil {
		err = errors.Join(err, s.names.Close())
		s.names = nil
	}
	s.enforcer, s.rules = nil, nil
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
	n, err := s.pool.listenDNS(ctx, s.Index)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = n
	if s.pool.service != nil && s.door == nil {
		if s.door, err = s.openDoor(ctx); err != nil {
			return err
		}
	}
	if s.pool.cfg.Decided == nil || s.drops != nil {
		return nil
	}
	s.drops, err = s.pool.openDropLog(s.Index)
	return err
}

// successor moves the slot to a new value, so that a former owner's pointer can no longer affect it.
func (s *Slot) successor() *Slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.pool.newSlot(s.Index)
	n.Tap, n.names, n.door, n.drops = s.Tap, s.names, s.door, s.drops
	s.Tap, s.names, s.door, s.drops = nil, nil, nil, nil
	s.kernelMu.Lock()
	defer s.kernelMu.Unlock()
	n.kernel, s.kernel = s.kernel, nil
	return n
}
