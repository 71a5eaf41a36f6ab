package firecracker

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// Names in Spec.Dir, beside the monitor's record.
const (
	rootDir  = "root" // the monitor's
	baseFile = "base" // out of its reach: another name of the memory that its captures are a difference to
)

// record is what a later process of ours has to know of a monitor.
type record struct {
	Process proc.Identity `json:"process"`
	Shape   shape         `json:"shape"`
	// Base is the memory that the next capture is a difference to; zero: the next one must be full.
	Base vmmproc.FileKey `json:"base"`
	// Cold: it was booted, and what it writes is not followed. The monitor would go by what is resident, where a
	// page that was swapped out counts as unchanged; so all captures of it are full.
	Cold bool `json:"cold,omitempty"`
	// Paged: its memory comes from a pager in the process that loaded it, and ends with that.
	Paged     bool    `json:"paged,omitempty"`
	DiskBytes []int64 `json:"disk_bytes"` // as the guest knows them
	// DiskRates are the bounds of its disks; nil: none.
	DiskRates    []vmm.Rate `json:"disk_rates,omitempty"`
	MaxMemoryMiB int        `json:"max_memory_mib,omitempty"`
	MaxDisks     int        `json:"max_disks,omitempty"`
}

// removeFiles takes away what a monitor needed in dir.
func removeFiles(dir string) error {
	return errors.Join(
		unmount(dir),
		os.RemoveAll(filepath.Join(dir, rootDir)),
		vmmproc.Remove(dir, baseFile, baseFile+".new"),
	)
}

// openRegular opens a file that a monitor may have put there: a plain file and no link to another.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("not a plain file")}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
