package bake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// Recipe is how a template is made.
type Recipe struct {
	Name        hostapi.TemplateName
	Aliases     []string // other names that mean this template
	Hidden      bool     // not listed to users
	Description string
	Base        string
	VCPUs       int
	MemoryMiB   int
	DiskMiB     int
	Disks       []snapshot.DataDisk // besides the root disk, with the sizes of their images
	User        string
	Workdir     string
	Tools       []string
	Limits      hostapi.Limits // of its machines
	Start       []Start        // programs that keep running, started in order before Ready runs
	Ready       string         // shell command that succeeds once the guest is ready; "": at once
	Check       string         // shell command that tests the template, run as User once the guest is ready
	Warm        []string       // shell commands, run as User before the capture
	Scrub       bool           // before the warm-up, drop the page cache and fill free memory with zeros
	Digest      string         // of everything that the root image depends on
	Env         map[string]string
	// spec is set for a published template, which has disk instead of Build.
	spec *spec
	// disk returns the images to boot copies of; release is called when they were copied.
	disk func(ctx context.Context) (from images, release func() error, err error)
	// Build makes the root image, a raw file that does not exist yet, and those of Disks, at the paths of DataImage.
	// work is an empty directory on the same file system. Build calls log with each line, and step when "rootfs"
	// and "image" begin. If it fails it leaves no image.
	Build func(ctx context.Context, work, image string, log, step func(string)) error
}

// DataImage returns the path of a data disk's image, next to the root image.
func DataImage(image, name string) string { return image + dataSeparator + name }

// images are the disks of a machine that boots cold.
type images struct {
	root string
	data []machine.BootDisk
}

// recipeImages returns the images of disks, given the path of the root image.
func recipeImages(root string, disks []snapshot.DataDisk) images {
	all := images{root: root}
	for _, d := range disks {
		all.data = append(all.data, machine.BootDisk{DataDisk: d, Path: DataImage(root, d.Name)})
	}
	return all
}

// snapshotImages returns the disks of a snapshot.
func snapshotImages(snap snapshot.Snapshot) images {
	all := images{root: snap.DiskPath()}
	for i, path := range snapshot.DiskPaths(snap.Dir(), snap.Data)[1:] {
		all.data = append(all.data, machine.BootDisk{DataDisk: snap.Data[i], Path: path})
	}
	return all
}

// Start is a program that runs in the snapshot of a template, and so in every machine of it.
type Start struct {
	Name string // for people
	Spec guestapi.ProcessSpec
}

// generation returns the name of a baked result, a digest of the recipe, its programs and the platform.
func (r Recipe) generation(platform string) string {
	text := r.Digest + "\n" + platform
	if len(r.Start) > 0 {
		data, err := json.Marshal(r.Start)
		if err != nil { // structs of strings, numbers and maps of strings always marshal
			return ""
		}
		text += "\n" + string(data)
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// machineID returns the id of the machine that bakes a template, one at a time.
func (r Recipe) machineID() hostapi.MachineID {
	sum := sha256.Sum256([]byte(r.Name))
	return hostapi.MachineID("bake" + hex.EncodeToString(sum[:8]))
}
