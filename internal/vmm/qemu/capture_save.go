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

// maxState bounds device state: it is about 12 KiB for one processor, and comes from QEMU, which is not
// trusted.
const maxState = 16 << 20

// capture is a machine at one moment. Its memory is either base with pages over it, or whole.
type capture struct {
	vmmproc.RefCount
	manifest vmm.Manifest
	state    []byte // nil: it is for machines that become process
	forkOnly bool   // it is for machines that are prepared, and not to be saved

	base  *os.File        // the image's memory; of a cold machine a private reflink of all of it
	key   vmmproc.FileKey // of base, for machines that are started on it; zero for a cold machine
	spans []span
	pages *buffer

	monitor      *checkpoint.Capture      // the monitor itself; nil: it is not in it
	monitorPages *buffer                  // holds its content
	content      *os.File                 // what process lies over; nil: nothing
	contentFile  *checkpointstore.Content // what content is; nil: nothing
	contentHash  string                   // of content; "": it is not known
	store        *checkpointstore.Store   // where process is saved
	clockOffset  time.Duration            // as process.Ahead
	fdSet        int                      // as process.Set
}

var _ vmm.Capture = (*capture)(nil)

func (c *capture) DirtyBytes() int64 {
	if c.key == (vmmproc.FileKey{}) {
		return int64(c.manifest.MemoryMiB) << 20
	}
	return total(c.spans)
}

// newCapture is a capture that holds nothing yet.
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

// Save writes a complete image into dir. The memory file shares all blocks of the base that are
// unchanged.
func (c *capture) Save(ctx context.Context, dir string) (_ vmm.Image, err error) {
	if c.forkOnly {
		return vmm.Image{}, errors.New("save image: the capture was taken to be loaded alone")
	}
	if err := c.Acquire(); err != nil {
		return vmm.Image{}, err
	}
	defer func() { err = errors.Join(err, c.Release()) }()
	var memory errgroup.Group // beside the rest: most of its time goes until it is on the disk
	memory.Go(func() error { return c.saveMemory(ctx, filepath.Join(dir, memoryFile)) })
	defer func() {
		if failed := memory.Wait(); failed != nil {
			err = errors.Join(fmt.Errorf("save image in %s: %w", dir, failed), err)
		}
	}()
	var l *memDelta
	if c.key != (vmmproc.FileKey{}) {
		if l, err = newMemDelta(c.base, c.spans); err != nil {
			return vmm.Image{}, fmt.Errorf("save image in %s: %w", dir, err)
		}
	}
	if err := c.saveMonitor(dir); err != nil {
		return vmm.Image{}, fmt.Errorf("save image in %s: %w", dir, err)
	}
	return writeImage(dir, c.manifest, c.state, l)
}

func (c *capture) saveMemory(ctx context.Context, path string) (err error) {
	mode := os.FileMode(0o444)
	if v, err := parseVersion("version " + c.manifest.VMM); err != nil || !v.hasReadOnlyMemory() {
		mode = 0o666 // such a QEMU insists on opening it for writing, as the machine's user
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

// reflink makes dst share all of src's blocks.
func reflink(dst, src *os.File) error {
	if err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())); err != nil {
		return fmt.Errorf("reflink %s: %w; images need XFS or btrfs (pandastack setup makes one)", dst.Name(), err)
	}
	return nil
}

// stateFile is a file in memory that the monitor writes its device state to. Its pages are charged to
// the monitor that writes them.
type stateFile struct{ file *os.File }

func newStateFile() (stateFile, error) {
	fd, err := unix.MemfdCreate("state", unix.MFD_CLOEXEC)
	if err != nil {
		return stateFile{}, fmt.Errorf("make state file: %w", err)
	}
	return stateFile{os.NewFile(uintptr(fd), "state")}, nil
}

// writer answers a descriptor for writing alone: QEMU takes one from a set only if its mode is the one
// it asks for.
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
