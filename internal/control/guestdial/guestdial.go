// Package guestdial opens the guests of machines through their hosts.
//
// A host hands out a guest as a byte stream (hostapi.Host.DialGuest). A Dialer speaks the guest protocol over it, and
// keeps one link per machine for as long as the stream lasts, which is one generation of the machine. If the host is
// in this process, the Dialer uses the host's own link.
package guestdial

import (
	"context"
	"sync"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestlink"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// Host is what a Dialer needs of a host. hostapi.Host has it.
type Host interface {
	DialGuest(ctx context.Context, id hostapi.MachineID) (hostapi.GuestConn, error)
}

// Dialer opens guests. All methods may be called concurrently.
type Dialer struct {
	host Host

	mu      sync.Mutex
	links   map[hostapi.MachineID]*guestlink.Link
	dialing map[hostapi.MachineID]chan struct{} // closed when the dial has ended
}

// New returns a dialer for the machines of a host.
func New(host Host) *Dialer {
	return &Dialer{host: host, links: map[hostapi.MachineID]*guestlink.Link{},
		dialing: map[hostapi.MachineID]chan struct{}{}}
}

// Guest returns the guest of a running machine. Errors are those of hostapi.Host.DialGuest.
func (d *Dialer) Guest(ctx context.Context, id hostapi.MachineID) (guestapi.Guest, error) {
	for {
		d.mu.Lock()
		if link := d.links[id]; link != nil && link.Alive() {
			d.mu.Unlock()
			return link, nil
		}
		busy := d.dialing[id]
		if busy == nil {
			busy = make(chan struct{})
			d.dialing[id] = busy
			d.mu.Unlock()
			return d.dial(ctx, id, busy)
		}
		d.mu.Unlock()
		select {
		case <-busy: // another caller's dial
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (d *Dialer) dial(ctx context.Context, id hostapi.MachineID, busy chan struct{}) (guestapi.Guest, error) {
	defer func() {
		d.mu.Lock()
		delete(d.dialing, id)
		d.mu.Unlock()
		close(busy)
	}()
	conn, err := d.host.DialGuest(ctx, id)
	if err != nil {
		return nil, err
	}
	if local, ok := conn.Conn.(hostapi.LocalGuest); ok {
		return local.Guest(), nil
	}
	// The host has confirmed the generation; on this channel all requests are for it.
	link, err := guestlink.Open(ctx, conn, guestlink.Options{})
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	old := d.links[id]
	d.links[id] = link
	d.mu.Unlock()
	go d.forgetWhenDone(id, link)
	if old != nil {
		_ = old.Close() // it has ended already
	}
	return link, nil
}

// forgetWhenDone drops a link that has ended.
func (d *Dialer) forgetWhenDone(id hostapi.MachineID, link *guestlink.Link) {
	<-link.Done()
	_ = link.Close() // it has ended already
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.links[id] == link {
		delete(d.links, id)
	}
}

// Close closes all links.
func (d *Dialer) Close() {
	d.mu.Lock()
	all := d.links
	d.links = map[hostapi.MachineID]*guestlink.Link{}
	d.mu.Unlock()
	for _, link := range all {
		_ = link.Close() // returns nil always
	}
}
