package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/agent"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/image/kernel"
	"github.com/pandastack/pandastack/internal/lib/ballast"
	"github.com/pandastack/pandastack/internal/nodebackup"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/os/egress"
	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/os/netslot"
	"github.com/pandastack/pandastack/internal/vmm"
)

// openDataDir prepares the data directory and locks it for this node.
func (n *node) openDataDir(ctx context.Context) error {
	dir := n.Config.DataDir
	release, err := disk.EnsureDataDir(ctx, dir)
	if err != nil {
		return dataDirError(err, os.Geteuid())
	}
	n.undo.Push("release data directory", release)
	held, err := lockDataDir(dir)
	if err != nil {
		return err
	}
	n.undo.Push("unlock data directory", func(context.Context) error { return held.Close() })
	if err := nodebackup.CheckComplete(dir); err != nil {
		return err
	}
	if err := nodebackup.Sweep(dir); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if n.ballast, err = ballast.In(dir); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	n.run(ctx, "ballast", func(ctx context.Context) error { return n.ballast.Run(ctx, n.Log) })
	n.run(ctx, "trim", n.trim)
	return nil
}

// dataDirError returns the error of a process with a user id that cannot open its data directory.
func dataDirError(err error, uid int) error {
	if uid != 0 && errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("starting a node requires root; use sudo: %w", err)
	}
	return fmt.Errorf("data directory: %w", err)
}

// makeSpace gives up the ballast of the data directory if that is full, and reports whether there is space now.
func (n *node) makeSpace() bool {
	made, err := n.ballast.Release()
	if err != nil {
		n.Log.Error("no space made for the database", "err", err)
	}
	if made {
		n.Log.Warn("disk full: the ballast was removed so that the database can write")
	}
	return made
}

// trimEvery is the interval at which free space of the data directory's image is returned to the disk below it.
const trimEvery = 10 * time.Minute

// trim returns free space to the disk every trimEvery, until ctx ends.
func (n *node) trim(ctx context.Context) error {
	tick := time.NewTicker(trimEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := disk.Trim(n.Config.DataDir); err != nil { // harmless: not every disk supports discard
			n.Log.Warn("could not trim the data directory", "err", err)
		}
	}
}

// path returns a path below the data directory.
func (n *node) path(names ...string) string {
	return filepath.Join(append([]string{n.Config.DataDir}, names...)...)
}

// findKernel finds the guest kernel and initramfs. They stay the same for the life of the node: a new kernel or
// guest agent takes effect at the next start.
func (n *node) findKernel(ctx context.Context) (kernel.Boot, error) {
	return kernel.Find(ctx, n.path("kernel"), n.Config.Agent())
}

// guestDatabasePort is where guests reach the databases of this node, at their gateway.
const guestDatabasePort = 5432

// network opens the pool of network slots.
func (n *node) network(ctx context.Context) (*netslot.Pool, error) {
	c := n.Config.Network
	addresses, err1 := c.Addresses()
	allowed, err2 := c.Allowed()
	resolvers, err3 := c.Servers()
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	set := netslot.Config{
		Prefix:    c.Prefix,
		Range:     addresses,
		Slots:     c.Slots,
		Ready:     c.PrewarmedSlots,
		Allow:     allowed,
		Resolvers: resolvers,
		Logger:    n.Log,
		In:        machine.LineBytes(n.Config.Limits.NetworkIn),
		Out:       machine.LineBytes(n.Config.Limits.NetworkOut),

		Connections:    n.Config.Limits.Connections,
		NewConnections: n.Config.Limits.NewConnections,
	}
	if n.pg != nil && n.Config.Databases.Guests {
		set.ServicePort = guestDatabasePort
	}
	if c.LogEgress {
		set.Decided = n.logEgress
	}
	pool, err := netslot.New(set)
	if err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	if err := pool.Open(ctx); err != nil {
		if errors.Is(err, netslot.ErrInUse) {
			err = fmt.Errorf("%w; choose another --network-prefix for this node", err)
		}
		return nil, fmt.Errorf("network: %w", err)
	}
	n.undo.Push("close network", pool.Close)
	n.budgets = append(n.budgets, pool.Shares()...)
	return pool, nil
}

// logEgress logs the decision of a machine's egress rules on a name or a connection.
func (n *node) logEgress(owner string, slot int, d egress.Decision) {
	to := ""
	if d.Address.IsValid() {
		to = d.Address.String()
	}
	n.Log.Info("egress decided",
		"machine", owner, "slot", slot,
		"kind", d.Kind, "name", d.Name, "to", to,
		"allowed", d.Verdict.Allowed && d.Reason == "", "rule", d.Verdict.Rule, "reason", d.Reason,
		"packets", d.Packets, "protocol", d.Protocol,
	)
}

// openJail opens the jail manager and claims the users that monitors run as.
func (n *node) openJail() (*jail.Manager, error) {
	layout, err := jail.Probe()
	if err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	j, err := jail.New(jail.Config{
		Hierarchy: layout, Prefix: n.Config.Network.Prefix, ProgramsDir: n.path("jail"),
		OnRefusedCall: n.refusedCallLogger(), RecordCalls: n.Config.VMM.SeccompMode == "record",
	})
	if err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	n.undo.Push("close cgroups", func(context.Context) error { return j.Close() })
	if err := j.ClaimUIDs(); err != nil {
		return nil, fmt.Errorf("jail: %w; choose another --network-prefix for this node", err)
	}
	return j, nil
}

// refusedCallLogger returns a function that logs system calls that a monitor's policy does not allow. A
// monitor that has been taken over can make any number of them, so it logs the first hundred and then
// one every ten seconds.
func (n *node) refusedCallLogger() func(jail.RefusedCall) {
	some := rate.Sometimes{First: 100, Interval: 10 * time.Second}
	return func(c jail.RefusedCall) {
		some.Do(func() {
			text := "refused a system call of a monitor"
			if c.Continued {
				text = "recorded a system call of a monitor that is not allowed"
			}
			n.Log.Warn(text, "call", c.Name, "args", fmt.Sprintf("%#x", c.Args), "machine", c.Cgroup, "pid", c.PID,
				"remedy", "if QEMU needs it, add it to vmm.seccomp_allow")
		})
	}
}

// monitorUser returns a function that maps a network slot to the user and group of its monitor.
func (n *node) monitorUser(j *jail.Manager) func(slot int) (uid, gid int) {
	return func(slot int) (int, int) {
		if n.Config.VMM.DisableJail {
			return 0, 0
		}
		uid, gid, err := j.User(slot)
		if err != nil { // there are as many users as slots
			n.Log.Error("no user for a network slot", "slot", slot, "err", err)
			return 65534, 65534
		}
		return uid, gid
	}
}

// platform returns a function that names everything a snapshot depends on: the driver, its version and accelerator,
// the kernel, and the capture format. A template is baked once for each platform.
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

// rememberSuccess returns a function that calls find until it succeeds, and then returns that result.
func rememberSuccess(find func(context.Context) (kernel.Boot, error)) func(context.Context) (kernel.Boot, error) {
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

// machineKernel returns the kernel that machines use for a cold boot.
func machineKernel(b kernel.Boot) machine.Kernel {
	return machine.Kernel{Kernel: b.Kernel, Initramfs: b.Initramfs, Cmdline: b.Cmdline}
}

// host creates the host agent, which adopts the machines that an earlier node left running.
func (n *node) host(ctx context.Context) (*agent.Host, error) {
	find := rememberSuccess(n.findKernel)
	if _, err := find(ctx); err != nil { // fail at start rather than at the first create
		return nil, err
	}
	driver, err := n.driver(ctx)
	if err != nil {
		return nil, err
	}
	n.memory, n.translates = driver.Capabilities().Memory.Hotplug, driver.Capabilities().Capture.Checkpoints
	jails, err := n.openJail()
	if err != nil {
		return nil, err
	}
	pool, err := n.network(ctx)
	if err != nil {
		return nil, err
	}
	n.guests = pool.Service()
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
		DataDir: n.Config.DataDir,
		Recipes: recipes, RebakeStale: n.Config.Templates.Rebake,
		Machine: machine.Config{
			WarmMonitors:   n.Config.Sandbox.WarmMonitors,
			FreezeTimeout:  n.Config.Sandbox.GuestTimeout,
			DiskReserveMiB: c.DiskReserveMiB,
			DiskOvercommit: c.DiskOvercommit,
			Places:         volumePlaces,
			Limits:         n.limits(),
			Admission: machine.Admission{
				ReserveMiB: c.MemoryReserveMiB, Overcommit: float64(c.MemoryOvercommit) / 100,
				MaxPressure: float64(c.MemoryPressure),
			},
			HostMemory: n.hostMemory(),
			Allocated:  disk.Allocated,
			HugeMemory: n.hugePages(),
			Owner:      n.monitorUser(jails),
			Kernel: func(ctx context.Context) (machine.Kernel, error) {
				b, err := find(ctx)
				return machineKernel(b), err
			},
		},
	}, agent.Deps{
		Machine: machine.Deps{
			Driver:  driver,
			Network: network{pool, n.tapOwner(driver, jails)},
			Cgroups: cgroups{jails, n.Config.VMM.DisableJail},
			Disks:   disks{},
			Link:    n.openLink,
		},
		Platform:   n.platform(driver, find),
		Rewrite:    disk.Rewrite,
		ImportRoot: importRoot,
		Share:      disk.Dedup,
		PunchPages: disk.PunchPages,
		Objects:    objects,
		Measure:    disk.Usage,
		Log:        n.Log,
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

// volumePlaces is the number of drives for volumes that every template is baked with.
const volumePlaces = 4

// limits returns the I/O limits that every machine has.
func (n *node) limits() hostapi.Limits {
	l := n.Config.Limits
	return hostapi.Limits{
		DiskMiB:        l.DiskMiBPerSecond,
		DiskOps:        l.DiskIOPS,
		NetworkInMbit:  l.NetworkIn,
		NetworkOutMbit: l.NetworkOut,
		Connections:    l.Connections,
		NewConnections: l.NewConnections,
	}
}

// hugePages returns a function that reads how much memory in 2 MiB pages machines may use, or nil if huge pages are
// disabled.
func (n *node) hugePages() func() (int64, error) {
	if !n.Config.VMM.HugePages {
		return nil
	}
	return vmm.ReadHugePages
}

// hostMemory returns a function that reads the host's memory, at most capacity.memory_mib if that is set.
func (n *node) hostMemory() machine.HostMemory {
	limit := int64(n.Config.Capacity.MemoryMiB) << 20
	if limit == 0 {
		return machine.ReadMeminfo
	}
	return func() (total, available int64, err error) {
		total, available, err = machine.ReadMeminfo()
		return min(total, limit), min(available, limit), err
	}
}
