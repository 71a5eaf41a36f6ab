package firecracker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// Sizes for hotpluggable memory (virtio-mem): KVM memory slots on the host, and blocks in the
// guest.
const (
	slotMiB  = 128
	blockMiB = 2
)

// guestCID is the vsock context ID of every guest. No other guest can see it.
const guestCID = 3

const networkID = "eth0"

// ChannelPort is the vsock port on which the guest agent listens.
const ChannelPort = 5252

// cmdline returns the kernel command line: what every guest needs, and then the caller's part.
func (d *Driver) cmdline(more string) string {
	words := []string{
		"reboot=k", "panic=1", "i8042.noaux", "i8042.nomux", "i8042.dumbkbd", "swiotlb=noforce", "random.trust_cpu=on",
		"memhp_default_state=online_movable", fmt.Sprintf("pandastack.channel=vsock:%d", ChannelPort),
	}
	if d.config.Console {
		words = append(words, "console=ttyS0")
	} else {
		words = append(words, "8250.nr_uarts=0", "quiet", "loglevel=1")
	}
	if more != "" {
		words = append(words, more)
	}
	return strings.Join(words, " ")
}

// step is one API request.
type step func(context.Context) error

func runSteps(ctx context.Context, steps []step) error {
	for _, s := range steps {
		if err := s(ctx); err != nil {
			return err
		}
	}
	return nil
}

// boot configures the machine and starts it.
func (m *machine) boot(ctx context.Context) error {
	ctx, cancel := m.driver.monitors.WithTimeout(ctx, "start of the machine")
	defer cancel()
	if err := runSteps(ctx, m.bootSteps()); err != nil {
		return err
	}
	m.record.Cold = true
	m.record.MaxMemoryMiB = m.spec.MemoryMiB + m.record.Shape.HotplugMiB
	m.record.MaxDisks = len(m.record.Shape.ReadOnly)
	m.manifest.MaxMemoryMiB, m.manifest.MaxDisks = m.record.MaxMemoryMiB, m.record.MaxDisks
	if err := vmmproc.WriteRecord(m.spec.Dir, m.record); err != nil {
		return err
	}
	if err := m.api.Start(ctx); err != nil {
		return err
	}
	m.setPhase(vmmproc.Running)
	return errors.Join(os.RemoveAll(m.inRoot(kernelFile)), os.RemoveAll(m.inRoot(initrdFile)))
}

// bootSteps returns the requests that configure the machine before InstanceStart.
func (m *machine) bootSteps() []step {
	spec, sh, api := m.spec, m.record.Shape, m.api
	source := fcapi.BootSource{Kernel: kernelFile, Args: m.driver.cmdline(spec.Cmdline)}
	if spec.Initramfs != "" {
		source.Initrd = initrdFile
	}
	steps := []step{
		func(ctx context.Context) error { return api.SetBootSource(ctx, source) },
		func(ctx context.Context) error {
			return api.SetMachine(
				ctx,
				fcapi.MachineConfig{VCPUs: spec.VCPUs, MemoryMiB: spec.MemoryMiB, HugePages: fcapi.PagesSmall},
			)
		},
		func(ctx context.Context) error {
			return api.SetVsock(ctx, fcapi.Vsock{CID: guestCID, Path: vsockSocket})
		},
		func(ctx context.Context) error { return api.SetEntropy(ctx, fcapi.Entropy{}) },
		func(ctx context.Context) error {
			return api.SetBalloon(ctx, fcapi.Balloon{DeflateOnOOM: true, Reporting: true})
		},
	}
	for i, readOnly := range sh.ReadOnly {
		// All drives use Writeback, including volatile disks, which could use Unsafe. The cache
		// type cannot be changed after a restore, and a machine restored from this one may need it.
		d := fcapi.Drive{
			ID: driveName(i), Path: driveName(i), Root: i == 0 && spec.Initramfs == "", ReadOnly: readOnly,
			Cache: fcapi.CacheWriteback, Engine: "Sync",
		}
		if i < len(spec.Disks) && spec.Disks[i].Rate != (vmm.Rate{}) {
			d.Limiter = limiter(spec.Disks[i].Rate)
		}
		steps = append(steps, func(ctx context.Context) error { return api.AddDrive(ctx, d) })
	}
	if nic := spec.NIC; nic != nil {
		n := fcapi.NetworkInterface{ID: networkID, Device: nic.Device, MAC: nic.MAC.String()}
		if nic.In != (vmm.Rate{}) {
			n.In = limiter(nic.In)
		}
		if nic.Out != (vmm.Rate{}) {
			n.Out = limiter(nic.Out)
		}
		steps = append(steps, func(ctx context.Context) error { return api.AddNetwork(ctx, n) },
			func(ctx context.Context) error {
				return api.SetMetadataService(
					ctx,
					fcapi.MetadataService{Version: fcapi.MetadataTokens, Networks: []string{networkID}},
				)
			})
	}
	if sh.HotplugMiB > 0 {
		steps = append(steps, func(ctx context.Context) error {
			return api.SetHotplugMemory(
				ctx,
				fcapi.HotplugMemory{TotalMiB: sh.HotplugMiB, SlotMiB: slotMiB, BlockMiB: blockMiB},
			)
		})
	}
	return steps
}

// diskRates returns the rate limits of the disks, or nil if there are none.
func diskRates(spec vmm.Spec) []vmm.Rate {
	all := make([]vmm.Rate, len(spec.Disks))
	some := false
	for i, d := range spec.Disks {
		all[i], some = d.Rate, some || d.Rate != (vmm.Rate{})
	}
	if !some {
		return nil
	}
	return all
}

func hasRates(spec vmm.Spec) bool {
	if diskRates(spec) != nil {
		return true
	}
	return spec.NIC != nil && (spec.NIC.In != (vmm.Rate{}) || spec.NIC.Out != (vmm.Rate{}))
}

// limiter returns a rate limiter for a rate per second. Firecracker treats a bucket of size 0 as
// unlimited.
func limiter(r vmm.Rate) *fcapi.RateLimiter {
	bucket := func(n int64) *fcapi.TokenBucket {
		if n <= 0 {
			return &fcapi.TokenBucket{}
		}
		return &fcapi.TokenBucket{Size: n, RefillMillis: 1000}
	}
	return &fcapi.RateLimiter{Bandwidth: bucket(r.Bytes), Ops: bucket(r.Ops)}
}

// Load implements vmm.Machine.
func (m *machine) Load(ctx context.Context, from vmm.Capture) (err error) {
	if m.Phase() != vmmproc.Prepared || m.state == nil {
		return fmt.Errorf("load machine %s: it has already been loaded", m.spec.ID)
	}
	ctx, cancel := m.driver.monitors.WithTimeout(ctx, "load of the machine")
	defer cancel()
	if err := m.load(ctx, from); err != nil {
		return fmt.Errorf("load machine %s: %w", m.spec.ID, m.WithExitReason(ctx, err))
	}
	return nil
}

func (m *machine) load(ctx context.Context, from vmm.Capture) error {
	state := m.state
	m.state = nil // a monitor is never used again after a failed load
	loaded := m.imageManifest
	if from != nil {
		c, ok := from.(*capture)
		if !ok || c.driver != m.driver {
			return errors.New("the capture was made by another driver")
		}
		if err := c.Acquire(); err != nil {
			return err
		}
		defer func() { _ = c.Release() }() // the files are removed with the directory of captures anyway
		if err := m.useCapture(c); err != nil {
			return err
		}
		state, loaded = c.state, c.manifest
	}
	memory, err := m.memoryBackend(ctx, from == nil)
	if err != nil {
		return err
	}
	if err := os.WriteFile(m.inRoot(stateFile), state, 0o444); err != nil {
		return err
	}
	changes := m.postLoadSteps(loaded)
	request := fcapi.SnapshotLoad{State: stateFile, Memory: memory, TrackDirty: true, Resume: len(changes) == 0}
	if nic := m.spec.NIC; nic != nil && nic.Device != m.record.Shape.Device {
		request.Networks = []fcapi.NetworkOverride{{ID: networkID, Device: nic.Device}}
		m.record.Shape.Device = nic.Device
	}
	switch huge := memory.Type == fcapi.BackendUffd && m.spec.HugePages; {
	case huge:
		// Dirty page tracking works on 4 KiB pages and would split the huge pages. Without it
		// Firecracker uses mincore(2), which is correct here because huge pages are never swapped
		// out.
		request.HugePages, request.TrackDirty, m.record.Shape.Huge = fcapi.PagesHuge, false, true
	case m.record.Shape.Huge:
		request.HugePages, m.record.Shape.Huge = fcapi.PagesSmall, false
	}
	m.record.Shape.Rates = hasRates(m.spec)
	m.record.MaxMemoryMiB, m.record.MaxDisks = m.manifest.MaxMemoryMiB, m.manifest.MaxDisks
	if err := vmmproc.WriteRecord(m.spec.Dir, m.record); err != nil {
		return err
	}
	if err := m.api.LoadSnapshot(ctx, request); err != nil {
		return err
	}
	if err := runSteps(ctx, changes); err != nil {
		return err
	}
	m.setPhase(vmmproc.Running)
	return errors.Join(os.RemoveAll(m.inRoot(stateFile)), os.RemoveAll(m.inRoot(memoryFile)))
}

// useCapture makes the memory file of a capture the base of this machine.
func (m *machine) useCapture(c *capture) error {
	if err := c.checkSpec(m.spec); err != nil {
		return err
	}
	f, err := os.Open(c.path)
	if err != nil {
		return err
	}
	m.record.Shape = c.shape
	return m.setBase(c.path, f)
}

// memoryBackend prepares the memory of a load. The image's own memory may be served page by page
// through a userfaultfd.
func (m *machine) memoryBackend(ctx context.Context, own bool) (fcapi.MemoryBackend, error) {
	if !own || m.memory == nil {
		m.mu.Lock()
		base := m.base
		m.mu.Unlock()
		if base == nil {
			return fcapi.MemoryBackend{}, vmm.ErrGone // disconnected meanwhile
		}
		return fcapi.MemoryBackend{Type: fcapi.BackendFile, Path: memoryFile}, m.link(m.inDir(baseFile), memoryFile)
	}
	l, err := vmmproc.Listen(m.root(), pagerSocket)
	if err != nil {
		return fcapi.MemoryBackend{}, err
	}
	if err := m.chown(m.inRoot(pagerSocket)); err != nil {
		return fcapi.MemoryBackend{}, errors.Join(err, l.Close())
	}
	m.record.Paged = true
	m.helpers.Go(func() { m.servePages(l) })
	return fcapi.MemoryBackend{Type: fcapi.BackendUffd, Path: pagerSocket}, nil
}

// servePages accepts the monitor's connection and serves its page faults. If that ends first, the
// machine is killed, because its vCPUs would hang on the next fault.
func (m *machine) servePages(l *net.UnixListener) {
	err := m.acceptPages(l)
	select {
	case <-m.lifetime.Done():
		return
	case <-m.Exited():
		return
	default:
	}
	if err == nil {
		err = errors.New("the pager exited")
	}
	m.Fail("its memory is no longer served: " + err.Error())
}

func (m *machine) acceptPages(l *net.UnixListener) error {
	stop := context.AfterFunc(m.lifetime, func() { _ = l.Close() })
	defer stop()
	conn, err := l.AcceptUnix()
	if err := errors.Join(err, l.Close()); err != nil {
		return err
	}
	return m.memory.Serve(m.lifetime, conn)
}

// postLoadSteps returns the requests for what this machine has beyond its snapshot.
func (m *machine) postLoadSteps(loaded vmm.Manifest) []step {
	var steps []step
	api, sh := m.api, m.record.Shape
	rates := hasRates(m.spec) || sh.Rates
	for i, d := range m.spec.Disks {
		p := fcapi.DrivePatch{ID: driveName(i)}
		if i >= loaded.Disks || i >= len(loaded.DiskBytes) || loaded.DiskBytes[i] != m.record.DiskBytes[i] {
			p.Path = driveName(i) // the same path: Firecracker opens the file again and notifies the guest of its size
		}
		if rates {
			p.Limiter = limiter(d.Rate)
		}
		if p != (fcapi.DrivePatch{ID: p.ID}) {
			steps = append(steps, func(ctx context.Context) error { return api.ChangeDrive(ctx, p) })
		}
	}
	if nic := m.spec.NIC; nic != nil && rates {
		p := fcapi.NetworkPatch{ID: networkID, In: limiter(nic.In), Out: limiter(nic.Out)}
		steps = append(steps, func(ctx context.Context) error { return api.ChangeNetwork(ctx, p) })
	}
	if m.spec.MemoryMiB > loaded.MemoryMiB {
		more := m.spec.MemoryMiB - sh.BaseMiB
		steps = append(steps, func(ctx context.Context) error { return api.PlugMemory(ctx, more) })
	}
	if len(steps) > 0 {
		steps = append(steps, api.Resume)
	}
	return steps
}

// Pause implements vmm.Machine.
func (m *machine) Pause(ctx context.Context) error {
	switch m.Phase() {
	case vmmproc.Paused:
		return nil
	case vmmproc.Prepared:
		return fmt.Errorf("pause machine %s: it has not been loaded", m.spec.ID)
	}
	ctx, cancel := m.driver.monitors.WithTimeout(ctx, "pause of the machine")
	defer cancel()
	if err := m.api.Pause(ctx); err != nil {
		return fmt.Errorf("pause machine %s: %w", m.spec.ID, m.WithExitReason(ctx, err))
	}
	m.setPhase(vmmproc.Paused)
	return nil
}

// Resume implements vmm.Machine.
func (m *machine) Resume(ctx context.Context) error {
	switch m.Phase() {
	case vmmproc.Running:
		return nil
	case vmmproc.Prepared:
		return fmt.Errorf("resume machine %s: it has not been loaded", m.spec.ID)
	}
	ctx, cancel := m.driver.monitors.WithTimeout(ctx, "resumption of the machine")
	defer cancel()
	m.last = nil
	if err := m.api.Resume(ctx); err != nil {
		return fmt.Errorf("resume machine %s: %w", m.spec.ID, m.WithExitReason(ctx, err))
	}
	m.setPhase(vmmproc.Running)
	return nil
}

// SetMetadata implements vmm.MetadataSetter. A guest without a network card cannot reach the
// metadata service.
func (m *machine) SetMetadata(ctx context.Context, document []byte) error {
	if m.spec.NIC == nil {
		return nil
	}
	ctx, cancel := m.driver.monitors.WithTimeout(ctx, "metadata of the machine")
	defer cancel()
	if err := m.api.SetMetadata(ctx, document); err != nil {
		return fmt.Errorf("set metadata of machine %s: %w", m.spec.ID, m.WithExitReason(ctx, err))
	}
	return nil
}

// Reclaim implements vmm.Reclaimer.
func (m *machine) Reclaim(ctx context.Context, mib int) error {
	if m.Phase() == vmmproc.Prepared {
		return fmt.Errorf("reclaim memory of machine %s: it has not been loaded", m.spec.ID)
	}
	ctx, cancel := m.driver.monitors.WithTimeout(ctx, "balloon of the machine")
	defer cancel()
	m.last = nil // the balloon's size is part of the device state
	if err := m.api.ResizeBalloon(ctx, mib); err != nil {
		return fmt.Errorf("reclaim memory of machine %s: %w", m.spec.ID, m.WithExitReason(ctx, err))
	}
	return nil
}
