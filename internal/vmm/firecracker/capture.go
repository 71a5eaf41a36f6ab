package firecracker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// capture is the state of a machine at one moment: a complete memory file, and the device state.
type capture struct {
	vmmproc.RefCount
	driver   *Driver
	manifest vmm.Manifest
	shape    shape
	state    []byte
	full     bool   // a full snapshot, in which zero pages were written as well
	path     string // of the memory file
}

var _ vmm.Capture = (*capture)(nil)

// DirtyBytes implements vmm.Capture. It returns the size of the blocks that the memory file shares
// with no other file.
func (c *capture) DirtyBytes() int64 {
	_, own, err := disk.Usage(c.path)
	if err != nil {
		return c.shape.memoryBytes() // the maximum
	}
	return own
}

// checkSpec checks that a machine with this spec can be loaded from the capture.
func (c *capture) checkSpec(spec vmm.Spec) error {
	m := c.manifest
	if m.VCPUs != spec.VCPUs || m.MemoryMiB != spec.MemoryMiB || m.Disks != len(spec.Disks) ||
		m.NIC != (spec.NIC != nil) {
		return errors.New("the capture's machine has other vCPUs, memory, disks or network card")
	}
	return c.shape.check(spec, m)
}

// Save implements vmm.Capture. The image's memory file shares its blocks with the capture.
func (c *capture) Save(ctx context.Context, dir string) (_ vmm.Image, err error) {
	if err := c.Acquire(); err != nil {
		return vmm.Image{}, err
	}
	defer func() { err = errors.Join(err, c.Release()) }()
	path := filepath.Join(dir, vmmproc.MemoryName)
	if err := c.saveMemory(ctx, path); err != nil {
		return vmm.Image{}, fmt.Errorf("save image in %s: %w", dir, err)
	}
	return writeImage(dir, c.manifest, c.shape, c.state)
}

func (c *capture) saveMemory(ctx context.Context, path string) error {
	if err := disk.Clone(c.path, path); err != nil {
		return err
	}
	if c.full {
		if err := os.Chmod(path, 0o600); err != nil {
			return err
		}
		if _, err := disk.PunchZero(ctx, path); err != nil {
			return err
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o444), f.Sync(), f.Close())
}

// PreCapture implements vmm.PreCapturer. It flushes the disks and clones the base of the next
// capture, which takes longer the more extents the file has.
func (m *machine) PreCapture(ctx context.Context) error {
	if m.Phase() == vmmproc.Prepared {
		return fmt.Errorf("capture machine %s: it has not been loaded", m.spec.ID)
	}
	for _, d := range m.spec.Disks {
		if err := flushDisk(d); err != nil {
			return fmt.Errorf("capture machine %s: %w", m.spec.ID, err)
		}
	}
	if err := m.cloneBase(); err != nil {
		return fmt.Errorf("capture machine %s: %w", m.spec.ID, err)
	}
	return nil
}

func flushDisk(d vmm.Disk) error {
	if d.ReadOnly || d.Empty {
		return nil
	}
	f, err := os.OpenFile(d.Path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fdatasync(int(f.Fd())), f.Close())
}

// cloneBase reflinks the base to the file into which Firecracker writes the dirty pages. Without a
// base it does nothing.
func (m *machine) cloneBase() error {
	m.mu.Lock()
	base := m.base
	m.mu.Unlock()
	if m.baseCloned || base == nil || m.record.Cold {
		return nil
	}
	path := m.inRoot(captureMemory)
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	if err := disk.Clone(vmmproc.FDPath(int(base.Fd())), path); err != nil {
		return err
	}
	if err := m.chown(path); err != nil {
		return err
	}
	m.baseCloned = true
	return nil
}

// Capture implements vmm.Machine.
func (m *machine) Capture(ctx context.Context) (vmm.Capture, error) {
	if m.Phase() != vmmproc.Paused {
		return nil, fmt.Errorf("capture machine %s: it is not paused", m.spec.ID)
	}
	var c *capture
	err := m.request(ctx, "capture of the machine", func(ctx context.Context) (err error) {
		c, err = m.capture(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("capture machine %s: %w", m.spec.ID, err)
	}
	return c, nil
}

// capture creates a snapshot and takes its files. While it is in progress, and after a failure, no
// base is known, because it is unknown which dirty pages Firecracker has already forgotten.
func (m *machine) capture(ctx context.Context) (*capture, error) {
	if m.last != nil {
		return m.repeatCapture()
	}
	kind := fcapi.SnapshotDiff
	if err := m.cloneBase(); err != nil {
		return nil, err
	}
	if !m.baseCloned {
		kind = fcapi.SnapshotFull
		if err := os.RemoveAll(m.inRoot(captureMemory)); err != nil {
			return nil, err
		}
	}
	m.baseCloned = false
	if err := m.dropBase(); err != nil {
		return nil, err
	}
	m.closeChannel()
	request := fcapi.SnapshotCreate{Type: kind, State: captureState, Memory: captureMemory}
	if err := m.api.CreateSnapshot(ctx, request); err != nil {
		return nil, errors.Join(err, m.dropCapture())
	}
	c := m.newCapture(kind == fcapi.SnapshotFull)
	if err := m.takeFiles(c); err != nil {
		return nil, errors.Join(err, m.dropCapture(), removeIfThere(c.path))
	}
	m.last = &lastCapture{c.state, c.full}
	return c, nil
}

// lastCapture is the result of a capture of a machine that has not run since.
type lastCapture struct {
	state []byte
	full  bool
}

// repeatCapture returns another capture of a machine that has not run since the last one. It
// creates no second snapshot, whose device state could differ from the first one's.
func (m *machine) repeatCapture() (*capture, error) {
	c := m.newCapture(m.last.full)
	c.state = m.last.state
	return c, os.Link(m.inDir(baseFile), c.path)
}

func (m *machine) newCapture(full bool) *capture {
	c := &capture{
		driver:   m.driver,
		manifest: m.manifest,
		shape:    m.record.Shape,
		full:     full,
		path:     m.driver.captureName(),
	}
	c.OnFree(
		func() error { return os.Remove(c.path) },
	) // machines loaded from it have their own hard links
	c.manifest.DiskBytes = m.record.DiskBytes
	return c
}

// dropCapture removes the files of a failed capture.
func (m *machine) dropCapture() error {
	return errors.Join(os.RemoveAll(m.inRoot(captureMemory)), os.RemoveAll(m.inRoot(captureState)))
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// takeFiles moves the snapshot's files out of the monitor's reach, makes the memory file the base
// of the next capture, and records that.
func (m *machine) takeFiles(c *capture) error {
	if err := os.Rename(m.inRoot(captureMemory), c.path); err != nil {
		return err
	}
	memory, err := openRegular(c.path)
	if err != nil {
		return err
	}
	st, err := memory.Stat()
	if err == nil && st.Size() != c.shape.memoryBytes() {
		err = fmt.Errorf("the monitor wrote %d bytes of memory, want %d", st.Size(), c.shape.memoryBytes())
	}
	if err == nil {
		err = errors.Join(memory.Chown(os.Geteuid(), os.Getegid()), memory.Chmod(0o444))
	}
	if err != nil {
		return errors.Join(err, memory.Close())
	}
	if err := m.setBase(c.path, memory); err != nil {
		return err
	}
	if c.state, err = m.takeState(); err != nil {
		return err
	}
	return vmmproc.WriteRecord(m.spec.Dir, m.record)
}

func (m *machine) takeState() ([]byte, error) {
	path := m.inRoot(captureState)
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	state, err := vmmproc.ReadBounded(f, maxState)
	err = errors.Join(err, f.Close(), os.Remove(path))
	if err == nil && len(state) == 0 {
		err = errors.New("the monitor wrote no device state")
	}
	return state, err
}
