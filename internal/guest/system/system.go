// Package system gives a machine its identity, freezes and thaws its workload, and reports its statistics.
//
// It owns the machine's identity and the cgroup of the workload. It accesses the system only through System, so that
// the order of its steps can be tested anywhere.
//
// Restore fails closed: the first step that fails ends it, and the workload stays frozen. A step changes nothing that
// is as it should be, since every write costs a restored machine time.
//
// Methods are called one at a time; Restore, Freeze and Thaw take a lock for it.
package system

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// System is the set of operations that make up a machine's identity. Paths are absolute.
type System interface {
	AddEntropy(b []byte) error // mixes b in, credits it, and reseeds at once
	SetClock(t time.Time) error
	SetHostname(name string) error
	ReadFile(path string) ([]byte, error)
	// WriteFile replaces the file at path by one with the given content and mode. It makes missing parents.
	WriteFile(path string, content []byte, mode uint32) error
	SetBootID(id string) error
	SetNetwork(n Network) error
	GrowRoot() error // grows to the size of its disk, which may be the current size
	// Mount mounts the ext4 file system of a disk over a directory, which it makes if it is missing. The disk may
	// take a moment to appear. A disk that is already mounted there is not an error.
	Mount(device, dir string, options []string) error
	Sync()
}

// Network is a guestapi.Network that was validated.
type Network struct {
	Address netip.Prefix
	Gateway netip.Addr // not valid: none
	MTU     int        // 0: unchanged
}

// Workload freezes and thaws all processes except the agent.
type Workload interface {
	Freeze(ctx context.Context) error
	Thaw(ctx context.Context) error
}

// Forks stops the start of processes while the workload is frozen.
type Forks interface {
	Hold()
	Release()
	SetDefaults(env map[string]string, user string)
}

// Volumes mounts volumes.
type Volumes interface {
	Mount(v guestapi.VolumeMount) error
}

// Control restores, freezes and thaws one machine.
type Control struct {
	sys      System
	workload Workload
	forks    Forks
	attached Volumes

	mu   sync.Mutex
	last guestapi.Identity // as restored
}

// New returns the control of a machine that has no identity yet.
func New(sys System, workload Workload, forks Forks, attached Volumes) *Control {
	return &Control{sys: sys, workload: workload, forks: forks, attached: attached}
}

// Freeze stops the workload; see guestapi.Guest. If it fails, the workload continues to run.
func (c *Control) Freeze(ctx context.Context, sync bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forks.Hold()
	if err := c.workload.Freeze(ctx); err != nil {
		back := c.workload.Thaw(context.WithoutCancel(ctx))
		c.forks.Release()
		return errors.Join(fmt.Errorf("freeze workload: %w", err), back)
	}
	if sync {
		c.sys.Sync()
	}
	return nil
}

// Thaw lets the workload run again.
func (c *Control) Thaw(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.thaw(ctx)
}

func (c *Control) thaw(ctx context.Context) error {
	if err := c.workload.Thaw(ctx); err != nil {
		return fmt.Errorf("thaw workload: %w", err)
	}
	c.forks.Release()
	return nil
}

// Restore gives the machine the identity id and thaws the workload; see guestapi.Backend.
func (c *Control) Restore(ctx context.Context, id guestapi.Identity) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	steps := []struct {
		name string
		do   func(*guestapi.Identity) error
	}{
		{"entropy", c.entropy}, {"clock", c.clock}, {"hostname", c.hostname}, {"machine id", c.machineID},
		{"boot id", c.bootID}, {"network", c.network}, {"disk", c.disk}, {"mounts", c.mounts},
		{"volumes", c.volumes}, {"files", c.files},
	}
	for _, step := range steps {
		if err := step.do(&id); err != nil {
			c.last = guestapi.Identity{} // the state is unknown after a failure
			return fmt.Errorf("set %s: %w", step.name, err)
		}
	}
	c.forks.SetDefaults(maps.Clone(id.Env), id.User)
	if err := c.thaw(ctx); err != nil {
		return err
	}
	c.last = id
	return nil
}

func (c *Control) entropy(id *guestapi.Identity) error {
	if len(id.Entropy) == 0 {
		return nil
	}
	return c.sys.AddEntropy(id.Entropy)
}

func (c *Control) clock(id *guestapi.Identity) error {
	if id.Time.IsZero() {
		return nil
	}
	return c.sys.SetClock(id.Time)
}

func (c *Control) hostname(id *guestapi.Identity) error {
	if id.Hostname == "" || id.Hostname == c.last.Hostname {
		return nil
	}
	if !validHostname(id.Hostname) {
		return fmt.Errorf("%w: host name %q", guestapi.ErrInvalid, id.Hostname)
	}
	if err := c.sys.SetHostname(id.Hostname); err != nil {
		return err
	}
	if err := c.sys.WriteFile("/etc/hostname", []byte(id.Hostname+"\n"), 0o644); err != nil {
		return err
	}
	old, _ := c.sys.ReadFile("/etc/hosts") // a missing file counts as empty
	return c.sys.WriteFile("/etc/hosts", hostsFile(string(old), id.Hostname), 0o644)
}

func validHostname(s string) bool {
	for i := range len(s) {
		b := s[i]
		letter := b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9'
		if !letter && (b != '-' && b != '.' || i == 0) {
			return false
		}
	}
	return len(s) <= 63
}

// hostsFile returns the content of /etc/hosts with the line of the machine itself replaced.
func hostsFile(old, name string) []byte {
	const mine = "127.0.1.1"
	var b strings.Builder
	if old == "" {
		old = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	}
	for line := range strings.Lines(old) {
		if f := strings.Fields(line); len(f) > 0 && f[0] == mine {
			continue
		}
		b.WriteString(strings.TrimRight(line, "\n"))
		b.WriteByte('\n')
	}
	b.WriteString(mine + "\t" + name + "\n")
	return []byte(b.String())
}

func (c *Control) machineID(id *guestapi.Identity) error {
	if id.MachineID == "" || id.MachineID == c.last.MachineID {
		return nil
	}
	return c.sys.WriteFile("/etc/machine-id", []byte(MachineID(id.MachineID)+"\n"), 0o444)
}

// MachineID returns the content of /etc/machine-id for a machine: 32 hexadecimal digits.
func MachineID(machine string) string {
	h := fnv.New128a()
	_, _ = h.Write([]byte("pandastack " + machine)) // a hash never fails
	return hex.EncodeToString(h.Sum(nil))
}

// bootID sets a random boot ID, made from the entropy that the host sent for it, so that no two copies share one. A
// machine that continues with its own memory keeps the one it has.
func (c *Control) bootID(id *guestapi.Identity) error {
	if len(id.Entropy) == 0 || id.MachineID != "" && id.MachineID == c.last.MachineID {
		return nil
	}
	h := fnv.New128a()
	_, _ = h.Write([]byte("boot id ")) // a hash never fails
	_, _ = h.Write(id.Entropy)
	b := h.Sum(nil)
	b[6], b[8] = b[6]&0x0F|0x40, b[8]&0x3F|0x80 // version 4
	s := hex.EncodeToString(b)
	return c.sys.SetBootID(s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:])
}

func (c *Control) network(id *guestapi.Identity) error {
	if id.Network == nil || c.last.Network != nil && sameNetwork(id.Network, c.last.Network) {
		return nil
	}
	var n Network
	var err error
	if n.Address, err = netip.ParsePrefix(id.Network.Address); err != nil {
		return fmt.Errorf("%w: %w", guestapi.ErrInvalid, err)
	}
	if id.Network.Gateway != "" {
		if n.Gateway, err = netip.ParseAddr(id.Network.Gateway); err != nil {
			return fmt.Errorf("%w: %w", guestapi.ErrInvalid, err)
		}
	}
	n.MTU = id.Network.MTU
	if err := c.sys.SetNetwork(n); err != nil {
		return err
	}
	if len(id.Network.DNS) == 0 {
		return nil
	}
	var b strings.Builder
	for _, s := range id.Network.DNS {
		if _, err := netip.ParseAddr(s); err != nil {
			return fmt.Errorf("%w: %w", guestapi.ErrInvalid, err)
		}
		b.WriteString("nameserver " + s + "\n")
	}
	return c.sys.WriteFile("/etc/resolv.conf", []byte(b.String()), 0o644)
}

func sameNetwork(a, b *guestapi.Network) bool {
	return a.Address == b.Address && a.Gateway == b.Gateway && a.MTU == b.MTU && slices.Equal(a.DNS, b.DNS)
}

func (c *Control) disk(id *guestapi.Identity) error {
	if !id.DiskGrow {
		return nil
	}
	return c.sys.GrowRoot()
}

// mounts mounts the disks other than the root disk. Without them programs would write to the root disk, where the
// data is lost.
func (c *Control) mounts(id *guestapi.Identity) error {
	for _, m := range id.Mounts {
		if m.Disk < 1 || m.Disk > 'z'-'a' || !path.IsAbs(m.Dir) || path.Clean(m.Dir) == "/" {
			return fmt.Errorf("%w: disk %d at %q", guestapi.ErrInvalid, m.Disk, m.Dir)
		}
		for _, o := range m.Options {
			if o == "" || strings.Trim(o, "abcdefghijklmnopqrstuvwxyz0123456789_=-") != "" {
				return fmt.Errorf("%w: option %q of disk %d", guestapi.ErrInvalid, o, m.Disk)
			}
		}
		if err := c.sys.Mount("/dev/vd"+string(rune('a'+m.Disk)), path.Clean(m.Dir), m.Options); err != nil {
			return err
		}
	}
	return nil
}

// volumes mounts the volumes. It comes before the workload continues: its programs find them.
func (c *Control) volumes(id *guestapi.Identity) error {
	for _, v := range id.Volumes {
		if err := c.attached.Mount(v); err != nil {
			return err
		}
	}
	return nil
}

func (c *Control) files(id *guestapi.Identity) error {
	for name, content := range id.Files {
		if !path.IsAbs(name) {
			return fmt.Errorf("%w: path %q", guestapi.ErrInvalid, name)
		}
		if err := c.sys.WriteFile(path.Clean(name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
