package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/agent"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/image/kernel"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/os/egress"
	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/os/netslot"
	"github.com/pandastack/pandastack/internal/vmm"
)

// data makes the data directory usable and takes it for this node.
func (n *node) data(ctx context.Context) error {
	dir := n.Config.DataDir
	release, err := disk.EnsureDataDir(ctx, dir)
	if _, plain := errors.AsType[*disk.NoReflinkError](err); plain {
		return fmt.Errorf("data directory %s: %w; run pandastack setup", dir, err)
	}
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	n.back.Push("release data directory", release)
	held, err := lock(dir)
	if err != nil {
		return err
	}
	n.back.Push("unlock data directory", func(context.Context) error { return held.Close() })
	n.run(ctx, "giving space back", n.trim)
	return nil
}

// trimEvery is how often free space of the data directory's image is given back to the disk below.
const trimEvery = 10 * time.Minute

// trim does so until ctx ends.
func (n *node) trim(ctx context.Context) error {
	tick := time.NewTicker(trimEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := disk.Trim(n.Config.DataDir); err != nil { // the data is well; a disk below may not take space back
			n.Log.Warn("free space is not given back", "err", err)
		}
	}
}

// path is a path below the data directory.
func (n *node) path(names ...string) string {
	return filepath.Join(append([]string{n.Config.DataDir}, names...)...)
}

// boot finds what guests boot. It is the same for the life of the node: a new kernel or guest agent is
// taken up by the next start.
func (n *node) boot(ctx context.Context) (kernel.Boot, error) {
	b, err := kernel.Find(ctx, n.path("kernel"), n.Config.Agent())
	if _, missing := errors.AsType[*kernel.NotFoundError](err); missing {
		return kernel.Boot{}, fmt.Errorf("%w; run pandastack setup", err)
	}
	return b, err
}

// network opens the pool of slots.
func (n *node) network(ctx context.Context) (*netslot.Pool, error) {
	c := n.Config.Network
	addresses, err1 := c.Addresses()
	allowed, err2 := c.Allowed()
	resolvers, err3 := c.Servers()
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	set := netslot.Config{
		Prefix: c.Prefix, Range: addresses, Slots: c.Slots, Ready: c.PrewarmedSlots, Allow: allowed, Resolvers: resolvers, Logger: n.Log,
		In: machine.LineBytes(n.Config.Limits.NetworkIn), Out: machine.LineBytes(n.Config.Limits.NetworkOut),
	}
	if c.LogEgress {
		set.Decided = n.decided
	}
	pool, err := netslot.New(set)
	if err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	if err := pool.Open(ctx); err != nil {
		if errors.Is(err, netslot.ErrInUse) {
			err = fmt.Errorf("%w; give this node another --network-prefix", err)
		}
		return nil, fmt.Errorf("network: %w", err)
	}
	n.back.Push("close network", pool.Close)
	return pool, nil
}

// decided logs what the rules of a machine said to a name or a connection.
func (n *node) decided(owner string, slot int, d egress.Decision) {
	to := ""
	if d.Address.IsValid() {
		to = d.Address.String()
	}
	n.Log.Info(
		"egress decided",
		"machine",
		owner,
		"slot",
		slot,
		"kind",
		d.Kind,
		"name",
		d.Name,
		"to",
		to,
		"allowed",
		d.Verdict.Allowed && d.Reason == "",
		"rule",
		d.Verdict.Rule,
		"reason",
		d.Reason,
		"packets",
		d.Packets,
		"protocol",
		d.Protocol,
	)
}

// confine opens the jail.
func (n *node) confine() (*jail.Manager, error) {
	layout, err := jail.Probe()
	if err != nil {
		return nil, fmt.Errorf("control groups: %w", err)
	}
	j, err := jail.New(jail.Config{Hierarchy: layout, Prefix: n.Config.Network.Prefix, ProgramsDir: n.path("jail")})
	if err != nil {
		return nil, fmt.Errorf("control groups: %w", err)
	}
	n.back.Push("close control groups", func(context.Context) error { return j.Close() })
	if err := j.ClaimUIDs(); err != nil {
		return nil, fmt.Errorf("jail: %w; give this node another --network-prefix", err)
	}
	return j, nil
}

// owner gives the user that runs the monitor of a network place.
func (n *node) owner(j *jail.Manager) func(slot int) (uid, gid int) {
	return func(slot int) (int, int) {
		if n.Config.VMM.DisableJail {
			return 0, 0
		}
		uid, gid, err := j.User(slot)
		if err != nil { // there are as many users as slots
			n.Log.Error("no user for a network place", "slot", slot, "err", err)
			return 65534, 65534
		}
		return uid, gid
	}
}

// platform names what boots and runs guests here. It is told once: see boot.
func (n *node) platform(
	driver vmm.Driver,
	find func(context.Context) (kernel.Boot, error),
) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		b, err := find(ctx)
		if err != nil {
			return "", err
		}
		c := driver.Capabilities()
		return fmt.Sprintf("%s %s %s %s %s", c.Name, c.Version, c.Accelerator, b.Digest, c.Format), nil
	}
}

// once remembers the first success of find.
func once(find func(context.Context) (kernel.Boot, error)) func(context.Context) (kernel.Boot, error) {
	var mu sync.Mutex
	var found *kernel.Boot
	return func(ctx context.Context) (kernel.Boot, error) {
		mu.Lock()
		defer mu.Unlock()
		if found != nil {
			return *found, nil
		}
		b, err := find(ctx)
		if err == nil {
			found = &b
		}
		return b, err
	}
}

// machineKernel is what a machine boots cold with.
func machineKernel(b kernel.Boot) machine.Kernel {
	return machine.Kernel{Kernel: b.Kernel, Initramfs: b.Initramfs, Cmdline: b.Cmdline}
}

// host makes the host agent and takes over the machines that an earlier node left running.
func (n *node) host(ctx context.Context) (*agent.Host, error) {
	find := once(n.boot)
	if _, err := find(ctx); err != nil { // a node that cannot boot a guest is of no use
		return nil, err
	}
	driver, err := n.driver(ctx)
	if err != nil {
		return nil, err
	}
	cell, err := n.confine()
	if err != nil {
		return nil, err
	}
	pool, err := n.network(ctx)
	if err != nil {
		return nil, err
	}
	recipes, err := n.recipes()
	if err != nil {
		return nil, err
	}
	objects, err := n.objects(ctx)
	if err != nil {
		return nil, err
	}
	c := n.Config.Capacity
	host, err := agent.New(agent.Config{
		DataDir: n.Config.DataDir, Recipes: recipes,
		Machine: machine.Config{
			WarmMonitors:   n.Config.Sandbox.WarmMonitors,
			DiskReserveMiB: c.DiskReserveMiB,
			Limits:         n.limits(),
			Admission:      machine.Admission{ReserveMiB: c.MemoryReserveMiB},
			HostMemory:     n.memory(),
			HugeMemory:     n.hugeMemory(),
			Owner:          n.owner(cell),
			Kernel: func(ctx context.Context) (machine.Kernel, error) {
				b, err := find(ctx)
				return machineKernel(b), err
			},
		},
	}, agent.Deps{
		Machine: machine.Deps{
			Driver:  driver,
			Network: network{pool, n.hand(driver, cell)},
			Cgroups: groups{cell, n.Config.VMM.DisableJail},
			Disks:   disks{},
			Link:    openLink,
		},
		Platform: n.platform(
			driver,
			find,
		), Rewrite: disk.Rewrite, ImportRoot: importRoot, Share: disk.Dedup, PunchPages: disk.PunchPages, Objects: objects, Measure: disk.Usage, Log: n.Log,
	})
	if err != nil {
		return nil, err
	}
	if err := host.Open(ctx); err != nil {
		return nil, fmt.Errorf("host agent: %w", err)
	}
	n.run(ctx, "network", pool.Run)
	return host, nil
}

// limits are those of every machine.
func (n *node) limits() hostapi.Limits {
	l := n.Config.Limits
	return hostapi.Limits{
		DiskMiB:        l.DiskMiBPerSecond,
		DiskOps:        l.DiskIOPS,
		NetworkInMbit:  l.NetworkIn,
		NetworkOutMbit: l.NetworkOut,
	}
}

// hugeMemory gives the pages of 2 MiB that machines may have; nil for none.
func (n *node) hugeMemory() func() (int64, error) {
	if !n.Config.VMM.HugePages {
		return nil
	}
	return vmm.ReadHugePages
}

// memory gives what the host has, or no more than the configuration allows.
func (n *node) memory() machine.HostMemory {
	most := int64(n.Config.Capacity.MemoryMiB) << 20
	if most == 0 {
		return machine.ReadMeminfo
	}
	return func() (total, available int64, err error) {
		total, available, err = machine.ReadMeminfo()
		return min(total, most), min(available, most), err
	}
}
