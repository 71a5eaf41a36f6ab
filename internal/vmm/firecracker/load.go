package firecracker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// Load implements vmm.Machine. It kills the monitor if it fails: such a monitor is never used again,
// and without a server of its memory it would wait forever.
func (m *machine) Load(ctx context.Context, from vmm.Capture) (err error) {
	if m.Phase() != vmmproc.Prepared || m.state == nil {
		return fmt.Errorf("load machine %s: it has already been loaded", m.spec.ID)
	}
	limited, cancel := m.driver.monitors.WithTimeout(ctx, "load of the machine")
	defer cancel()
	if err := m.load(limited, from); err != nil {
		if m.record.Paged && limited.Err() != nil {
			err = fmt.Errorf("%w; its memory may not be served", err)
		}
		return fmt.Errorf("load machine %s: %w", m.spec.ID, errors.Join(m.WithExitReason(limited, err), m.Discard(ctx)))
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
	plug := 0 // memory to be plugged once the guest's driver is active
	changes := m.postLoadSteps(loaded, &plug)
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
	if plug > 0 {
		if err := m.plugMemory(ctx, plug); err != nil {
			return err
		}
	}
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

// plugTimeout bounds the wait for the guest's driver of hotplugged memory.
const plugTimeout = 10 * time.Second

// plugMemory plugs memory into a running guest as soon as its driver is active.
func (m *machine) plugMemory(ctx context.Context, mib int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, plugTimeout, fmt.Errorf("plug memory: %w", vmm.ErrNotActive))
	defer cancel()
	for wait := newBackoff(guestRetryMax); ; {
		if err := notYet(m.api.PlugMemory(ctx, mib)); !errors.Is(err, vmm.ErrNotActive) {
			return err
		}
		if err := wait.next(ctx, m.lifetime); err != nil {
			return err
		}
	}
}

// postLoadSteps returns the requests for what this machine has beyond its snapshot. If the guest's
// driver of hotplugged memory is not active, they set plug to the memory to be plugged later.
func (m *machine) postLoadSteps(loaded vmm.Manifest, plug *int) []step {
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
		steps = append(steps, func(ctx context.Context) error {
			err := notYet(api.PlugMemory(ctx, more))
			if errors.Is(err, vmm.ErrNotActive) {
				*plug, err = more, nil
			}
			return err
		})
	}
	if len(steps) > 0 {
		steps = append(steps, api.Resume)
	}
	return steps
}
