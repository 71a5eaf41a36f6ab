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

// Disk is a machine's own disk over a snapshot's that is still coming: what the machine wrote is in its own
// file, the rest is the snapshot's. Own becomes whole by Complete, and is a plain disk image then.
//
// Until then a page of the own file is the machine's if, and only if, it is no hole. So a later process
// can make the file whole, too.
//
// All methods may be called at once.
type Disk struct {
	base *File
	own  *os.File
	size int64

	// hydrateMu is held for reading by whoever writes to the own file, for writing by Complete while it moves a
	// piece. Nobody waits for the base with it. Reads need no lock: what Complete moves is the same bytes.
	hydrateMu sync.RWMutex
	pages     [64]sync.Mutex // of partial writes, by page
	mu        sync.Mutex
	written   bits // pages that are in the own file
	local     atomic.Bool
}

// NewDisk makes a disk of own, which has the disk's size, at least base's, and holds nothing yet. The disk
// closes neither.
func NewDisk(base *File, own *os.File) (*Disk, error) {
	info, err := own.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() < base.size || info.Size()%chunkstore.PageSize != 0 {
		return nil, fmt.Errorf("disk %s has %d bytes, and is over one of %d", own.Name(), info.Size(), base.size)
	}
	return &Disk{base: base, own: own, size: info.Size()}, nil
}

// Size is the disk's, in bytes.
func (d *Disk) Size() int64 { return d.size }

// IsLocal says that the own file is all of the disk.
func (d *Disk) IsLocal() bool { return d.local.Load() }

// isOwn says whether a page is in the own file. Pages beyond the base are, as zeros.
func (d *Disk) isOwn(page int64) bool {
	if d.local.Load() || page*chunkstore.PageSize >= d.base.size {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.written.has(page)
}

// run is how many bytes from off on, up to end, are of the same owner.
func (d *Disk) run(off, end int64) (n int64, mine bool) {
	page := off / chunkstore.PageSize
	mine = d.isOwn(page)
	at := (page + 1) * chunkstore.PageSize
	for at < end && d.isOwn(at/chunkstore.PageSize) == mine {
		at += chunkstore.PageSize
	}
	return min(at, end) - off, mine
}

// ReadAt fills p from off on. What lies beyond the end is zero.
func (d *Disk) ReadAt(ctx context.Context, p []byte, off int64) error {
	if over := off + int64(len(p)) - d.size; over > 0 {
		over = min(over, int64(len(p)))
		clear(p[int64(len(p))-over:])
		p = p[:int64(len(p))-over]
	}
	for len(p) > 0 {
		n, mine := d.run(off, off+int64(len(p)))
		var err error
		if mine {
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

// WriteAt writes p at off, all within the disk. It is as durable as a write to a file: Sync makes it so.
func (d *Disk) WriteAt(ctx context.Context, p []byte, off int64) error {
	if off < 0 || off+int64(len(p)) > d.size {
		return fmt.Errorf("write %d bytes at %d of a disk of %d: %w", len(p), off, d.size, unix.EFBIG)
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

// write writes whole pages, or a part of one page, of which the rest is fetched first. Whole pages lock
// nothing: who writes the same page twice at once has no right to an order.
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

// store puts p into the own file, or full, the page around it, if the page is not there yet.
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

// Sync makes what was written durable. Its file is not closed meanwhile, whoever wants to.
func (d *Disk) Sync() error {
	raw, err := d.own.SyscallConn()
	if err != nil {
		return err
	}
	var synced error
	err = raw.Control(func(fd uintptr) { synced = unix.Fdatasync(int(fd)) })
	return errors.Join(err, synced)
}

// clonePieceBytes is how much Complete moves while nobody else reads or writes.
const clonePieceBytes = 4 << 20

// Hydrate makes the own file whole with the blocks of base, the snapshot's disk as a file that is whole, on
// the same file system: it shares them, and copies nothing. Then the own file is durable and base is not
// needed any more.
func (d *Disk) Hydrate(ctx context.Context, base *os.File) error {
	for at := int64(0); at < d.base.size; at += clonePieceBytes {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("complete disk: %w", err)
		}
		if err := d.clonePiece(base, at, min(at+clonePieceBytes, d.base.size)); err != nil {
			return fmt.Errorf("complete disk: %w", err)
		}
	}
	if err := d.own.Sync(); err != nil {
		return fmt.Errorf("complete disk: %w", err)
	}
	d.local.Store(true)
	return nil
}

func (d *Disk) clonePiece(base *os.File, from, to int64) error {
	d.hydrateMu.Lock()
	defer d.hydrateMu.Unlock()
	for at := from; at < to; {
		n, mine := d.run(at, to)
		if !mine {
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

// HydrateFile makes own, which an earlier process left in a Disk over base, whole: what is a hole in it gets
// the blocks of base, the snapshot's disk as a file that is whole.
func HydrateFile(ctx context.Context, own, base *os.File) error {
	info, err := base.Stat()
	if err != nil {
		return fmt.Errorf("complete disk: %w", err)
	}
	for at := int64(0); at < info.Size(); {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("complete disk: %w", err)
		}
		data, err := unix.Seek(int(own.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			data, err = info.Size(), nil
		}
		if err != nil {
			return fmt.Errorf("complete disk: %w", err)
		}
		if data = min(data, info.Size()); data > at {
			if err := disk.CloneRange(own, base, at, data-at); err != nil {
				return fmt.Errorf("complete disk: %w", err)
			}
		}
		if data == info.Size() {
			break
		}
		if at, err = unix.Seek(int(own.Fd()), data, unix.SEEK_HOLE); err != nil {
			return fmt.Errorf("complete disk: %w", err)
		}
	}
	return own.Sync()
}
