// Package disk makes, clones and measures the raw image files that guests see as block devices.
//
// It owns reflinks, sparseness and the data directory's file system: where a directory cannot reflink
// it makes an XFS image and mounts that. It does not know what is in an image nor who uses it.
//
// A clone shares every block with its source until one of them writes, and costs time for each extent
// of the source: images that are cloned often are written by Rewrite, which leaves few extents.
// Functions on different files may run at once; a source must not change while it is cloned unless its
// writer is stopped.
package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// NoReflinkError says that the file system of Dir cannot clone files.
type NoReflinkError struct {
	Dir  string
	Type string // the file system's name, or its magic number where we have no name
}

func (e *NoReflinkError) Error() string {
	return fmt.Sprintf(
		"%s is on %s, which cannot clone files (reflink); run `pandastack setup` to put an XFS image there, or choose a directory on XFS or btrfs",
		e.Dir,
		e.Type,
	)
}

// FullError says that not even a file of some KiB fits on the file system of Dir.
type FullError struct {
	Dir string
	Err error // unix.ENOSPC or unix.EDQUOT
}

func (e *FullError) Error() string {
	return fmt.Sprintf(
		"the file system of %s is full (%v); enlarge it, as docs/operations.md says under \"Disk full\", and delete snapshots or sandboxes then",
		e.Dir,
		e.Err,
	)
}

func (e *FullError) Unwrap() error { return e.Err }

// Probe tells whether files below dir can be cloned, by cloning one. It answers *NoReflinkError when
// not, *FullError when there is no room to try, and leaves nothing behind.
func Probe(dir string) (err error) {
	defer func() {
		for _, full := range []error{unix.ENOSPC, unix.EDQUOT} {
			if errors.Is(err, full) {
				err = &FullError{dir, full}
			}
		}
	}()
	src, err := os.CreateTemp(dir, ".reflink-*")
	if err != nil {
		return fmt.Errorf("probe reflink: %w", err)
	}
	defer func() { err = errors.Join(err, src.Close(), os.Remove(src.Name())) }()
	if _, err := src.Write(make([]byte, 64<<10)); err != nil {
		return fmt.Errorf("probe reflink: %w", err)
	}
	dst, err := os.CreateTemp(dir, ".reflink-*")
	if err != nil {
		return fmt.Errorf("probe reflink: %w", err)
	}
	defer func() { err = errors.Join(err, dst.Close(), os.Remove(dst.Name())) }()
	return clone(src, dst)
}

// Clone makes dst, which must not exist, a copy of src that shares its blocks. The mode of dst is 0600.
// It answers *NoReflinkError where the file system cannot; dst is then gone again.
func Clone(src, dst string) (err error) {
	from, err := os.Open(src)
	if err != nil {
		return fmt.Errorf("clone disk: %w", err)
	}
	defer from.Close()
	to, err := os.OpenFile(dst, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("clone disk: %w", err)
	}
	if err = errors.Join(clone(from, to), to.Close()); err != nil {
		return errors.Join(err, os.Remove(dst))
	}
	return nil
}

// CloneInto replaces the content of dst, an open file of the same size, by that of src. Whoever holds
// dst's inode open sees the new content; pages of it in the page cache are dropped by the kernel.
func CloneInto(src string, dst *os.File) error {
	from, err := os.Open(src)
	if err != nil {
		return fmt.Errorf("clone disk: %w", err)
	}
	defer from.Close()
	a, err := from.Stat()
	if err != nil {
		return fmt.Errorf("clone disk: %w", err)
	}
	b, err := dst.Stat()
	if err != nil {
		return fmt.Errorf("clone disk: %w", err)
	}
	if a.Size() != b.Size() {
		return fmt.Errorf("clone %s into %s: sizes differ, %d and %d bytes", src, dst.Name(), a.Size(), b.Size())
	}
	return clone(from, dst)
}

// CloneRange makes n bytes of dst at off share the blocks of src at the same offset.
//
// off is a multiple of the file system's block size, and so is n, except at the end of src. It returns
// *NoReflinkError if the file system cannot share blocks.
func CloneRange(dst, src *os.File, off, n int64) error {
	arg := unix.FileCloneRange{
		Src_fd: int64(src.Fd()), Src_offset: uint64(off), Src_length: uint64(n), Dest_offset: uint64(off),
	}
	for {
		err := unix.IoctlFileCloneRange(int(dst.Fd()), &arg)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY):
			return &NoReflinkError{Dir: parent(dst.Name()), Type: fsType(dst)}
		}
		return fmt.Errorf("clone %d bytes at %d of %s to %s: %w", n, off, src.Name(), dst.Name(), err)
	}
}

// IsNoSpace reports whether err says that a file system or a quota on it is full.
func IsNoSpace(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

func clone(from, to *os.File) error {
	for {
		err := unix.IoctlFileClone(int(to.Fd()), int(from.Fd()))
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY):
			return &NoReflinkError{Dir: parent(to.Name()), Type: fsType(to)}
		}
		return fmt.Errorf("clone %s to %s: %w", from.Name(), to.Name(), err)
	}
}

// Allocate makes path, which must not exist, an empty image of the given size that takes no space yet.
func Allocate(path string, bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("allocate %s: size %d is negative", path, bytes)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("allocate disk: %w", err)
	}
	if err := errors.Join(f.Truncate(bytes), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("allocate %s: %w", path, err), os.Remove(path))
	}
	return nil
}

// Grow extends the image at path to the given size; the new end reads as zeros and takes no space. An
// image is never made smaller: that is an error, and the image is untouched.
func Grow(path string, bytes int64) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("grow disk: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("grow disk %s: not a regular file", path)
	}
	if bytes < info.Size() {
		return fmt.Errorf(
			"grow disk %s: it has %d bytes, and %d are fewer; a disk only grows",
			path,
			info.Size(),
			bytes,
		)
	}
	if bytes == info.Size() {
		return nil
	}
	if err := os.Truncate(path, bytes); err != nil {
		return fmt.Errorf("grow disk: %w", err)
	}
	return nil
}

// Remove deletes an image. One that is not there is fine.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove disk: %w", err)
	}
	return nil
}
