package bake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/pandastack/pandastack/internal/guestapi"
	"github.com/pandastack/pandastack/internal/hostapi"
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
	User        string
	Workdir     string
	Tools       []string
	Start       []Start  // programs that run on in the template, started in order before Ready is asked
	Ready       string   // shell command that succeeds in the guest once it can be used; "": at once
	Check       string   // shell command, run as User once the guest is ready; it proves that the template does what it promises
	Warm        []string // shell commands, run as User before the capture
	Scrub       bool     // before the warm-up, drop what the check left in memory and fill what is free with zeros
	Digest      string   // of all that the root image depends on
	Env         map[string]string
	// spec is set of a published template, which has disk in place of Build.
	spec *hostapi.Publish
	// disk gives the image to boot a copy of, and what to call when it was copied.
	disk func(ctx context.Context) (path string, release func() error, err error)
	// Build makes the root image, a raw file that does not exist yet. work is a directory of its own on
	// the same file system. It tells log each line, and step when "rootfs" and "image" begin. When it
	// fails there is no image.
	Build func(ctx context.Context, work, image string, log, step func(string)) error
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
