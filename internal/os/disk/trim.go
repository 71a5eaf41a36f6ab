package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// minTrimBytes is the shortest free range that Trim gives back, in bytes. What sandboxes leave is scattered and
// is written again soon; what a template leaves is long.
const minTrimBytes = 1 << 20

// Trim gives the space that is free in the XFS image of the data directory dir back to the file system that
// the image lies on: what was removed a moment ago may come with the next call only. Without an image it does
// nothing. It takes a second or so and hinders nobody meanwhile. A mount that discards by itself does the same
// at every deletion, and makes making and removing a machine's disk several times slower.
func Trim(dir string) error {
	if _, err := os.Stat(ImagePath(dir)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if mounted, err := Mounted(dir); err != nil || !mounted {
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("trim data directory: %w", err)
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil { // what was deleted is free only then
		return fmt.Errorf("trim %s: %w", dir, err)
	}
	if err := trim(f, minTrimBytes); err != nil {
		return fmt.Errorf("trim %s: %w", dir, err)
	}
	return nil
}
