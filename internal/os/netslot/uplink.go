package netslot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/os/nft"
)

// followUplinks calls changed at once, and after every change of the host's default routes, until ctx ends.
func (p *Pool) followUplinks(ctx context.Context, changed func()) error {
	host := netns.NsHandle(p.host.Fd())
	for ctx.Err() == nil {
		updates := make(chan netlink.RouteUpdate, 64)
		err := netlink.RouteSubscribeWithOptions(updates, ctx.Done(), netlink.RouteSubscribeOptions{Namespace: &host})
		if err != nil {
			return fmt.Errorf("follow routes: %w", err)
		}
		changed()                // for changes before the subscription
		for u := range updates { // ends with ctx, or when the kernel's buffer overflowed
			if u.Table == unix.RT_TABLE_MAIN && (u.Dst == nil || u.Dst.IP.IsUnspecified()) {
				changed()
			}
		}
	}
	return nil
}

// setUplinks finds the uplinks and opens the way out by them, on a thread in the host's namespace. rules loads the
// new names into the kernel. setUplinks enables forwarding on links that did not forward, after the kernel's rules
// record that they did not.
func (p *Pool) setUplinks(rules func(uplinks, switched []string) error) error {
	uplinks, mtu, err := p.findUplinks()
	if err != nil {
		return err
	}
	if p.mtu == 0 { // existing slots keep their MTU; packets that are too big are reported to guests
		p.mtu = mtu
	}
	switched, err := nft.Names(p.cfg.Prefix, setSwitched)
	if err != nil && !errors.Is(err, nft.ErrNoTable) {
		return err
	}
	off, err := notForwarding(uplinks)
	if err != nil {
		return err
	}
	others, err := p.externallyChanged()
	if err != nil {
		return err
	}
	for _, name := range uplinks {
		if (slices.Contains(off, name) || slices.Contains(others, name)) && !slices.Contains(switched, name) {
			switched = append(switched, name)
		}
	}
	if err := rules(uplinks, switched); err != nil {
		return err
	}
	for _, name := range off {
		if err := sysctl(forwarding(name), "1"); err != nil {
			return err
		}
	}
	return nil
}

// externallyChanged lists the links on which pools of other prefixes on this host enabled forwarding. The last pool
// to close disables it.
func (p *Pool) externallyChanged() ([]string, error) {
	tables, err := nft.Tables()
	if err != nil {
		return nil, err
	}
	var all []string
	for _, t := range tables {
		if t == p.cfg.Prefix {
			continue
		}
		names, err := nft.Names(t, setSwitched)
		if err != nil { // another program's table, of any kind, or removed meanwhile: not of a pool
			continue
		}
		all = append(all, names...)
	}
	return all, nil
}

// refreshUplinks follows a change of the host's routes.
func (p *Pool) refreshUplinks() error {
	return within(p.host, func() error {
		return p.setUplinks(func(uplinks, switched []string) error {
			return nft.Update(p.cfg.Prefix, []nft.Set{
				{Name: setUplinks, IsNames: true, Names: uplinks},
				{Name: setSwitched, IsNames: true, Names: switched},
			}, nil)
		})
	})
}

func forwarding(link string) string { return filepath.Join("net/ipv4/conf", link, "forwarding") }

// findUplinks returns the links that guests may leave by, and their lowest MTU. A host without a default route has
// none: its guests reach nothing.
func (p *Pool) findUplinks() ([]string, int, error) {
	names := slices.Clone(p.cfg.Uplinks)
	if len(names) == 0 {
		routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
		if err != nil {
			return nil, 0, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			if r.Dst != nil && !r.Dst.IP.IsUnspecified() || r.LinkIndex == 0 {
				continue
			}
			link, err := netlink.LinkByIndex(r.LinkIndex)
			if err != nil {
				return nil, 0, fmt.Errorf("find uplink: %w", err)
			}
			names = append(names, link.Attrs().Name)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	mtu := defaultMTU
	for _, n := range names {
		link, err := netlink.LinkByName(n)
		if err != nil {
			return nil, 0, fmt.Errorf("find uplink %s: %w", n, err)
		}
		mtu = min(mtu, link.Attrs().MTU)
	}
	return names, mtu, nil
}

// notForwarding lists the links that do not forward.
func notForwarding(links []string) ([]string, error) {
	var off []string
	for _, name := range links {
		value, err := os.ReadFile(filepath.Join("/proc/sys", forwarding(name)))
		if err != nil {
			return nil, fmt.Errorf("read forwarding of %s: %w", name, err)
		}
		if strings.TrimSpace(string(value)) == "0" {
			off = append(off, name)
		}
	}
	return off, nil
}
