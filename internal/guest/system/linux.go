package system

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// Linux is the System of a running kernel.
type Linux struct {
	// BootID is an open file that is bound over /proc/sys/kernel/random/boot_id. If it is 0, SetBootID does nothing.
	BootID int
	// Root is the block device of the root file system. If it is empty, the file system cannot grow.
	Root string
	// Link is the name of the network card.
	Link string
	// Random is an open /dev/urandom. If it is 0, the file is opened for each use.
	Random int
	// Files are files open for reading and writing, by the path that they are bound over. They are read and written
	// in place.
	Files map[string]int
}

var _ System = (*Linux)(nil)

// AddEntropy implements System.
func (l *Linux) AddEntropy(b []byte) error {
	if l.Random > 0 {
		return addEntropy(l.Random, b)
	}
	fd, err := unix.Open("/dev/urandom", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/urandom: %w", err)
	}
	return errors.Join(addEntropy(fd, b), unix.Close(fd))
}

// SetClock implements System.
func (*Linux) SetClock(t time.Time) error {
	ts, err := unix.TimeToTimespec(t)
	if err != nil {
		return err
	}
	return setRealtime(&ts)
}

// SetHostname implements System.
func (*Linux) SetHostname(name string) error { return setHostname([]byte(name)) }

// ReadFile implements System. It reads small files only, without the cost of os.File, which is noticeable in a
// machine that was just restored.
func (l *Linux) ReadFile(name string) ([]byte, error) {
	if fd, open := l.Files[name]; open {
		return readOpen(fd, name)
	}
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // the file was only read
	return readOpen(fd, name)
}

// readOpen reads all of an open file that never blocks.
func readOpen(fd int, name string) ([]byte, error) {
	b := make([]byte, 0, 1<<10)
	for {
		n, err := pread(fd, b[len(b):cap(b)], int64(len(b)))
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: name, Err: err}
		}
		if n == 0 {
			return b, nil
		}
		if b = b[:len(b)+n]; len(b) > guestapi.MaxContent {
			return nil, &os.PathError{Op: "read", Path: name, Err: unix.EFBIG}
		}
		if len(b) == cap(b) {
			b = slices.Grow(b, len(b))
		}
	}
}

// WriteFile implements System. It writes in place, which suffices for the files of a frozen machine, and replaces
// symbolic links.
//
// It truncates a file only after writing: ext4 flushes a file that was truncated to nothing and written again
// (ext4(5), auto_da_alloc), which takes long. Open files keep their mode.
func (l *Linux) WriteFile(name string, content []byte, mode uint32) error {
	if fd, open := l.Files[name]; open {
		if err := rewrite(fd, content); err != nil {
			return &os.PathError{Op: "write", Path: name, Err: err}
		}
		return nil
	}
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Open(name, flags, mode)
	if err == unix.ENOENT {
		if err = os.MkdirAll(path.Dir(name), 0o755); err == nil {
			fd, err = unix.Open(name, flags, mode)
		}
	} else if err == unix.ELOOP {
		if err = unix.Unlink(name); err == nil {
			fd, err = unix.Open(name, flags, mode)
		}
	}
	if err == nil {
		err = errors.Join(chmod(fd, mode), rewrite(fd, content), unix.Close(fd))
	}
	if err != nil {
		return &os.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

func chmod(fd int, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&0o7777 == mode {
		return err
	}
	return unix.Fchmod(fd, mode)
}

// rewrite replaces the content of an open file. It finds the end by seeking, which costs less than fstat.
func rewrite(fd int, content []byte) error {
	for at := 0; at < len(content); {
		n, err := pwrite(fd, content[at:], int64(at))
		if err != nil {
			return err
		}
		at += n
	}
	end, err := seekEnd(fd)
	if err != nil || end <= int64(len(content)) {
		return err
	}
	return truncate(fd, int64(len(content)))
}

// SetBootID implements System.
func (l *Linux) SetBootID(id string) error {
	if l.BootID == 0 {
		return nil
	}
	_, err := pwrite(l.BootID, []byte(id+"\n"), 0)
	return err
}

// SetNetwork implements System.
func (l *Linux) SetNetwork(n Network) error { return configure(l.Link, n) }

// Sync implements System.
func (*Linux) Sync() { unix.Sync() }

// GrowRoot implements System, for ext4.
func (l *Linux) GrowRoot() error {
	if l.Root == "" {
		return nil
	}
	var fs unix.Statfs_t
	if err := unix.Statfs("/", &fs); err != nil {
		return fmt.Errorf("read file system: %w", err)
	}
	if fs.Type != unix.EXT4_SUPER_MAGIC {
		return nil
	}
	dev, err := unix.Open(l.Root, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open disk: %w", err)
	}
	size, have, err := sizes(dev)
	if err = errors.Join(err, unix.Close(dev)); err != nil {
		return fmt.Errorf("read size of disk: %w", err)
	}
	if want := uint64(size) / uint64(fs.Bsize); want > have {
		return resize("/", want)
	}
	return nil
}

// sizes returns the bytes of a disk and the blocks of the ext4 file system on it.
//
// It reads the superblock (Documentation/filesystems/ext4/super.rst, s_blocks_count), since statfs leaves out the
// blocks that ext4 itself needs.
func sizes(dev int) (disk int, blocks uint64, err error) {
	disk, err = unix.IoctlGetInt(dev, unix.BLKGETSIZE64)
	if err != nil {
		return 0, 0, err
	}
	const superblock, low, high = 1024, 0x4, 0x150
	var b [1024]byte
	n, err := unix.Pread(dev, b[:], superblock)
	if err == nil && n < len(b) {
		err = unix.EIO
	}
	return disk, uint64(binary.LittleEndian.Uint32(b[low:])) | uint64(binary.LittleEndian.Uint32(b[high:]))<<32, err
}
