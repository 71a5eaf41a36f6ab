package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

// Linux is the System of a running kernel.
type Linux struct {
	// BootID is an open file that is bound over /proc/sys/kernel/random/boot_id; 0: none, and SetBootID
	// does nothing.
	BootID int
	// Root is the block device of the root file system; "": it cannot grow.
	Root string
	// Link is the name of the network card.
	Link string
}

var _ System = (*Linux)(nil)

// AddEntropy implements System.
func (*Linux) AddEntropy(b []byte) error { return addEntropy(b) }

// SetClock implements System.
func (*Linux) SetClock(t time.Time) error {
	ts, err := unix.TimeToTimespec(t)
	if err != nil {
		return err
	}
	return unix.ClockSettime(unix.CLOCK_REALTIME, &ts)
}

// SetHostname implements System.
func (*Linux) SetHostname(name string) error { return unix.Sethostname([]byte(name)) }

// ReadFile implements System.
func (*Linux) ReadFile(name string) ([]byte, error) { return os.ReadFile(name) }

// WriteFile implements System. It writes in place, which is all that a file of a frozen machine needs,
// and replaces symbolic links.
func (*Linux) WriteFile(name string, content []byte, mode uint32) error {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC | unix.O_NOFOLLOW | unix.O_CLOEXEC
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
	if err != nil {
		return &os.PathError{Op: "write", Path: name, Err: err}
	}
	err = unix.Fchmod(fd, mode)
	for len(content) > 0 && err == nil {
		var n int
		n, err = unix.Write(fd, content)
		content = content[max(n, 0):]
	}
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return &os.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

// SetBootID implements System.
func (l *Linux) SetBootID(id string) error {
	if l.BootID == 0 {
		return nil
	}
	_, err := unix.Pwrite(l.BootID, []byte(id+"\n"), 0)
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
		return resizeRoot(want)
	}
	return nil
}

// sizes are the bytes of a disk and the blocks of the ext4 file system on it, which its superblock tells:
// Documentation/filesystems/ext4/super.rst, s_blocks_count. Statfs leaves out what ext4 itself needs.
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
