package files

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// xattrPrefix begins the names of the extended attributes that hold a file's metadata. It is the prefix of E2B's
// agent, so that programs in the guest find them where they expect them.
const xattrPrefix = "user.e2b."

// Limits of metadata.
const (
	maxXattrName = 255 - len(xattrPrefix) // the kernel's XATTR_NAME_MAX
	maxMetadata  = 64
	maxNames     = 64 << 10 // the kernel's limit of all names of a file, in bytes
)

// checkXattrs returns an error for metadata that exceeds the limits.
func checkXattrs(notes map[string]string) error {
	total := 0
	for name, value := range notes {
		total += len(name) + len(value)
		if name == "" || len(name) > maxXattrName || strings.IndexByte(name, 0) >= 0 || len(notes) > maxMetadata ||
			total > guestapi.MaxMetadata {
			return fmt.Errorf(
				"%w: metadata: %d names, or the value of %.40q, exceed the limits",
				guestapi.ErrInvalid,
				len(notes),
				name,
			)
		}
	}
	return nil
}

// setXattrs stores the metadata of a new file. It stores nothing on a file system without extended attributes.
func setXattrs(fd int, notes map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(notes)) {
		err := unix.Fsetxattr(fd, xattrPrefix+name, []byte(notes[name]), 0)
		if errors.Is(err, unix.ENOTSUP) {
			return nil
		}
		if err != nil {
			return classify(fmt.Errorf("store metadata: %w", err))
		}
	}
	return nil
}

// removeXattrs removes the metadata of a file.
func removeXattrs(fd int) error {
	size, err := unix.Flistxattr(fd, nil)
	if err != nil || size <= 0 {
		return nil // it has none, as on a file system without extended attributes
	}
	list := make([]byte, size)
	if size, err = unix.Flistxattr(fd, list); err != nil {
		return classify(fmt.Errorf("list metadata: %w", err))
	}
	for name := range strings.SplitSeq(string(list[:size]), "\x00") {
		if !strings.HasPrefix(name, xattrPrefix) {
			continue
		}
		if err := unix.Fremovexattr(fd, name); err != nil && !errors.Is(err, unix.ENODATA) {
			return classify(fmt.Errorf("remove metadata: %w", err))
		}
	}
	return nil
}

// xattrsOf reads the metadata of a regular file; nil if it has none, or changes meanwhile. It skips attributes that
// exceed the limits, which another program must have set.
func xattrsOf(at string) map[string]string {
	size, err := unix.Llistxattr(at, nil)
	if err != nil || size <= 0 || size > maxNames {
		return nil
	}
	list := make([]byte, size)
	if size, err = unix.Llistxattr(at, list); err != nil {
		return nil
	}
	var notes map[string]string
	total := 0
	for name := range strings.SplitSeq(string(list[:size]), "\x00") {
		short, ours := strings.CutPrefix(name, xattrPrefix)
		if !ours || short == "" || len(notes) == maxMetadata {
			continue
		}
		value := make([]byte, guestapi.MaxMetadata)
		n, err := unix.Lgetxattr(at, name, value)
		if err != nil || total+len(short)+n > guestapi.MaxMetadata {
			continue
		}
		if notes == nil {
			notes = map[string]string{}
		}
		total += len(short) + n
		notes[short] = string(value[:n])
	}
	return notes
}
