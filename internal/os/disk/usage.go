package disk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Usage measures the image at path, in bytes. apparent is the size that a guest sees. own is the space that
// removing the file would free, that is, the blocks that no clone shares. The time that Usage takes grows
// with the number of extents. Where the file system does not report shared blocks, own is everything
// allocated.
func Usage(path string) (apparent, own int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, fmt.Errorf("measure disk: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, 0, fmt.Errorf("measure %s: %w", path, err)
	}
	err = eachExtent(f, func(e extent) {
		if e.Flags&extentShared == 0 {
			own += int64(e.Length)
		}
	})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY) {
		return st.Size, st.Blocks * 512, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("measure %s: %w", path, err)
	}
	return st.Size, own, nil
}

// Allocated returns the bytes of the image at path that it shares with no other file.
// It is Usage without waiting for the disk, for files that are being written: what is not yet on the disk counts.
func Allocated(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("measure disk: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("measure %s: %w", path, err)
	}
	own := st.Blocks * 512
	err = eachExtentNow(f, func(e extent) {
		if e.Flags&extentShared != 0 {
			own -= int64(e.Length)
		}
	})
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOTTY) {
		return 0, fmt.Errorf("measure %s: %w", path, err)
	}
	return max(0, own), nil
}

// Extents counts the contiguous pieces of the file at path. The cost of a clone grows with them.
func Extents(path string) (int, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("count extents: %w", err)
	}
	defer f.Close()
	n := 0
	if err := eachExtent(f, func(extent) { n++ }); err != nil {
		return 0, fmt.Errorf("count extents of %s: %w", path, err)
	}
	return n, nil
}
