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

// DataDisk is a disk of a machine besides its root disk. The first one is the guest's second disk, and so on.
type DataDisk struct {
	// unique in the machine: a lower-case letter, then lower-case letters and digits, at most 16
	Name    string   `json:"name"`
	MiB     int      `json:"mib"`
	Mount   string   `json:"mount"`             // absolute path where the guest mounts its ext4 file system
	Options []string `json:"options,omitempty"` // mount options
	// Place is set for a copy of a volume, which ends with its machine: the number, from 1, of the machine's place for
	// volumes that it is at. These places follow the other disks.
	Place    int    `json:"place,omitempty"`
	Volume   string `json:"volume,omitempty"` // the id of the volume that it is a copy of
	ReadOnly bool   `json:"read_only,omitempty"`
}

// PlaceName returns the name of the disk that is a copy of a volume at a place. No other disk has such a name.
func PlaceName(place int) string { return fmt.Sprintf("vol-%d", place) }

// MaxPlaces is the largest number of places for volumes of a machine.
const MaxPlaces = 8

// MaxDataDisks is the largest number of data disks of a machine.
const MaxDataDisks = 8

// CheckDataDisks returns an ErrInvalid that names the problem if no machine could have these disks.
func CheckDataDisks(disks []DataDisk) error {
	for _, d := range disks {
		if d.MiB < 1 {
			return fmt.Errorf("data disk %q: size of %d MiB is less than 1 MiB: %w", d.Name, d.MiB, ErrInvalid)
		}
	}
	return checkNamesAndMounts(disks)
}

// checkNamesAndMounts is CheckDataDisks for disks whose sizes are not known yet.
func checkNamesAndMounts(disks []DataDisk) error {
	if len(disks) > MaxDataDisks+MaxPlaces {
		return fmt.Errorf("%d data disks, more than the limit of %d: %w", len(disks), MaxDataDisks, ErrInvalid)
	}
	names, plain := map[string]bool{}, 0
	for _, d := range disks {
		if d.Place != 0 {
			if d.Place < 1 || d.Place > MaxPlaces || d.Name != PlaceName(d.Place) || names[d.Name] {
				return fmt.Errorf("copy of a volume %q at place %d: the place is taken or does not exist: %w",
					d.Name, d.Place, ErrInvalid)
			}
			names[d.Name] = true
			if err := checkMount(d); err != nil {
				return err
			}
			continue
		}
		if plain++; plain > MaxDataDisks {
			return fmt.Errorf("more data disks than the limit of %d: %w", MaxDataDisks, ErrInvalid)
		}
		letters := strings.Trim(d.Name, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
		if d.Name == "" || len(d.Name) > 16 || !letters || d.Name[0] <= '9' || names[d.Name] {
			return fmt.Errorf(
				"data disk %q: name is taken, or not a lower-case letter and up to 15 such letters and digits: %w",
				d.Name,
				ErrInvalid,
			)
		}
		names[d.Name] = true
		if err := checkMount(d); err != nil {
			return err
		}
	}
	return nil
}

func checkMount(d DataDisk) error {
	if !path.IsAbs(d.Mount) || path.Clean(d.Mount) != d.Mount || d.Mount == "/" {
		return fmt.Errorf(
			"data disk %s: mount point %q is not a clean absolute path below /: %w",
			d.Name,
			d.Mount,
			ErrInvalid,
		)
	}
	return nil
}

// Places returns the number of places for volumes of machines from the snapshot.
func (s Snapshot) Places() int {
	n := s.Manifest.Disks - 1
	for _, d := range s.Data {
		if d.Place == 0 {
			n--
		}
	}
	return min(max(n, 0), MaxPlaces)
}

// File returns the name of the disk among a snapshot's files. No file of an image has such a name.
func (d DataDisk) File() string { return "disk-" + d.Name + ".img" }

// DiskPattern matches the names that DiskFiles returns, and no other file of ours.
const DiskPattern = "disk*.img"

// DiskFiles returns the file names of a machine's disks: the root disk, then the data disks in order.
func DiskFiles(data []DataDisk) []string {
	files := []string{diskFile}
	for _, d := range data {
		files = append(files, d.File())
	}
	return files
}

// DiskPaths returns the paths of DiskFiles in a directory.
func DiskPaths(dir string, data []DataDisk) []string {
	paths := DiskFiles(data)
	for i := range paths {
		paths[i] = filepath.Join(dir, paths[i])
	}
	return paths
}

// DiskPaths returns the raw images of all disks of a snapshot, in the guest's order. It returns nil for a
// snapshot without disks. The images must not be written.
func (s Snapshot) DiskPaths() []string {
	if !s.Disk {
		return nil
	}
	return DiskPaths(s.dir, s.Data)
}

// DiskBytes returns the sizes of the disks in DiskPaths.
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

// DiskPaths returns the paths for the images of a draft's disks: the root disk, then the data disks.
func (d *Draft) DiskPaths(data []DataDisk) []string { return DiskPaths(d.dir, data) }

// Disks returns the paths of the disk images that the draft contains, in no order.
func (d *Draft) Disks() ([]string, error) { return filepath.Glob(filepath.Join(d.dir, DiskPattern)) }

// finishDisks records the sizes of a draft's disks and makes them durable. A missing data disk is an error.
func (d *Draft) finishDisks(snap *Snapshot, syncs *errgroup.Group) error {
	if _, err := os.Stat(d.DiskPath()); err != nil {
		if snap.Disk {
			return err
		}
		return nil
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
