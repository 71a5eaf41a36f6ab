package qemu

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/checkpoint"
	"github.com/pandastack/pandastack/internal/vmm/qemu/checkpointstore"
	"github.com/pandastack/pandastack/internal/vmm/qemu/qmp"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// extraFDs is how many of such descriptors a monitor may have more than the one its image was taken of.
const extraFDs = 4

// stub is a monitor to be: what it was started with, by what it is for.
type stub struct {
	checkpoint *checkpointstore.MonitorCheckpoint
	plan       checkpoint.Plan // without what is known only at Load
}

// openStub arranges for a process that becomes a monitor over the memory of an image, and starts nothing.
func (m *machine) openStub(
	ctx context.Context,
	p *checkpointstore.MonitorCheckpoint,
	image vmm.Image,
	given *inheritedFiles,
) (err error) {
	v := &stub{checkpoint: p}
	v.plan.Roles = map[string]int{roleNull: 0, roleLog: 1} // as every child of package proc has them
	if err := m.openConnectedSockets(ctx, v, given); err != nil {
		return err
	}
	o, err := openImage(image, false)
	if err != nil {
		return err
	}
	v.plan.External = given.add(o.memory)
	v.plan.Roles[roleMemory] = v.plan.External
	v.plan.NoReadahead = image.Memory != nil
	if m.record.MemoryPath, err = filepath.Abs(cmp.Or(o.fullMemory, o.memory).Name()); err != nil {
		return err
	}
	m.overlay, m.altMemory, m.fullMemory, m.state = o.overlay, o.altMemory, o.fullMemory, o.state
	m.record.Memory, m.record.Mapped = o.key, o.mapped
	m.record.ACPI = image.Manifest.Machine == machineName(true)
	content, err := os.Open(p.ContentPath())
	if err != nil {
		return err
	}
	v.plan.Content = given.add(content)
	key, err := vmmproc.KeyOf(content)
	if err != nil {
		return err
	}
	m.record.ContentPath, m.record.Content = p.ContentPath(), key.Inode
	m.record.ClockOffset = p.ClockOffset
	m.restoredFrom = p
	if m.content, err = os.Open(p.ContentPath()); err != nil {
		return err
	}
	files, err := p.Process.OpenFiles()
	if err != nil {
		return err
	}
	for _, f := range files {
		v.plan.Files = append(v.plan.Files, given.add(f))
	}
	if err := v.openSpecialFDs(given); err != nil {
		return err
	}
	m.stub = v
	return nil
}

// openConnectedSockets makes both sockets with a connection each, whose other ends are ours.
func (m *machine) openConnectedSockets(ctx context.Context, v *stub, given *inheritedFiles) error {
	var conns [2]*net.UnixConn
	for i, name := range []string{monitorSocket, channelSocket} {
		l, err := listen(m.spec.Dir, name)
		if err != nil {
			return err
		}
		v.plan.Roles[roleListen+name] = given.add(l)
		if conns[i], err = vmmproc.Connect(ctx, m.spec.Dir, name); err != nil {
			return err
		}
		if i == 0 {
			m.qmp = qmp.OpenNegotiated(conns[0], m.event)
		}
		fd, _, err := unix.Accept4(int(l.Fd()), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return errors.Join(err, conns[i].Close())
		}
		v.plan.Roles[roleConn+name] = given.add(os.NewFile(uintptr(fd), name))
	}
	var err error
	m.nextChannel, err = newChannel(conns[1], &m.channelGate)
	return err
}

// openSpecialFDs makes what the kernel keeps no content of, or what this program knows the content of.
func (v *stub) openSpecialFDs(given *inheritedFiles) error {
	count := map[string]int{checkpoint.EventRole: extraFDs, checkpoint.PollRole: extraFDs}
	for _, fd := range v.checkpoint.Process.FDs {
		switch fd.Role {
		case checkpoint.EventRole, checkpoint.PollRole:
			count[fd.Role]++
		case checkpoint.SignalRole:
			var set unix.Sigset_t
			set.Val[0] = fd.Value
			n, err := unix.Signalfd(-1, &set, unix.SFD_CLOEXEC|unix.SFD_NONBLOCK)
			if err != nil {
				return err
			}
			v.plan.Roles[checkpoint.SignalRole] = given.add(os.NewFile(uintptr(n), "signals"))
		}
	}
	v.plan.NewFDs = map[string][]int{}
	for role, n := range count {
		for range n {
			fd, err := newSpecialFD(role)
			if err != nil {
				return err
			}
			v.plan.NewFDs[role] = append(v.plan.NewFDs[role], given.add(os.NewFile(uintptr(fd), role)))
		}
	}
	return nil
}

func newSpecialFD(role string) (int, error) {
	if role == checkpoint.PollRole {
		return unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	}
	return unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
}

// addDevices notes the numbers of what openDevices handed over.
func (v *stub) addDevices(sh launchSpec, given *inheritedFiles) error {
	for i, d := range sh.disks {
		v.plan.Roles[diskRole(i, false)] = d.read
		if d.write != 0 {
			v.plan.Roles[diskRole(i, true)] = d.write
		}
	}
	v.plan.InheritedFDs = firstFD + len(given.files)
	if sh.tap == 0 {
		return nil
	}
	for _, fd := range v.checkpoint.Process.FDs {
		if size, ok := strings.CutPrefix(fd.Role, roleTap); ok {
			v.plan.Roles[fd.Role] = sh.tap
			return vmmproc.SetUpTap(given.files[sh.tap-firstFD], size)
		}
	}
	return errors.New("the monitor in the image has no tap")
}

// restoreCheckpoint makes a prepared monitor of its vehicle and lets the guest run: as the image has both, or with a
// capture's process as that was.
func (m *machine) restoreCheckpoint(ctx context.Context, from *capture) (err error) {
	v := m.takeStub()
	if v == nil {
		return m.WithExitReason(ctx, vmm.ErrGone)
	}
	plan, set, held := v.plan, v.checkpoint.FDSet, m.manifest.DiskRates
	plan.Checkpoint = &v.checkpoint.Process
	if from == nil {
		if plan.Delta, err = v.checkpoint.OpenDelta(); err != nil {
			return err
		}
		if plan.Delta != nil {
			defer func() { err = errors.Join(err, plan.Delta.Close()) }()
		}
	} else {
		if from.monitor == nil {
			return errors.New("the capture holds no process, and the image of this machine does")
		}
		plan.Checkpoint, plan.Delta, set, held = &from.monitor.Checkpoint, from.monitor, from.fdSet, from.manifest.DiskRates
	}
	mark, err := vmmproc.Marker(m.spec.Dir)
	if err != nil {
		return err
	}
	plan.Name, plan.Args, plan.Env = "qemu-system-x86", []string{
		m.driver.config.Binary,
		"-name",
		m.spec.ID,
	}, []string{
		mark,
	}
	p := checkpoint.Attach(m.PID())
	defer p.Close()
	// What was written to the guest already, QEMU puts into its memory as soon as it runs.
	plan.BeforeRun = func() error { return m.writeMemory(ctx, from) }
	if err := p.Restore(ctx, plan); err != nil {
		return m.WithExitReason(ctx, err)
	}
	// What the monitor held for the state of the machine that it was is nothing now; nobody waits for the answer.
	m.qmp.Send("remove-fd", map[string]int{"fdset-id": set})
	if err := m.setThrottles(ctx, held); err != nil {
		return err
	}
	return m.do(ctx, "cont", nil, nil)
}

// writeMemory writes what the guest's memory is to hold besides that of the file which is mapped.
func (m *machine) writeMemory(ctx context.Context, from *capture) error {
	over := m.takeOverlay()
	switch {
	case from != nil:
		return errors.Join(m.writeCapture(ctx, from, over), over.close())
	case over != nil:
		return errors.Join(m.writeOverlay(ctx, over), over.close())
	}
	return nil
}

func (m *machine) hasStub() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stub != nil
}

func (m *machine) takeStub() *stub {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.stub
	m.stub = nil
	return v
}

// keepsCheckpoint tells whether images of the machine have the monitor's process in them: it was made of one, or was
// rehearsed.
func (m *machine) keepsCheckpoint() bool {
	return m.driver.checkpoints != nil && !m.record.Cold && (m.record.Content != 0 || m.markedForCheckpoint)
}

// captureMonitor takes the image of the monitor of a paused machine that hands it on. c keeps the content that it
// lies over.
func (m *machine) captureMonitor(c *capture, p *preparation) (err error) {
	if !m.keepsCheckpoint() {
		return nil
	}
	opt := checkpoint.Options{External: m.record.mapped().Inode, Role: m.role, Buffer: p.monitorPages.bytes()}
	if m.record.Content != 0 {
		if c.content, err = m.openContent(); err != nil {
			return err
		}
		opt.Content = c.content
		// Where the content has no name any more, images of the capture go without the process.
		if made, err := checkpointstore.ContentOf(m.record.ContentPath); err == nil &&
			made.File.Inode == m.record.Content {
			c.contentFile = made
		}
	}
	if m.restoredFrom != nil {
		opt.Base, c.contentHash = &m.restoredFrom.Process, m.restoredFrom.ContentHash
	}
	c.store, c.clockOffset = m.driver.checkpoints, m.record.ClockOffset
	c.monitor, err = checkpoint.Dump(m.PID(), opt)
	if err == nil {
		c.fdSet = p.fdSet
		c.monitorPages, p.monitorPages = p.monitorPages, nil
		return nil
	}
	if m.record.Content == 0 { // the first of its kind: machines of this image begin by their device state
		m.driver.logNoCheckpoint(err)
		return nil
	}
	return err
}

// openContent opens the content that the monitor was made with, which may have no name any more.
func (m *machine) openContent() (*os.File, error) {
	m.mu.Lock()
	held := m.content
	if held != nil {
		defer m.mu.Unlock()
		return os.Open(fdPath(int(held.Fd())))
	}
	m.mu.Unlock()
	return checkpoint.OpenMapped(m.PID(), m.record.Content)
}

// ensureConnected makes sure that somebody is at the other end of the guest channel: a monitor that waits for a
// connection would, made again, not take up the one that it is given.
func (m *machine) ensureConnected(ctx context.Context) error {
	again := time.NewTicker(reconnectInterval)
	defer again.Stop()
	for dialled := false; ; dialled = true {
		var all []struct{ Label, Filename string }
		if err := m.qmp.Do(ctx, "query-chardev", nil, &all); err != nil {
			return err
		}
		for _, d := range all {
			if d.Label == channelID && !strings.HasPrefix(d.Filename, "disconnected:") {
				return nil
			}
		}
		if !dialled {
			if err := m.redial(ctx); err != nil {
				return err
			}
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// reconnectInterval is how long a monitor is given to take up a connection before it is asked again.
const reconnectInterval = time.Millisecond

// channelID is what the guest channel is called in the monitor.
const channelID = "agent"

// redial connects to the guest channel for the next Dial.
func (m *machine) redial(ctx context.Context) error {
	fresh, err := m.connect(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended || m.nextChannel != nil {
		return fresh.Close()
	}
	m.nextChannel = fresh
	return nil
}

var _ vmm.CheckpointMarker = (*machine)(nil)

// MarkWarmedUp implements vmm.Rehearser.
func (m *machine) MarkWarmedUp() { m.markedForCheckpoint = true }
