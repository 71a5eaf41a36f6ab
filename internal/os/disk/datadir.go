package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/lib/ballast"
	"github.com/pandastack/pandastack/internal/lib/cleanup"
	"golang.org/x/sys/unix"
)

// ImagePath returns the path of the XFS image of a data directory, which is next to the directory.
// Only a data directory that cannot reflink has an image.
func ImagePath(dir string) string { return filepath.Clean(dir) + ".xfs" }

// EnsureDataDir makes dir usable as a data directory. Afterwards dir exists and can clone files. If
// CreateDataDir put an XFS image next to dir, the image is mounted. The returned function unmounts what this
// call mounted, and nothing else; it is never nil. EnsureDataDir returns *NoReflinkError for a directory that
// cannot clone files and has no image, and *FullError for one on a full file system without ballast.
func EnsureDataDir(ctx context.Context, dir string) (release func(context.Context) error, err error) {
	nothing := func(context.Context) error { return nil }
	var undo cleanup.Stack
	defer func() { err = undo.Settle(ctx, err) }()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nothing, err
	}
	release = nothing
	mounted, err := Mounted(dir)
	if err != nil {
		return nothing, err
	}
	image := ImagePath(dir)
	if _, err := os.Stat(image); err == nil && !mounted {
		if err := mountImage(image, dir); err != nil {
			return nothing, err
		}
		release = func(context.Context) error { return Unmount(dir) }
		undo.Push("unmount data directory", release)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nothing, err
	}
	if err := probeFull(dir); err != nil {
		return nothing, err
	}
	return release, nil
}

// probeFull is Probe of a data directory. On a full file system it gives up the ballast first, so that a node can start
// and users can delete.
func probeFull(dir string) error {
	err := Probe(dir)
	if _, full := errors.AsType[*FullError](err); !full {
		return err
	}
	b, other := ballast.In(dir)
	if other != nil {
		return errors.Join(err, other)
	}
	if made, other := b.Release(); other != nil || !made {
		return errors.Join(err, other)
	}
	return Probe(dir)
}

// CreateDataDir makes a sparse XFS image for the data directory dir and mounts it there. bytes is the size of
// the image. dir is empty or does not exist. An existing image is mounted as it is. After an error nothing is
// left that was not there before.
func CreateDataDir(ctx context.Context, dir string, bytes int64) (err error) {
	var undo cleanup.Stack
	defer func() { err = undo.Settle(ctx, err) }()
	image := ImagePath(dir)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		undo.Push("remove data directory", func(context.Context) error { return os.Remove(dir) })
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if mounted, err := Mounted(dir); err != nil || mounted {
		return err
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		return errors.Join(
			err,
			fmt.Errorf(
				"data directory %s is not empty, and an image mounted there would hide its files; move them away first",
				dir,
			),
		)
	}
	if _, err := os.Stat(image); errors.Is(err, fs.ErrNotExist) {
		undo.Push("remove image", func(context.Context) error { return Remove(image) })
		if err := formatXFS(ctx, image, bytes); err != nil {
			return err
		}
	}
	if err := mountImage(image, dir); err != nil {
		return err
	}
	undo.Push("unmount data directory", func(context.Context) error { return Unmount(dir) })
	return Probe(dir)
}

// RemoveDataDir undoes CreateDataDir: it unmounts the image and removes it and the empty directory. It does
// nothing if there is no image. While a process uses the directory it returns an error and keeps the image.
func RemoveDataDir(dir string) error {
	mounted, err := Mounted(dir)
	if err != nil {
		return err
	}
	image := ImagePath(dir)
	if _, err := os.Stat(image); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if mounted {
		if err := Unmount(dir); err != nil {
			return err
		}
	}
	if err := Remove(image); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("remove data directory: %w", err)
	}
	return nil
}

// Mounted reports whether something is mounted on dir. It returns false for a directory that does not exist.
func Mounted(dir string) (bool, error) {
	var st, up unix.Stat_t
	err := unix.Stat(dir, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err == nil {
		err = unix.Stat(filepath.Join(dir, ".."), &up)
	}
	if err != nil {
		return false, fmt.Errorf("check for a mount on %s: %w", dir, err)
	}
	return st.Dev != up.Dev || st.Ino == up.Ino, nil
}

func formatXFS(ctx context.Context, image string, size int64) error {
	if err := Allocate(image, size); err != nil {
		return err
	}
	// Reflink needs the checksummed format.
	out, err := exec.CommandContext(ctx, "mkfs.xfs", "-q", "-f", "-m", "reflink=1,crc=1", image).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf(
			"make XFS image: mkfs.xfs is not installed; install xfsprogs or run `pandastack setup`: %w",
			err,
		)
	}
	if err != nil {
		return fmt.Errorf("make XFS image %s: %w: %s", image, err, lastLine(out))
	}
	return nil
}

func lastLine(out []byte) string {
	lines := strings.Split(string(bytes.TrimSpace(out)), "\n")
	return lines[len(lines)-1]
}

// mountImage mounts image through a loop device that is freed when the image is unmounted.
func mountImage(image, dir string) error {
	loop, err := attachLoop(image)
	if err != nil {
		return fmt.Errorf("mount %s: %w", image, err)
	}
	// The mount keeps the device from here on. Without a mount, closing the device frees it.
	defer loop.Close()
	if err := unix.Mount(loop.Name(), dir, "xfs", unix.MS_NOATIME|unix.MS_NODEV|unix.MS_NOSUID, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", image, dir, err)
	}
	return nil
}

// maxAttachAttempts bounds how often another process may take a loop device between finding and claiming it.
const maxAttachAttempts = 32

func attachLoop(image string) (*os.File, error) {
	file, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("%w; loop devices are needed to mount an image (root, and the kernel module loop)", err)
	}
	defer control.Close()
	for range maxAttachAttempts {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		loop, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(file.Fd())}
		config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO
		copy(config.Info.File_name[:len(config.Info.File_name)-1], image)
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &config)
		if err == nil {
			return loop, nil
		}
		if err = errors.Join(err, loop.Close()); !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("configure %s: %w", loop.Name(), err)
		}
	}
	return nil, errors.New("every free loop device was taken by another process first; try again")
}

// unmountTimeout is how long a busy unmount is retried: the last process that used the mount may be exiting.
const unmountTimeout = 30 * time.Second

// Unmount unmounts the file system at dir and frees its loop device, if it has one. It does nothing if
// nothing is mounted. It returns an error if the mount is still busy after 30 seconds.
func Unmount(dir string) error {
	deadline := time.Now().Add(unmountTimeout)
	for {
		err := unix.Unmount(dir, 0)
		if err == nil || errors.Is(err, unix.EINVAL) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("unmount %s: %w; stop the processes that use it", dir, err)
		}
		<-time.After(100 * time.Millisecond)
	}
}
