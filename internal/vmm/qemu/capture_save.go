package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/checkpoint"
	"github.com/pandastack/pandastack/internal/vmm/qemu/checkpointstore"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// maxState bounds the device state, which has about 12 KiB with one vCPU. It comes from QEMU, which
// is not trusted.
const maxState = 16 << 20

// capture is the state of a machine at one moment. Its memory is base with pages on top or, for a
// booted machine, all in base.
type capture struct {
	vmmproc.RefCount
	manifest vmm.Manifest
	state    []byte // nil: only for machines that restore monitor
	forkOnly bool   // only for machines that are already prepared; cannot be saved

	base  *os.File        // the image's memory file; for a booted machine a reflink of its memory
	key   vmmproc.FileKey // identifies base for machines on the same image; zero for a booted machine
	spans []span
	pages *buffer

	monitor      *checkpoint.Capture      // dump of the monitor process; nil: none
	monitorPages *buffer                  // holds the content of monitor
	content      *os.File                 // pages file that monitor is a delta to; nil: none
	contentFile  *checkpointstore.Content // identity of content; nil: none
	contentHash  string                   // of content; "": not known
	store        *checkpointstore.Store   // where monitor is saved
	clockOffset  time.Duration            // as MonitorCheckpoint.ClockOffset
	fdSet        int                      // as MonitorCheckpoint.FDSet
}

var _ vmm.Capture = (*capture)(nil)

func (c *capture) DirtyBytes() int64 {
	if c.key == (vmmproc.FileKey{}) {
		return int64(c.manifest.MemoryMiB) << 20
	}
	return total(c.spans)
}

// newCapture returns an empty capture.
func newCapture(m vmm.Manifest) *capture {
	c := &capture{manifest: m}
	c.OnFree(c.free)
	return c
}

func (c *capture) free() error {
	err := errors.Join(c.pages.free(), c.monitorPages.free())
	for _, f := range []*os.File{c.base, c.content} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// Save writes a complete image into dir. The memory file shares all unchanged blocks with base.
func (c *capture) Save(ctx context.Context, dir string) (_ vmm.Image, err error) {
	if c.forkOnly {
		return vmm.Image{}, errors.New("save image: the capture was made for forks only and cannot be saved")
	}
	if err := c.Acquire(); err != nil {
		return vmm.Image{}, err
	}
	defer func() { err = errors.Join(err, c.Release()) }()
	var memory errgroup.Group // in parallel with the rest, because syncing it takes most of the time
	memory.Go(func() error { return c.saveMemory(ctx, filepath.Join(dir, memoryFile)) })
	defer func() {
		if failed := memory.Wait(); failed != nil {
			err = errors.Join(fmt.Errorf("save image in %s: %w", dir, failed), err)
		}
	}()
	var delta *memDelta
	if c.key != (vmmproc.FileKey{}) {
		if delta, err = newMemDelta(c.base, c.spans); err != nil {
			return vmm.Image{}, fmt.Errorf("save image in %s: %w", dir, err)
		}
	}
	if err := c.saveMonitor(dir); err != nil {
		return vmm.Image{}, fmt.Errorf("save image in %s: %w", dir, err)
	}
	return writeImage(dir, c.manifest, c.state, delta)
}

func (c *capture) saveMemory(ctx context.Context, path string) (err error) {
	mode := os.FileMode(0o444)
	if v, err := parseVersion("version " + c.manifest.VMM); err != nil || !v.hasReadOnlyMemory() {
		mode = 0o666 // such a QEMU opens it for writing, as the machine's user
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := reflink(f, c.base); err != nil {
		return err
	}
	buf := c.pages.bytes()
	for _, s := range c.spans {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, err := f.WriteAt(buf[:s.bytes()], s.start); err != nil {
			return err
		}
		buf = buf[s.bytes():]
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	return f.Sync()
}

func (b *buffer) bytes() []byte {
	if b == nil {
		return nil
	}
	return b.mem
}

// reflink makes dst share all blocks of src.
func reflink(dst, src *os.File) error {
	if err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())); err != nil {
		return fmt.Errorf("reflink %s: %w; images need XFS or btrfs (pandastack setup makes one)", dst.Name(), err)
	}
	return nil
}

// stateFile is a memfd for the monitor's device state. Its pages are charged to the monitor, which
// writes them.
type stateFile struct{ file *os.File }

func newStateFile() (stateFile, error) {
	fd, err := unix.MemfdCreate("state", unix.MFD_CLOEXEC)
	if err != nil {
		return stateFile{}, fmt.Errorf("create state file: %w", err)
	}
	return stateFile{os.NewFile(uintptr(fd), "state")}, nil
}

// writer returns a write-only descriptor: QEMU takes a descriptor from an fd set only if the access
// mode matches.
func (s stateFile) writer() (*os.File, error) {
	return os.OpenFile(fdPath(int(s.file.Fd())), os.O_WRONLY, 0)
}

func (s stateFile) read() ([]byte, error) {
	data, err := io.ReadAll(io.NewSectionReader(s.file, 0, maxState+1))
	if err != nil {
		return nil, err
	}
	if len(data) == 0 || len(data) > maxState {
		return nil, fmt.Errorf("device state has %d bytes", len(data))
	}
	return data, nil
}
