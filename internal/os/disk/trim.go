package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// minTrimBytes is the shortest free range that Trim returns. Space freed by sandboxes is scattered and soon
// reused; space freed by a template is contiguous.
const minTrimBytes = 1 << 20

// Trim discards the free space in the XFS image of the data directory dir. The space goes back to the file
// system that holds the image. Files removed only a moment ago may be covered by the next call. Trim does
// nothing if there is no image. It takes about a second and does not block others. A mount with the option
// discard would do the same at every deletion, and make creating and removing a machine's disk several times
// slower.
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
	if err := unix.Syncfs(int(f.Fd())); err != nil { // deleted files are free only after that
		return fmt.Errorf("trim %s: %w", dir, err)
	}
	if err := trim(f, minTrimBytes); err != nil {
		return fmt.Errorf("trim %s: %w", dir, err)
	}
	return nil
}
