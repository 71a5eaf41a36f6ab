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
	rootDir  = "root" // the monitor's directory
	baseFile = "base" // hard link to the base of the next capture, out of the monitor's reach
)

// record is what a later host agent must know about a monitor.
type record struct {
	Process proc.Identity `json:"process"`
	Shape   shape         `json:"shape"`
	// Base identifies the base of the next capture. If it is zero, the next capture must be full.
	Base vmmproc.FileKey `json:"base"`
	// Cold reports that the machine was booted and runs without dirty page tracking. A diff
	// snapshot would then rely on mincore(2), for which a page that was swapped out is clean;
	// therefore all captures of this machine are full.
	Cold bool `json:"cold,omitempty"`
	// Paged reports that a pager in the process that loaded the machine serves its memory. The
	// machine cannot outlive that process.
	Paged     bool    `json:"paged,omitempty"`
	DiskBytes []int64 `json:"disk_bytes"` // as the guest knows them
	// DiskRates are the rate limits of the disks, or nil if there are none.
	DiskRates    []vmm.Rate `json:"disk_rates,omitempty"`
	MaxMemoryMiB int        `json:"max_memory_mib,omitempty"`
	MaxDisks     int        `json:"max_disks,omitempty"`
}

// removeFiles removes the monitor's files from dir.
func removeFiles(dir string) error {
	return errors.Join(
		unmount(dir),
		os.RemoveAll(filepath.Join(dir, rootDir)),
		vmmproc.Remove(dir, baseFile, baseFile+".new"),
	)
}

// openRegular opens a file that a monitor may have replaced. It accepts only a regular file and
// follows no symbolic link.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
