package pager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/os/disk"
)

// Disk is a machine's own disk on top of a snapshot's disk that is still being downloaded. Pages that the
// machine wrote are in its own file, the others in the snapshot's. Hydrate completes the own file, which then
// is a plain disk image.
//
// Until then, a page of the own file is the machine's if and only if it is not a hole. So a later process can
// complete the file, too.
//
// All methods may be called concurrently.
type Disk struct {
	base *File
	own  *os.File
	size int64

	// hydrateMu is held for reading while the own file is written, and for writing while Hydrate clones a
	// piece. No goroutine waits for the base while holding it. Reads need no lock: Hydrate clones the same
	// bytes.
	hydrateMu sync.RWMutex
	pages     [64]sync.Mutex // held for partial writes, by page
	mu        sync.Mutex
	written   bits // pages that are in the own file
	local     atomic.Bool
}

// NewDisk makes a disk of own, an empty file of the disk's size, which is at least base's. The disk closes
// neither file.
func NewDisk(base *File, own *os.File) (*Disk, error) {
	info, err := own.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() < base.size || info.Size()%chunkstore.PageSize != 0 {
		return nil, fmt.Errorf("disk %s has %d bytes, less than its base of %d or not whole pages",
			own.Name(), info.Size(), base.size)
	}
	return &Disk{base: base, own: own, size: info.Size()}, nil
}

// Size returns the size of the disk in bytes.
func (d *Disk) Size() int64 { return d.size }

// IsLocal reports whether the own file is the complete disk.
func (d *Disk) IsLocal() bool { return d.local.Load() }

// isOwn reports whether a page is in the own file. Pages beyond the base are, as zeros.
func (d *Disk) isOwn(page int64) bool {
	if d.local.Load() || page*chunkstore.PageSize >= d.base.size {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.written.has(page)
}

// run returns how many bytes from off up to end are in the same file.
func (d *Disk) run(off, end int64) (n int64, own bool) {
	page := off / chunkstore.PageSize
	own = d.isOwn(page)
	at := (page + 1) * chunkstore.PageSize
	for at < end && d.isOwn(at/chunkstore.PageSize) == own {
		at += chunkstore.PageSize
	}
	return min(at, end) - off, own
}

// ReadAt fills p from off on. Bytes beyond the end of the disk are zero.
func (d *Disk) ReadAt(ctx context.Context, p []byte, off int64) error {
	if excess := off + int64(len(p)) - d.size; excess > 0 {
		excess = min(excess, int64(len(p)))
		clear(p[int64(len(p))-excess:])
		p = p[:int64(len(p))-excess]
	}
	for len(p) > 0 {
		n, own := d.run(off, off+int64(len(p)))
		var err error
		if own {
			_, err = d.own.ReadAt(p[:n], off)
		} else {
			err = d.base.ReadAt(ctx, p[:n], off)
		}
		if err != nil {
			return err
		}
		p, off = p[n:], off+n
	}
	return nil
}

// WriteAt writes p at off, within the disk. Sync makes the write durable.
func (d *Disk) WriteAt(ctx context.Context, p []byte, off int64) error {
	if off < 0 || off+int64(len(p)) > d.size {
		return fmt.Errorf("write %d bytes at %d: beyond the end of the disk at %d: %w", len(p), off, d.size, unix.EFBIG)
	}
	for len(p) > 0 {
		within := off % chunkstore.PageSize
		n := int64(len(p)) &^ (chunkstore.PageSize - 1)
		if within != 0 || n == 0 {
			n = min(chunkstore.PageSize-within, int64(len(p)))
		}
		if err := d.write(ctx, p[:n], off); err != nil {
			return err
		}
		p, off = p[n:], off+n
	}
	return nil
}

// write writes whole pages, or a part of one page, whose other bytes it reads first. It takes no lock for
// whole pages: concurrent writes of one page have no defined order.
func (d *Disk) write(ctx context.Context, p []byte, off int64) error {
	if len(p)%chunkstore.PageSize == 0 {
		return d.store(p, off, nil)
	}
	page := off / chunkstore.PageSize
	lock := &d.pages[page%int64(len(d.pages))]
	lock.Lock()
	defer lock.Unlock()
	if d.isOwn(page) {
		return d.store(p, off, nil)
	}
	full := make([]byte, chunkstore.PageSize)
	if err := d.base.ReadAt(ctx, full, page*chunkstore.PageSize); err != nil {
		return err
	}
	copy(full[off%chunkstore.PageSize:], p)
	return d.store(p, off, full)
}

// store writes p to the own file, or full, the page around it, if the page is not in the own file yet.
func (d *Disk) store(p []byte, off int64, full []byte) error {
	d.hydrateMu.RLock()
	defer d.hydrateMu.RUnlock()
	if full != nil && !d.isOwn(off/chunkstore.PageSize) {
		p, off = full, off-off%chunkstore.PageSize
	}
	if _, err := d.own.WriteAt(p, off); err != nil {
		return err
	}
	if d.local.Load() {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for at := off; at < off+int64(len(p)); at += chunkstore.PageSize {
		d.written = d.written.with(at / chunkstore.PageSize)
	}
	return nil
}

// Sync makes earlier writes durable. The descriptor stays valid meanwhile, even if the file is closed.
func (d *Disk) Sync() error {
	raw, err := d.own.SyscallConn()
	if err != nil {
		return err
	}
	var synced error
	err = raw.Control(func(fd uintptr) { synced = unix.Fdatasync(int(fd)) })
	return errors.Join(err, synced)
}

// clonePieceBytes is how much Hydrate clones while writers wait.
const clonePieceBytes = 4 << 20

// Hydrate completes the own file with the blocks of base, the snapshot's disk as a local file. Both are on
// the same file system: Hydrate shares blocks and copies nothing. Afterwards the own file is durable and base
// is not needed any more.
func (d *Disk) Hydrate(ctx context.Context, base *os.File) error {
	for at := int64(0); at < d.base.size; at += clonePieceBytes {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("hydrate disk: %w", err)
		}
		if err := d.clonePiece(base, at, min(at+clonePieceBytes, d.base.size)); err != nil {
			return fmt.Errorf("hydrate disk: %w", err)
		}
	}
	if err := d.own.Sync(); err != nil {
		return fmt.Errorf("hydrate disk: %w", err)
	}
	d.local.Store(true)
	return nil
}

func (d *Disk) clonePiece(base *os.File, from, to int64) error {
	d.hydrateMu.Lock()
	defer d.hydrateMu.Unlock()
	for at := from; at < to; {
		n, own := d.run(at, to)
		if !own {
			if err := disk.CloneRange(d.own, base, at, n); err != nil {
				return err
			}
			d.mu.Lock()
			for page := at / chunkstore.PageSize; page*chunkstore.PageSize < at+n; page++ {
				d.written = d.written.with(page)
			}
			d.mu.Unlock()
		}
		at += n
	}
	return nil
}

// HydrateFile completes own, the own file of an earlier process's Disk over base. Holes of own get the blocks
// of base, the snapshot's disk as a local file.
func HydrateFile(ctx context.Context, own, base *os.File) error {
	info, err := base.Stat()
	if err != nil {
		return fmt.Errorf("hydrate disk: %w", err)
	}
	for at := int64(0); at < info.Size(); {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("hydrate disk: %w", err)
		}
		data, err := unix.Seek(int(own.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			data, err = info.Size(), nil
		}
		if err != nil {
			return fmt.Errorf("hydrate disk: %w", err)
		}
		if data = min(data, info.Size()); data > at {
			if err := disk.CloneRange(own, base, at, data-at); err != nil {
				return fmt.Errorf("hydrate disk: %w", err)
			}
		}
		if data == info.Size() {
			break
		}
		if at, err = unix.Seek(int(own.Fd()), data, unix.SEEK_HOLE); err != nil {
			return fmt.Errorf("hydrate disk: %w", err)
		}
	}
	return own.Sync()
}
