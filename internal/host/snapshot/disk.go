package snapshot

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// DataDisk is a disk of a machine beside its root disk. The first is the guest's second disk, and so on.
type DataDisk struct {
	Name    string   `json:"name"` // its own among the machine's: a lower-case letter, then those and digits, at most 16
	MiB     int      `json:"mib"`
	Mount   string   `json:"mount"`             // where the guest has its file system, ext4; an absolute path
	Options []string `json:"options,omitempty"` // of mounting it
}

// MaxDataDisks is how many data disks a machine may have.
const MaxDataDisks = 8

// CheckDataDisks answers ErrInvalid, with what is wrong, for disks that no machine could have.
func CheckDataDisks(disks []DataDisk) error {
	for _, d := range disks {
		if d.MiB < 1 {
			return fmt.Errorf("data disk %q of %d MiB: %w", d.Name, d.MiB, ErrInvalid)
		}
	}
	return checkNamesAndMounts(disks)
}

// checkNamesAndMounts is CheckDataDisks of disks whose sizes are not known yet.
func checkNamesAndMounts(disks []DataDisk) error {
	if len(disks) > MaxDataDisks {
		return fmt.Errorf("%d data disks, and at most %d are possible: %w", len(disks), MaxDataDisks, ErrInvalid)
	}
	names := map[string]bool{}
	for _, d := range disks {
		letters := strings.Trim(d.Name, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
		if d.Name == "" || len(d.Name) > 16 || !letters || d.Name[0] <= '9' || names[d.Name] {
			return fmt.Errorf("data disk %q: %w", d.Name, ErrInvalid)
		}
		names[d.Name] = true
		if !path.IsAbs(d.Mount) || path.Clean(d.Mount) != d.Mount || d.Mount == "/" {
			return fmt.Errorf("data disk %s at %q: %w", d.Name, d.Mount, ErrInvalid)
		}
	}
	return nil
}

// File is what the disk is called among a snapshot's files. No file of an image has such a name.
func (d DataDisk) File() string { return "disk-" + d.Name + ".img" }

// DiskPattern is what all of DiskFiles match, and nothing else of ours.
const DiskPattern = "disk*.img"

// DiskFiles names the files of a machine's disks, in the guest's order: the root disk, then data disks.
func DiskFiles(data []DataDisk) []string {
	files := []string{diskFile}
	for _, d := range data {
		files = append(files, d.File())
	}
	return files
}

// DiskPaths are DiskFiles in a directory.
func DiskPaths(dir string, data []DataDisk) []string {
	paths := DiskFiles(data)
	for i := range paths {
		paths[i] = filepath.Join(dir, paths[i])
	}
	return paths
}

// DiskPaths are the raw images of all disks of a snapshot that has any, in the guest's order. They must not be
// written to.
func (s Snapshot) DiskPaths() []string {
	if !s.Disk {
		return nil
	}
	return DiskPaths(s.dir, s.Data)
}

// DiskBytes is the size of each of DiskPaths.
func (s Snapshot) DiskBytes() []int64 {
	if !s.Disk {
		return nil
	}
	sizes := []int64{int64(s.DiskMiB) << 20}
	for _, d := range s.Data {
		sizes = append(sizes, int64(d.MiB)<<20)
	}
	return sizes
}

// DiskPaths is where the images of disks belong: the root disk's, then those of data.
func (d *Draft) DiskPaths(data []DataDisk) []string { return DiskPaths(d.dir, data) }

// Disks are the images of disks that are in the draft, in no order.
func (d *Draft) Disks() ([]string, error) { return filepath.Glob(filepath.Join(d.dir, DiskPattern)) }

// finishDisks measures a draft's disks, whose sizes it writes down, and has them made durable. A data disk that is missing is an error.
func (d *Draft) finishDisks(snap *Snapshot, syncs *errgroup.Group) error {
	if _, err := os.Stat(d.DiskPath()); err != nil {
		if snap.Disk {
			return err
		}
		return nil // the disks stay with the machine, which sleeps
	}
	snap.Disk, snap.Data = true, slices.Clone(snap.Data)
	for i, path := range d.DiskPaths(snap.Data) {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if mib := int(info.Size() >> 20); i == 0 {
			snap.DiskMiB = mib
		} else {
			snap.Data[i-1].MiB = mib
		}
		syncs.Go(func() error { return syncFile(path) })
	}
	return CheckDataDisks(snap.Data)
}

func (s Snapshot) checkDisks() error {
	sizes := s.DiskBytes()
	for i, path := range s.DiskPaths() {
		name := filepath.Base(path)
		info, err := os.Stat(path)
		if err != nil {
			return s.damaged(name, "%v", err)
		}
		if info.Size() != sizes[i] {
			return s.damaged(name, "%d bytes, not %d MiB", info.Size(), sizes[i]>>20)
		}
	}
	return nil
}
