//go:build root

package netslot

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// TestRates checks that traffic takes as long as the slot's rate implies, in either direction. A loaded machine takes
// longer, never less.
func TestRates(t *testing.T) {
	const (
		rate  = 1 << 20
		bytes = 1 << 20
		least = (bytes - leastBurst) * time.Second / rate
	)
	w := newFixture(t)
	for name, change := range map[string]func(*Config){
		"from the guest": func(c *Config) { c.Out = rate },
		"to the guest":   func(c *Config) { c.In = rate },
	} {
		t.Run(name, func(t *testing.T) {
			p := w.pool(change)
			defer w.closePool(p)
			s := w.take(p)
			g := w.guest(s, "pntga")
			defer w.give(p, s, g)
			c, _, err := dial(g.ns, public, 80, patience)
			w.must(err)
			defer c.Close()
			began := time.Now()
			w.must(c.SetDeadline(began.Add(patience)))
			// The server sends back all it gets: the slower direction counts.
			go func() { _, _ = c.Write(make([]byte, bytes)) }() // a failure shows in the read
			if _, err := io.CopyN(io.Discard, c, bytes); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took < least {
				t.Errorf("%d bytes took %v, less than %v", bytes, took, least)
			}
		})
	}
}

// TestRatesOfLaterOwners checks that a slot keeps its limits when it is used again, and that an adopted slot gets
// those of the new process.
func TestRatesOfLaterOwners(t *testing.T) {
	w := newFixture(t)
	first := w.pool(func(c *Config) { c.In, c.Out = 1<<20, 2<<20 })
	s := w.take(first)
	w.hasRates(s, 1<<20, 2<<20)
	w.must(first.Release(context.Background(), s))
	s = w.take(first)
	w.hasRates(s, 1<<20, 2<<20)
	w.must(s.Tap.Close()) // as if a monitor held it: the pool drops the slot without ending it
	s.Tap = nil
	w.closePool(first)

	adopt := func(change func(*Config), in, out uint64) {
		t.Helper()
		p := w.pool(change)
		defer w.closePool(p)
		again, err := p.Adopt(context.Background(), "test", s.Index)
		w.must(err)
		w.hasRates(again, in, out)
	}
	adopt(func(c *Config) { c.Out = 6 << 30 }, 0, 6<<30)
	adopt(func(c *Config) { c.In = 3 << 20 }, 3<<20, 0)
	adopt(nil, 0, 0)
	p := w.pool(nil)
	if _, err := p.Sweep(context.Background()); err != nil {
		t.Error(err)
	}
	w.closePool(p)
	if left := w.leftovers(); len(left) > 0 {
		t.Errorf("after Close: got leftovers %v, want none", left)
	}
}

// TestRatesOfASlot checks that a slot may have limits of its own, never above the pool's, and that its next owner has
// the pool's.
func TestRatesOfASlot(t *testing.T) {
	w := newFixture(t)
	p := w.pool(func(c *Config) { c.In = 4 << 20 })
	defer w.closePool(p)
	s := w.take(p)
	w.hasRates(s, 4<<20, 0)
	w.must(s.SetRates(8<<20, 2<<20))
	w.hasRates(s, 4<<20, 2<<20)
	w.must(s.SetRates(1<<20, 0))
	w.hasRates(s, 1<<20, 0)
	if err := s.SetRates(minRate-1, 0); err == nil {
		t.Error("SetRates below the minimum: got no error")
	}
	w.must(s.SetRates(1<<20, 3<<20))
	index := s.Index
	w.must(p.Release(context.Background(), s))
	if err := s.SetRates(1<<20, 0); !errors.Is(err, ErrReleased) {
		t.Errorf("SetRates after Release: got error %v, want ErrReleased", err)
	}
	if s = w.take(p); s.Index != index {
		t.Fatalf("got slot %d, want %d, the only one that is ready", s.Index, index)
	}
	w.hasRates(s, 4<<20, 0)
	w.must(p.Release(context.Background(), s))
}

// hasRates checks the limits in the kernel; 0 is none.
func (w *fixture) hasRates(s *Slot, in, out uint64) {
	w.t.Helper()
	want := map[string]uint64{tapName: in, innerName: out}
	w.must(s.inside(func() error {
		for name, rate := range want {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			all, err := netlink.QdiscList(link)
			if err != nil {
				return err
			}
			var got uint64
			for _, q := range all {
				if b, ok := q.(*netlink.Tbf); ok {
					got = b.Rate
				}
			}
			if got != rate {
				w.t.Errorf("%s has a limit of %d bytes a second, want %d", name, got, rate)
			}
		}
		return nil
	}))
}
