package netslot

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/lib/cleanup"
	"github.com/pandastack/pandastack/internal/lib/filelock"
	"github.com/pandastack/pandastack/internal/os/nft"
)

// retry is how long Run waits before it tries again to renew slots whose tap was held.
const retry = 2 * time.Second

// Open chooses the range, finds the slots of an earlier process, and loads the host's rules. Slots it finds can be
// adopted until Sweep. The error is a *RangeError if no unused range is left.
func (p *Pool) Open(ctx context.Context) (err error) {
	if p.host, err = openHost(p.cfg.Namespace); err != nil {
		return err
	}
	var back cleanup.Stack
	back.Push("close namespace", func(context.Context) error { return p.host.Close() })
	defer func() {
		if err != nil {
			err = fmt.Errorf("open network slots: %w", back.Settle(ctx, err))
		}
	}()
	if err := p.claimPrefix(); err != nil {
		return err
	}
	back.Push("unlock", func(context.Context) error { return p.unlock() })
	if err := within(p.host, func() (err error) { p.flows, err = openFlows(); return err }); err != nil {
		return err
	}
	back.Push("close connection tracking", func(context.Context) error { p.flows.close(); return nil })
	left, err := p.leftoverNamespaces()
	if err != nil {
		return err
	}
	if err := within(p.host, func() error { return p.prepareHost(left) }); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, index := range left {
		s := p.newSlot(index)
		s.adopted = true
		p.slots[index] = &entry{slot: s, state: found}
	}
	p.open = true
	p.cfg.Logger.InfoContext(ctx, "network slots open", "range", p.cfg.Range.String(), "found", len(left))
	return nil
}

// claimPrefix reserves the prefix against other processes for as long as this one lives.
func (p *Pool) claimPrefix() (err error) {
	if p.lock, err = p.lockName(p.cfg.Prefix); errors.Is(err, filelock.ErrHeld) {
		return fmt.Errorf("prefix %s: %w", p.cfg.Prefix, ErrInUse)
	}
	return err
}

// unlock releases the prefix and the range.
func (p *Pool) unlock() error {
	err := p.lock.Release()
	if p.rangeLock != nil {
		err = errors.Join(err, p.rangeLock.Release())
	}
	return err
}

// lockName locks a name in the host's network namespace, until this process ends. The error is filelock.ErrHeld if
// another process has locked it.
func (p *Pool) lockName(name string) (*filelock.Lock, error) {
	var ns unix.Stat_t
	if err := unix.Fstat(int(p.host.Fd()), &ns); err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return filelock.Acquire("", fmt.Sprintf("netslot-%d-%s", ns.Ino, name))
}

// claimRange chooses the range and reserves it against pools of other prefixes that may not have a slot yet.
func (p *Pool) claimRange(inUse []netip.Prefix, ours []netip.Addr) error {
	for {
		r, err := chooseRange(p.cfg.Range, inUse, ours)
		if err != nil {
			return err
		}
		p.rangeLock, err = p.lockName(strings.ReplaceAll(r.String(), "/", "_"))
		if errors.Is(err, filelock.ErrHeld) {
			inUse, ours = append(inUse, r), nil
			continue
		}
		if err != nil {
			return err
		}
		p.cfg.Range = r
		return nil
	}
}

func openHost(path string) (*os.File, error) {
	if path == "" {
		path = "/proc/self/ns/net"
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the host's network namespace: %w", err)
	}
	return f, nil
}

// leftoverNamespaces lists the indexes of slots of which a namespace or a link exists.
func (p *Pool) leftoverNamespaces() ([]int, error) {
	files, err := os.ReadDir(namespaces)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	var list []int
	for _, f := range files {
		list = p.appendIndex(list, f.Name())
	}
	err = within(p.host, func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return fmt.Errorf("list links: %w", err)
		}
		for _, l := range links {
			list = p.appendIndex(list, l.Attrs().Name)
		}
		return nil
	})
	slices.Sort(list)
	return slices.Compact(list), err
}

func (p *Pool) appendIndex(list []int, name string) []int {
	digits, ok := strings.CutPrefix(name, p.cfg.Prefix+"-")
	if i, err := strconv.Atoi(digits); ok && err == nil && i >= 0 && i < maxSlots && strconv.Itoa(i) == digits {
		return append(list, i)
	}
	return list
}

// prepareHost chooses range and uplinks and loads the rules, on a thread in the host's namespace.
func (p *Pool) prepareHost(left []int) error {
	inUse, ours, err := p.hostPrefixes()
	if err != nil {
		return err
	}
	if err := p.claimRange(inUse, ours); err != nil {
		return err
	}
	p.closed = closed(p.cfg.Allow, p.cfg.Range)
	return p.setUplinks(func(uplinks, switched []string) error {
		return nft.Replace(hostRules(p.cfg, uplinks, switched))
	})
}

// hostPrefixes lists the host's addresses and routes without those of slots, and the slots' addresses.
func (p *Pool) hostPrefixes() (inUse []netip.Prefix, ours []netip.Addr, err error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, nil, fmt.Errorf("list links: %w", err)
	}
	mine := map[int]bool{}
	for _, l := range links {
		mine[l.Attrs().Index] = p.appendIndex(nil, l.Attrs().Name) != nil
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP)
		if mine[a.LinkIndex] {
			ours = append(ours, ip.Unmap())
			continue
		}
		inUse = append(inUse, netip.PrefixFrom(ip.Unmap(), 32))
	}
	routes, err := netlink.RouteListFiltered(
		netlink.FAMILY_V4,
		&netlink.Route{Table: unix.RT_TABLE_UNSPEC},
		netlink.RT_FILTER_TABLE,
	)
	if err != nil {
		return nil, nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst == nil || mine[r.LinkIndex] {
			continue
		}
		ip, _ := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		inUse = append(inUse, netip.PrefixFrom(ip.Unmap(), bits))
	}
	return inUse, ours, nil
}

// Sweep removes the slots that Open found and that were not adopted, and returns their number.
func (p *Pool) Sweep(context.Context) (int, error) {
	var all error
	n := 0
	for _, index := range p.inState(found) {
		s, ok := p.changeState(index, found, building)
		if !ok {
			continue
		}
		if err := p.remove(s); err != nil {
			all = errors.Join(all, err)
			continue
		}
		n++
	}
	p.wake()
	return n, all
}

// Run keeps slots prepared and follows the host's uplinks until ctx ends. It logs errors and tries again: Acquire
// returns them to a caller that needs a slot.
func (p *Pool) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	moved := make(chan struct{}, 1)
	g.Go(func() error {
		return p.followUplinks(ctx, func() {
			select {
			case moved <- struct{}{}:
			default:
			}
		})
	})
	g.Go(func() error { return p.loop(ctx, moved) })
	if p.cfg.Decided != nil {
		g.Go(func() error { return p.watchDrops(ctx) })
	}
	return g.Wait()
}

func (p *Pool) loop(ctx context.Context, moved <-chan struct{}) error {
	for {
		again := p.maintain(ctx)
		var timer <-chan time.Time
		if again {
			timer = time.After(retry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.nudge:
		case <-timer:
		case <-moved:
			if err := p.refreshUplinks(); err != nil {
				p.cfg.Logger.WarnContext(ctx, "uplinks not followed", "err", err)
			}
		}
	}
}

// maintain renews released slots and prepares missing ones. It returns true if some must be tried again later.
func (p *Pool) maintain(ctx context.Context) (again bool) {
	for _, index := range p.inState(used) {
		if ctx.Err() != nil {
			return false
		}
		if s, ok := p.changeState(index, used, building); ok && p.putBack(ctx, s) != nil {
			again = true
		}
	}
	for ctx.Err() == nil && p.count(ready) < p.cfg.Ready {
		index, err := p.claim()
		if err != nil { // full, or closed
			return again
		}
		s, err := p.build(ctx, index)
		p.finishBuild(index, s, ready, "")
		if err != nil {
			p.cfg.Logger.WarnContext(ctx, "network slot not prepared", "err", err)
			return true
		}
	}
	return again
}

// Close removes all slots except those in use and, if none is left, the host's rules and settings. Run must have
// returned. The slots in use continue to work without their resolver; another pool may adopt them.
func (p *Pool) Close(context.Context) error {
	p.mu.Lock()
	wasOpen := p.open
	p.open = false
	p.mu.Unlock()
	if !wasOpen {
		return nil
	}
	var all error
	for _, st := range []state{ready, used, found} {
		for _, index := range p.inState(st) {
			if s, ok := p.changeState(index, st, building); ok {
				all = errors.Join(all, p.remove(s))
			}
		}
	}
	left := p.inState(taken)
	for _, index := range left {
		p.mu.Lock()
		s := p.slots[index].slot
		p.mu.Unlock()
		all = errors.Join(all, s.closeFiles(), s.closeKernel())
	}
	if len(left) == 0 && all == nil {
		all = within(p.host, p.restoreHost)
	}
	p.flows.close()
	return errors.Join(all, p.unlock(), p.host.Close())
}

// restoreHost reverts the changes of prepareHost, on a thread in the host's namespace.
func (p *Pool) restoreHost() error {
	switched, err := nft.Names(p.cfg.Prefix, setSwitched)
	if errors.Is(err, nft.ErrNoTable) {
		return nil
	}
	if err != nil {
		return err
	}
	global, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	if err != nil {
		return fmt.Errorf("read ip_forward: %w", err)
	}
	if strings.TrimSpace(string(global)) == "0" { // otherwise another program wants all links to forward
		others, err := p.externallyChanged()
		if err != nil {
			return err
		}
		for _, name := range switched {
			if slices.Contains(others, name) {
				continue
			}
			if err := sysctlIfExists(forwarding(name), "0"); err != nil {
				return err
			}
		}
	}
	return nft.Delete(p.cfg.Prefix)
}
