package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/pandastack/pandastack/internal/lib/cleanup"
	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/qemu/checkpointstore"
	"github.com/pandastack/pandastack/internal/vmm/qemu/qmp"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// firstFD is the number of the first inherited descriptor.
const firstFD = 3

// inheritedFiles collects the files that a monitor inherits, and the bind mounts of its jail.
type inheritedFiles struct {
	files  []*os.File
	jailed bool
	binds  []jail.Bind
	bound  []*os.File // open files of binds, to be closed
}

// add adds f and returns its descriptor number in the monitor.
func (h *inheritedFiles) add(f *os.File) int {
	h.files = append(h.files, f)
	return firstFD + len(h.files) - 1
}

// open opens a file and adds it.
func (h *inheritedFiles) open(path string, flags int) (int, error) {
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return 0, err
	}
	return h.add(f), nil
}

// path adds a file that QEMU opens by path, and returns that path. A jail has no /proc through
// which a descriptor could be opened.
func (h *inheritedFiles) path(f *os.File, name string, write bool) string {
	if !h.jailed {
		return fdPath(h.add(f))
	}
	at := jailDir + name
	h.bound = append(h.bound, f)
	h.binds = append(h.binds, jail.Bind{Path: f.Name(), Target: at, Write: write})
	return at
}

// close closes all added files except keep.
func (h *inheritedFiles) close(keep ...*os.File) error {
	var all error
	for _, f := range append(h.files, h.bound...) {
		kept := false
		for _, k := range keep {
			kept = kept || k == f
		}
		if !kept {
			all = errors.Join(all, f.Close())
		}
	}
	return all
}

// launch starts the monitor of a machine. With an image the monitor is prepared for Load; otherwise
// it is stopped before the guest's first instruction. launch does not wait for the monitor.
func (d *Driver) launch(
	ctx context.Context,
	spec vmm.Spec,
	manifest vmm.Manifest,
	image *vmm.Image,
) (_ *machine, err error) {
	if err := removeFiles(spec.Dir); err != nil {
		return nil, err
	}
	var back cleanup.Stack
	defer func() { err = back.Settle(ctx, err) }()
	back.Push("remove files", func(context.Context) error { return removeFiles(spec.Dir) })

	m := newMachine(d, spec, manifest)
	inherited := inheritedFiles{jailed: spec.Confine.Jail != nil}
	keep := []*os.File{}
	if spec.NIC != nil {
		keep = append(keep, spec.NIC.Tap)
	}
	defer func() { err = errors.Join(err, inherited.close(keep...)) }()
	back.Push("close connections", func(context.Context) error { m.disconnect(); return nil })

	sh := launchSpec{
		id: spec.ID, version: d.version, accel: d.config.Accelerator,
		vcpus: spec.VCPUs, memoryMiB: spec.MemoryMiB,
	}
	if err := m.openResources(ctx, image, &sh, &inherited); err != nil {
		return nil, err
	}
	mark, err := vmmproc.Marker(spec.Dir)
	if err != nil {
		return nil, err
	}
	command := proc.Command{
		Path: d.config.Binary, Args: sh.arguments(), Env: []string{mark}, Files: inherited.files,
		UID: spec.Confine.UID, GID: spec.Confine.GID, Groups: d.groups,
	}
	if m.stub != nil {
		command.Path, command.Args = d.checkpoints.Stub(), nil
	}
	p, err := proc.Start(d.jailCommand(spec.Confine, inherited.binds, command, m.record.ClockOffset))
	if err != nil {
		return nil, err
	}
	back.Push("kill monitor", func(ctx context.Context) error { return errors.Join(p.Kill(ctx), p.Release()) })
	if c := spec.Confine; c.Jail == nil && c.Enter != nil {
		if err := c.Enter(p.PID()); err != nil {
			return nil, fmt.Errorf("confine monitor: %w", err)
		}
	}
	m.record.Process, m.record.DiskRates = p.Identity(), diskRates(spec.Disks)
	if err := vmmproc.WriteRecord(spec.Dir, m.record); err != nil {
		return nil, err
	}
	m.Watch(ctx, p)
	return m, nil
}

// openResources opens everything that the monitor inherits.
func (m *machine) openResources(
	ctx context.Context,
	image *vmm.Image,
	sh *launchSpec,
	inherited *inheritedFiles,
) error {
	var p *checkpointstore.MonitorCheckpoint
	if image != nil {
		var err error
		if p, err = m.driver.checkpoints.Find(image.Dir); err != nil {
			return err
		}
	}
	if p != nil {
		if err := m.openStub(ctx, p, *image, inherited); err != nil {
			return err
		}
		if err := m.openDevices(sh, inherited); err != nil {
			return err
		}
		return m.stub.addDevices(*sh, inherited)
	}
	if err := m.openSockets(ctx, sh, inherited); err != nil {
		return err
	}
	open := m.openBoot
	if image != nil {
		open = func(sh *launchSpec, inherited *inheritedFiles) error { return m.openImage(*image, sh, inherited) }
	}
	if err := open(sh, inherited); err != nil {
		return err
	}
	return m.openDevices(sh, inherited)
}

// openSockets creates the listening sockets and connects to them before the monitor accepts, so
// that this process never has to wait until the monitor listens.
func (m *machine) openSockets(ctx context.Context, sh *launchSpec, inherited *inheritedFiles) error {
	var conns [2]*net.UnixConn
	for i, name := range []string{monitorSocket, channelSocket} {
		l, err := listen(m.spec.Dir, name)
		if err != nil {
			return err
		}
		fd := inherited.add(l)
		if i == 0 {
			sh.monitor = fd
		} else {
			sh.channel = fd
		}
		if conns[i], err = vmmproc.Connect(ctx, m.spec.Dir, name); err != nil {
			return err
		}
		if i == 0 {
			m.qmp = qmp.Open(conns[0], m.event)
		}
	}
	var err error
	m.nextChannel, err = newChannel(conns[1], &m.channelGate)
	return err
}

// openImage opens the files of a monitor on the memory of an image.
func (m *machine) openImage(image vmm.Image, sh *launchSpec, inherited *inheritedFiles) error {
	o, err := openImage(image, !m.driver.version.hasReadOnlyMemory())
	if err != nil {
		return err
	}
	sh.memory = inherited.path(o.memory, memoryFile, !m.driver.version.hasReadOnlyMemory())
	if m.record.MemoryPath, err = filepath.Abs(cmp.Or(o.fullMemory, o.memory).Name()); err != nil {
		return err
	}
	m.overlay, m.altMemory, m.fullMemory = o.overlay, o.altMemory, o.fullMemory
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	sh.incoming = inherited.add(theirs)
	m.incoming, m.state = ours, o.state
	m.record.Memory, m.record.Mapped = o.key, o.mapped
	sh.acpi = image.Manifest.Machine == machineName(true)
	m.record.ACPI = sh.acpi
	return nil
}

// openBoot opens the files of a monitor that boots a kernel in new memory.
func (m *machine) openBoot(sh *launchSpec, inherited *inheritedFiles) error {
	spec := m.spec
	memory, err := os.OpenFile(filepath.Join(spec.Dir, memoryFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	sh.memory = inherited.path(memory, memoryFile, true)
	if err := memory.Truncate(int64(spec.MemoryMiB) << 20); err != nil {
		return err
	}
	if spec.Confine.UID != 0 || spec.Confine.GID != 0 {
		if err := memory.Chown(spec.Confine.UID, spec.Confine.GID); err != nil {
			return err
		}
	}
	if m.record.Memory, err = vmmproc.KeyOf(memory); err != nil {
		return err
	}
	m.record.Mapped = m.record.Memory
	kernel, err := os.Open(spec.Kernel)
	if err != nil {
		return err
	}
	tuned, err := isELF(kernel)
	if err != nil {
		return errors.Join(err, kernel.Close())
	}
	if !tuned {
		placed, err := placeInitramfs(kernel, spec.MemoryMiB, filepath.Join(spec.Dir, kernelFile))
		if placed != kernel {
			err = errors.Join(err, kernel.Close())
		}
		if err != nil {
			return err
		}
		kernel = placed
	}
	sh.kernel = inherited.path(kernel, kernelFile, false)
	if spec.Initramfs != "" {
		f, err := os.Open(spec.Initramfs)
		if err != nil {
			return err
		}
		sh.initramfs = inherited.path(f, "initramfs", false)
	}
	sh.acpi = !tuned
	sh.cmdline = kernelCmdline(m.manifest.TSCkHz, spec.Cmdline)
	m.record.Cold, m.record.ACPI = true, sh.acpi
	m.manifest.Machine = machineName(sh.acpi)
	return nil
}

// openDevices adds the disks and the network card.
func (m *machine) openDevices(sh *launchSpec, inherited *inheritedFiles) error {
	for _, disk := range m.spec.Disks {
		fd := diskFD{volatile: disk.Volatile, rate: disk.Rate}
		var err error
		if fd.read, err = inherited.open(disk.Path, os.O_RDONLY); err != nil {
			return err
		}
		if !disk.ReadOnly {
			if fd.write, err = inherited.open(disk.Path, os.O_RDWR); err != nil {
				return err
			}
		}
		sh.disks = append(sh.disks, fd)
		st, err := inherited.files[len(inherited.files)-1].Stat()
		if err != nil {
			return err
		}
		m.record.DiskBytes = append(m.record.DiskBytes, st.Size())
	}
	if nic := m.spec.NIC; nic != nil {
		if nic.Tap == nil {
			return errors.New("network card without an open tap")
		}
		sh.tap, sh.mac = inherited.add(nic.Tap), nic.MAC
	}
	return nil
}
