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

// extraFDs is how many more eventfds and epoll instances a monitor may have than the one of the
// image's checkpoint.
const extraFDs = 4

// stub is a restore stub that will become a monitor, with the descriptors it was started with.
type stub struct {
	checkpoint *checkpointstore.MonitorCheckpoint
	plan       checkpoint.Plan // the part that is known before Load
	handover   *net.UnixConn   // over which it gets the files of disks that were swapped
}

// openStub opens the files of a stub for a monitor on the memory of an image. It starts nothing.
func (m *machine) openStub(
	ctx context.Context,
	p *checkpointstore.MonitorCheckpoint,
	image vmm.Image,
	inherited *inheritedFiles,
) (err error) {
	v := &stub{checkpoint: p}
	v.plan.Roles = map[string]int{roleNull: 0, roleLog: 1} // as package proc sets them up for every child
	if err := m.openConnectedSockets(ctx, v, inherited); err != nil {
		return err
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = ours.Close() // the stub was not started
		}
	}()
	v.handover, v.plan.Handover = ours, inherited.add(theirs)
	o, err := openImage(image, false)
	if err != nil {
		return err
	}
	v.plan.External = inherited.add(o.memory)
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
	v.plan.Content = inherited.add(content)
	key, err := vmmproc.KeyOf(content)
	if err != nil {
		return err
	}
	m.record.ContentPath, m.record.Content = p.ContentPath(), key.Inode
	m.record.ClockOffset = p.ClockOffset
	if err := p.Link(filepath.Join(m.spec.Dir, baseFile)); err != nil {
		return err
	}
	m.restoredFrom = p
	if m.content, err = os.Open(p.ContentPath()); err != nil {
		return err
	}
	if err := m.openDelta(v, inherited); err != nil {
		return err
	}
	files, err := p.Process.OpenFiles()
	if err != nil {
		return err
	}
	for _, f := range files {
		v.plan.Files = append(v.plan.Files, inherited.add(f))
	}
	if err := v.openSpecialFDs(inherited); err != nil {
		return err
	}
	m.stub = v
	return nil
}

// openDelta opens the delta of the image's checkpoint, if there is one, for the stub to map.
func (m *machine) openDelta(v *stub, inherited *inheritedFiles) error {
	path := v.checkpoint.DeltaPath()
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	v.plan.DeltaFile = inherited.add(f)
	key, err := vmmproc.KeyOf(f)
	m.record.Delta = key.Inode
	return err
}

// openConnectedSockets creates both sockets, each with one accepted connection to this process.
func (m *machine) openConnectedSockets(ctx context.Context, v *stub, inherited *inheritedFiles) error {
	var conns [2]*net.UnixConn
	for i, name := range []string{monitorSocket, channelSocket} {
		l, err := listen(m.spec.Dir, name)
		if err != nil {
			return err
		}
		v.plan.Roles[roleListen+name] = inherited.add(l)
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
		v.plan.Roles[roleConn+name] = inherited.add(os.NewFile(uintptr(fd), name))
	}
	var err error
	m.nextChannel, err = newChannel(conns[1], &m.channelGate)
	return err
}

// openSpecialFDs creates the descriptors whose content is known or is not part of a checkpoint.
func (s *stub) openSpecialFDs(inherited *inheritedFiles) error {
	count := map[string]int{checkpoint.EventRole: extraFDs, checkpoint.PollRole: extraFDs}
	for _, fd := range s.checkpoint.Process.FDs {
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
			s.plan.Roles[checkpoint.SignalRole] = inherited.add(os.NewFile(uintptr(n), "signals"))
		}
	}
	s.plan.NewFDs = map[string][]int{}
	for role, n := range count {
		for range n {
			fd, err := newSpecialFD(role)
			if err != nil {
				return err
			}
			s.plan.NewFDs[role] = append(s.plan.NewFDs[role], inherited.add(os.NewFile(uintptr(fd), role)))
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

// swapDisk gives the stub the files of another disk n. The monitor that it becomes has them in place of those that the
// stub was started with.
func (s *stub) swapDisk(n int, disk vmm.Disk) (bytes int64, err error) {
	var files []*os.File
	defer func() {
		for _, f := range files {
			err = errors.Join(err, f.Close())
		}
	}()
	var roles []string
	for _, write := range []bool{false, true} {
		flags := os.O_RDONLY
		if write {
			flags = os.O_RDWR
		}
		if write && disk.ReadOnly {
			break
		}
		f, err := os.OpenFile(disk.Path, flags, 0)
		if err != nil {
			return 0, err
		}
		files, roles = append(files, f), append(roles, diskRole(n, write))
	}
	info, err := files[0].Stat()
	if err == nil {
		err = checkpoint.Send(s.handover, files...)
	}
	if err != nil {
		return 0, err
	}
	s.plan.Received = append(s.plan.Received, roles)
	return info.Size(), nil
}

// addDevices adds the descriptors of openDevices to the plan.
func (s *stub) addDevices(sh launchSpec, inherited *inheritedFiles) error {
	for i, d := range sh.disks {
		s.plan.Roles[diskRole(i, false)] = d.read
		if d.write != 0 {
			s.plan.Roles[diskRole(i, true)] = d.write
		}
	}
	s.plan.InheritedFDs = firstFD + len(inherited.files)
	if sh.tap == 0 {
		return nil
	}
	for _, fd := range s.checkpoint.Process.FDs {
		if size, ok := strings.CutPrefix(fd.Role, roleTap); ok {
			s.plan.Roles[fd.Role] = sh.tap
			return vmmproc.SetUpTap(inherited.files[sh.tap-firstFD], size)
		}
	}
	return errors.New("the checkpointed monitor has no tap")
}

// restoreCheckpoint restores a monitor into the stub and resumes the guest. The checkpoint is that
// of the image or that of a capture.
func (m *machine) restoreCheckpoint(ctx context.Context, from *capture, knownSizes []int64) (err error) {
	v := m.takeStub()
	if v == nil {
		return m.WithExitReason(ctx, vmm.ErrGone)
	}
	defer func() { _ = v.handover.Close() }() // disconnect may have closed it
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
			return errors.New("the capture has no monitor checkpoint, but this machine needs one")
		}
		plan.Checkpoint, plan.Delta, set, held = &from.monitor.Checkpoint, from.monitor, from.fdSet,
			from.manifest.DiskRates
		plan.DeltaFile = 0 // that is the delta of the image
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
	// Write the memory before QEMU runs: QEMU immediately copies data that was already sent to the
	// guest into guest memory.
	plan.BeforeRun = func() error { return m.writeMemory(ctx, from) }
	if err := p.Restore(ctx, plan); err != nil {
		return m.WithExitReason(ctx, err)
	}
	// The fd set for the device state of the earlier machine is not needed. Do not wait for the
	// response.
	m.qmp.Send("remove-fd", map[string]int{"fdset-id": set})
	if err := m.setThrottles(ctx, held); err != nil {
		return err
	}
	if err := m.setFlushes(ctx); err != nil {
		return err
	}
	if err := m.resizeDisks(ctx, knownSizes); err != nil {
		return err
	}
	return m.do(ctx, "cont", nil, nil)
}

// writeMemory writes what the guest's memory has in addition to the mapped file.
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

// keepsCheckpoint reports whether images of the machine include a monitor checkpoint. They do if
// the monitor was restored from one or if the machine was warmed up.
func (m *machine) keepsCheckpoint() bool {
	return m.driver.checkpoints != nil && !m.record.Cold && (m.record.Content != 0 || m.markedForCheckpoint)
}

// readBase makes sure that the base of a dump is known if the monitor was restored from a checkpoint. An earlier host
// agent may have restored it, and the image may have been removed since.
func (m *machine) readBase() (err error) {
	if m.restoredFrom == nil && m.record.Content != 0 {
		m.restoredFrom, err = m.driver.checkpoints.ReadLink(filepath.Join(m.spec.Dir, baseFile))
	}
	return err
}

// captureMonitor dumps the monitor of a paused machine, if its images include checkpoints. c keeps
// the base pages file.
func (m *machine) captureMonitor(c *capture, p *preparation) (err error) {
	if !m.keepsCheckpoint() {
		return nil
	}
	opt := checkpoint.Options{
		External: m.record.mapped().Inode, Delta: m.record.Delta, Role: m.role, Buffer: p.monitorPages.bytes(),
	}
	if m.record.Content != 0 {
		if c.content, err = m.openContent(); err != nil {
			return err
		}
		opt.Content = c.content
		// If the pages file has been unlinked, images of this capture have no checkpoint.
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
	if m.record.Content == 0 { // the first dump of this kind; machines of this image are restored from device state
		m.driver.logNoCheckpoint(err)
		return nil
	}
	return err
}

// openContent opens the pages file that the monitor was restored with, which may have been
// unlinked.
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

// ensureConnected makes sure that the guest channel is connected. A monitor that waits for a
// connection would, after a restore, not use the connection that it is given.
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

// reconnectInterval is how long the monitor gets to accept a connection before the next check.
const reconnectInterval = time.Millisecond

// channelID is the ID of the guest channel's chardev.
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

// MarkWarmedUp implements vmm.CheckpointMarker.
func (m *machine) MarkWarmedUp() { m.markedForCheckpoint = true }
