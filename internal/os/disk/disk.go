// Package disk makes, clones and measures the raw image files that guests see as block devices.
//
// It owns reflinks, sparseness and the data directory's file system: where a directory cannot reflink, it
// makes an XFS image and mounts that. It does not know the content of an image nor its user.
//
// A clone shares every block with its source until one of the two is written. Its cost grows with the number
// of extents of the source, so images that are cloned often are written by Rewrite, which leaves few extents.
// Functions on different files may run concurrently. A source must not change while it is cloned unless its
// writer is stopped.
package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// NoReflinkError reports that the file system of Dir cannot clone files.
type NoReflinkError struct {
	Dir  string
	Type string // the file system's name, or its magic number if the name is unknown
}

// Error implements error.
func (e *NoReflinkError) Error() string {
	return fmt.Sprintf(
		"%s is on %s, which cannot clone files (reflink); "+
			"run `pandastack setup` to put an XFS image there, or choose a directory on XFS or btrfs",
		e.Dir,
		e.Type,
	)
}

// FullError reports that the file system of Dir has no room even for a file of some KiB.
type FullError struct {
	Dir string
	Err error // unix.ENOSPC or unix.EDQUOT
}

// Error implements error.
func (e *FullError) Error() string {
	return fmt.Sprintf(
		"the file system of %s is full (%v); "+
			"enlarge it (see \"Disk full\" in docs/operations.md), then delete snapshots or sandboxes",
		e.Dir,
		e.Err,
	)
}

// Unwrap returns the error of the system call.
func (e *FullError) Unwrap() error { return e.Err }

// Probe checks whether files below dir can be cloned, by cloning one. It returns *NoReflinkError if they
// cannot, and *FullError if there is no space to try. It leaves nothing behind.
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

// Clone makes dst, which must not exist, a copy of src that shares its blocks. The mode of dst is 0600. Clone
// returns *NoReflinkError if the file system cannot clone files, and removes dst again.
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

// CloneInto replaces the content of dst, an open file of the same size as src, with a clone of src. Processes
// that have dst open see the new content: the kernel drops the old pages from the page cache.
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
func CloneRange(dst, src *os.File, off, n int64) error { return CloneRangeTo(dst, off, src, off, n) }

// CloneRangeTo is CloneRange with offsets of their own: n bytes of dst at to share the blocks of src at from.
func CloneRangeTo(dst *os.File, to int64, src *os.File, from, n int64) error {
	arg := unix.FileCloneRange{
		Src_fd: int64(src.Fd()), Src_offset: uint64(from), Src_length: uint64(n), Dest_offset: uint64(to),
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
		return fmt.Errorf("clone %d bytes at %d of %s to %s: %w", n, from, src.Name(), dst.Name(), err)
	}
}

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

// Allocate makes path, which must not exist, a sparse image of the given size.
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

// Grow extends the image at path to the given size; the new part reads as zeros and takes no space. It never
// shrinks an image: a smaller size is an error and leaves the image unchanged.
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
			"grow disk %s: it cannot shrink from %d to %d bytes",
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

// Remove deletes an image. It returns nil if the image does not exist.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove disk: %w", err)
	}
	return nil
}
