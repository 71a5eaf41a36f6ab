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

// Recipe is what a template is made of, as far as it matters here.
type Recipe struct {
	Name        hostapi.TemplateName
	Aliases     []string // other names that mean this template
	Hidden      bool     // in no list that users see
	Description string
	Base        string
	VCPUs       int
	MemoryMiB   int
	DiskMiB     int
	Disks       []snapshot.DataDisk // beside the root disk; MiB is as of the images
	User        string
	Workdir     string
	Tools       []string
	Limits      hostapi.Limits // of its machines
	Start       []Start        // programs that run on in the template, started in order before Ready is asked
	Ready       string         // shell command that succeeds in the guest once it can be used; "": at once
	Check       string         // shell command, run as User once the guest is ready; it proves that the template does what it promises
	Warm        []string       // shell commands, run as User before the capture
	Scrub       bool           // before the warm-up, drop what the check left in memory and fill what is free with zeros
	Digest      string         // of all that the root image depends on
	Env         map[string]string
	// spec is set of a published template, which has disk in place of Build.
	spec *spec
	// disk gives the images to boot copies of, and what to call when they were copied.
	disk func(ctx context.Context) (from images, release func() error, err error)
	// Build makes the root image, a raw file that does not exist yet, and those of Disks, which DataImage names. work is a directory of its own on
	// the same file system. It tells log each line, and step when "rootfs" and "image" begin. When it
	// fails there is no image.
	Build func(ctx context.Context, work, image string, log, step func(string)) error
}

// DataImage is the path of a data disk's image beside that of the root image.
func DataImage(image, name string) string { return image + dataSeparator + name }

// images are what a machine that boots cold has as disks.
type images struct {
	root string
	data []machine.BootDisk
}

// recipeImages are the images of disks by the path of the root's.
func recipeImages(root string, disks []snapshot.DataDisk) images {
	all := images{root: root}
	for _, d := range disks {
		all.data = append(all.data, machine.BootDisk{DataDisk: d, Path: DataImage(root, d.Name)})
	}
	return all
}

// snapshotImages are the disks of a snapshot.
func snapshotImages(snap snapshot.Snapshot) images {
	all := images{root: snap.DiskPath()}
	for i, path := range snapshot.DiskPaths(snap.Dir(), snap.Data)[1:] {
		all.data = append(all.data, machine.BootDisk{DataDisk: snap.Data[i], Path: path})
	}
	return all
}

// Start is a program that a template keeps running: it is in the snapshot, and in every machine made of it.
type Start struct {
	Name string // for people
	Spec guestapi.ProcessSpec
}

// generation names a baked result: by recipe, by the programs that run in it, and by what boots and runs it.
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

// machineID is the machine that bakes a template: there is one at a time.
func (r Recipe) machineID() hostapi.MachineID {
	sum := sha256.Sum256([]byte(r.Name))
	return hostapi.MachineID("bake" + hex.EncodeToString(sum[:8]))
}
