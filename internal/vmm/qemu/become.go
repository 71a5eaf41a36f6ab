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

// spareEvents is how many of such descriptors a monitor may have more than the one its image was taken of.
const spareEvents = 4

// vehicle is a monitor to be: what it was started with, by what it is for.
type vehicle struct {
	process *checkpointstore.Process
	plan    checkpoint.Plan // without what is known only at Load
}

// openVehicle arranges for a process that becomes a monitor over the memory of an image, and starts nothing.
func (m *machine) openVehicle(
	ctx context.Context,
	p *checkpointstore.Process,
	image vmm.Image,
	given *inheritance,
) (err error) {
	v := &vehicle{process: p}
	v.plan.Roles = map[string]int{roleNothing: 0, roleLog: 1} // as every child of package proc has them
	if err := m.openTalk(ctx, v, given); err != nil {
		return err
	}
	o, err := openImage(image, false)
	if err != nil {
		return err
	}
	v.plan.Outside = given.add(o.memory)
	v.plan.Roles[roleMemory] = v.plan.Outside
	v.plan.Single = image.Memory != nil
	if m.record.MemoryPath, err = filepath.Abs(cmp.Or(o.whole, o.memory).Name()); err != nil {
		return err
	}
	m.overlay, m.also, m.whole, m.state = o.overlay, o.also, o.whole, o.state
	m.record.Memory, m.record.Mapped = o.key, o.mapped
	m.record.ACPI = image.Manifest.Machine == machineWords(true)
	content, err := os.Open(p.Content())
	if err != nil {
		return err
	}
	v.plan.Content = given.add(content)
	key, err := vmmproc.KeyOf(content)
	if err != nil {
		return err
	}
	m.record.ContentPath, m.record.Content = p.Content(), key.Inode
	m.record.Ahead = p.Ahead
	m.made = p
	if m.content, err = os.Open(p.Content()); err != nil {
		return err
	}
	files, err := p.Image.Open()
	if err != nil {
		return err
	}
	for _, f := range files {
		v.plan.Files = append(v.plan.Files, given.add(f))
	}
	if err := v.openCounters(given); err != nil {
		return err
	}
	m.vehicle = v
	return nil
}

// openTalk makes both sockets with a connection each, whose other ends are ours.
func (m *machine) openTalk(ctx context.Context, v *vehicle, given *inheritance) error {
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
			m.qmp = qmp.Resume(conns[0], m.event)
		}
		fd, _, err := unix.Accept4(int(l.Fd()), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return errors.Join(err, conns[i].Close())
		}
		v.plan.Roles[roleTalk+name] = given.add(os.NewFile(uintptr(fd), name))
	}
	var err error
	m.spare, err = newChannel(conns[1], &m.gate)
	return err
}

// openCounters makes what the kernel keeps no content of, or what this program knows the content of.
func (v *vehicle) openCounters(given *inheritance) error {
	count := map[string]int{checkpoint.EventRole: spareEvents, checkpoint.PollRole: spareEvents}
	for _, fd := range v.process.Image.FDs {
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
	v.plan.Fresh = map[string][]int{}
	for role, n := range count {
		for range n {
			fd, err := fresh(role)
			if err != nil {
				return err
			}
			v.plan.Fresh[role] = append(v.plan.Fresh[role], given.add(os.NewFile(uintptr(fd), role)))
		}
	}
	return nil
}

func fresh(role string) (int, error) {
	if role == checkpoint.PollRole {
		return unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	}
	return unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
}

// takeDevices notes the numbers of what openDevices handed over.
func (v *vehicle) takeDevices(sh shape, given *inheritance) error {
	for i, d := range sh.disks {
		v.plan.Roles[diskRole(i, false)] = d.read
		if d.write != 0 {
			v.plan.Roles[diskRole(i, true)] = d.write
		}
	}
	v.plan.Given = firstFD + len(given.files)
	if sh.tap == 0 {
		return nil
	}
	for _, fd := range v.process.Image.FDs {
		if size, ok := strings.CutPrefix(fd.Role, roleTap); ok {
			v.plan.Roles[fd.Role] = sh.tap
			return vmmproc.SetUpTap(given.files[sh.tap-firstFD], size)
		}
	}
	return errors.New("the monitor in the image has no tap")
}

// become makes a prepared monitor of its vehicle and lets the guest run: as the image has both, or with a
// capture's process as that was.
func (m *machine) become(ctx context.Context, from *capture) (err error) {
	v := m.takeVehicle()
	if v == nil {
		return m.Gone(ctx, vmm.ErrGone)
	}
	plan, set, held := v.plan, v.process.Set, m.manifest.DiskRates
	plan.Image = &v.process.Image
	if from == nil {
		if plan.Over, err = v.process.Difference(); err != nil {
			return err
		}
		if plan.Over != nil {
			defer func() { err = errors.Join(err, plan.Over.Close()) }()
		}
	} else {
		if from.process == nil {
			return errors.New("the capture holds no process, and the image of this machine does")
		}
		plan.Image, plan.Over, set, held = &from.process.Image, from.process, from.set, from.manifest.DiskRates
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
	plan.Before = func() error { return m.remember(ctx, from) }
	if err := p.Become(ctx, plan); err != nil {
		return m.Gone(ctx, err)
	}
	// What the monitor held for the state of the machine that it was is nothing now; nobody waits for the answer.
	m.qmp.Send("remove-fd", map[string]int{"fdset-id": set})
	if err := m.throttle(ctx, held); err != nil {
		return err
	}
	return m.do(ctx, "cont", nil, nil)
}

// remember writes what the guest's memory is to hold besides that of the file which is mapped.
func (m *machine) remember(ctx context.Context, from *capture) error {
	over := m.takeOverlay()
	switch {
	case from != nil:
		return errors.Join(m.fill(ctx, from, over), over.close())
	case over != nil:
		return errors.Join(m.complete(ctx, over), over.close())
	}
	return nil
}

func (m *machine) hasVehicle() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.vehicle != nil
}

func (m *machine) takeVehicle() *vehicle {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.vehicle
	m.vehicle = nil
	return v
}

// handsOn tells whether images of the machine have the monitor's process in them: it was made of one, or was
// rehearsed.
func (m *machine) handsOn() bool {
	return m.driver.warm != nil && !m.record.Cold && (m.record.Content != 0 || m.rehearsed)
}

// takeProcess takes the image of the monitor of a paused machine that hands it on. c keeps the content that it
// lies over.
func (m *machine) takeProcess(c *capture, p *preparation) (err error) {
	if !m.handsOn() {
		return nil
	}
	opt := checkpoint.Options{Outside: m.record.mapped().Inode, Role: m.role, Room: p.own.bytes()}
	if m.record.Content != 0 {
		if c.content, err = m.openContent(); err != nil {
			return err
		}
		opt.Content = c.content
		// Where the content has no name any more, images of the capture go without the process.
		if made, err := checkpointstore.ContentOf(m.record.ContentPath); err == nil &&
			made.File.Inode == m.record.Content {
			c.made = made
		}
	}
	if m.made != nil {
		opt.Base, c.sum = &m.made.Image, m.made.Sum
	}
	c.store, c.ahead = m.driver.warm, m.record.Ahead
	c.process, err = checkpoint.Take(m.PID(), opt)
	if err == nil {
		c.set = p.set
		c.own, p.own = p.own, nil
		return nil
	}
	if m.record.Content == 0 { // the first of its kind: machines of this image begin by their device state
		m.driver.refuse(err)
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

// connected makes sure that somebody is at the other end of the guest channel: a monitor that waits for a
// connection would, made again, not take up the one that it is given.
func (m *machine) connected(ctx context.Context) error {
	again := time.NewTicker(channelPause)
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

// channelPause is how long a monitor is given to take up a connection before it is asked again.
const channelPause = time.Millisecond

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
	if m.over || m.spare != nil {
		return fresh.Close()
	}
	m.spare = fresh
	return nil
}

var _ vmm.Rehearser = (*machine)(nil)

// Rehearsed implements vmm.Rehearser.
func (m *machine) Rehearsed() { m.rehearsed = true }
