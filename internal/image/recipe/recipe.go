// Package recipe says what a template is made of, in a small YAML file.
//
// It owns the format: every field, its bounds and its default, the parameters of a recipe file and its
// variants. It builds nothing. Load refuses what it does not fully understand and names every problem at
// once, with field and remedy. Recipes are values; nobody changes one after it was loaded.
package recipe

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v4"
)

// Recipe is what a template is made of.
type Recipe struct {
	Name        string   `yaml:"name"` // lower-case letters, digits, dots and dashes
	Description string   `yaml:"description"`
	Aliases     []string `yaml:"aliases"` // other names that mean this template
	Hidden      bool     `yaml:"hidden"`  // not listed to users; can be used by name
	VCPUs       int      `yaml:"vcpus"`
	MemoryMiB   int      `yaml:"memory_mib"`
	DiskMiB     int      `yaml:"disk_mib"` // size the guest sees; space is taken as it is used
	// Disks are beside the root disk, /dev/vdb and on. What is at the mount point after Setup is their content.
	Disks   []Disk   `yaml:"disks" json:",omitempty"`
	Limits  Limits   `yaml:"limits" json:"-"` // of its sandboxes; a change needs no new image
	User    string   `yaml:"user"`            // whom commands run as by default; made with uid 1000 unless it is root
	Workdir string   `yaml:"workdir"`         // where they run
	Tools   []string `yaml:"tools"`           // what a user finds in it, for lists

	Distribution Distribution `yaml:"distribution"`
	Parts        []Part       `yaml:"parts"` // put into the root file system in order, after its packages and before Setup
	Setup        []string     `yaml:"setup"` // shell commands, run in order as root in the new root file system, without a network
	Start        []Start      `yaml:"start"` // programs that run on in the template, started in order in the booted guest
	Ready        string       `yaml:"ready"` // shell command, run as root in the booted guest, that succeeds once it can be used
	Warm         []string     `yaml:"warm"`  // shell commands run as User before the capture; they must succeed

	// Needs are the names of parameters that have no value of their own; Missing tells those without one.
	Needs []string `yaml:"needs"`
	// Missing are the parameters in Needs that have no value. Nothing can be built while there are any.
	Missing []string `yaml:"-"`
	// Params are the names of the parameters that the recipe file has, in order. Load fills them in.
	Params []string `yaml:"-"`
	// Files are those beside the recipe that it may use, by name. Load fills them in. CheckFile among them
	// is the template's own proof.
	Files map[string][]byte `yaml:"-"`
}

// Limits bound what a sandbox may move each second; 0 is as much as the node lets every sandbox.
type Limits struct {
	DiskMiB        int `yaml:"disk_mib"` // of each disk
	DiskOps        int `yaml:"disk_ops"` // of each disk
	NetworkInMbit  int `yaml:"network_in_mbit"`
	NetworkOutMbit int `yaml:"network_out_mbit"`
}

// CheckFile is the script beside a recipe that proves in a guest that its template does what it promises,
// and CheckPath is where the guest finds it.
const (
	CheckFile = "check"
	CheckPath = "/usr/local/lib/pandastack/check"
)

// Distribution says which packages make the root file system, and from where.
type Distribution struct {
	Suite      string   `yaml:"suite"`   // "bookworm"; empty: the host's own
	Mirror     string   `yaml:"mirror"`  // http(s) address; empty: the host's own sources of that suite
	Keyring    string   `yaml:"keyring"` // file on the host with the keys that sign Mirror; empty: those the host trusts
	Variant    string   `yaml:"variant"` // of mmdebstrap: minbase, essential, apt, important, standard
	Components []string `yaml:"components"`
	Packages   []string `yaml:"packages"`
	Extra      []Source `yaml:"extra"` // package sources beside those of Suite
}

// Source is a package source of another project than the distribution.
type Source struct {
	Mirror     string   `yaml:"mirror"` // http(s) address
	Suite      string   `yaml:"suite"`
	Components []string `yaml:"components"`
	Keyring    string   `yaml:"keyring"` // file on the host with the keys that sign it; empty: those the host trusts
}

// Disk is a data disk: a file system of its own, ext4, in every machine of the template.
type Disk struct {
	Name    string   `yaml:"name"`     // a lower-case letter, then those and digits, at most 16
	SizeMiB int      `yaml:"size_mib"` // size the guest sees; space is taken as it is used
	Mount   string   `yaml:"mount"`    // where the guest has it; an absolute path
	Options []string `yaml:"options"`  // of mounting it, such as noatime
	Owner   string   `yaml:"owner"`    // user[:group] of its root directory; empty: as Setup leaves it
}

// Part is something beside the distribution's packages. Exactly one of NPM, PyPI, Go and File is set. What
// comes from a registry comes through the host's own npm, pip or go, as they are configured there.
type Part struct {
	NPM     string `yaml:"npm"`     // package, such as "@scope/name"; unpacked, nothing of it is run
	PyPI    string `yaml:"pypi"`    // file beside the recipe with pinned wheels and their hashes, for pip
	Go      string `yaml:"go"`      // module, such as "golang.org/toolchain"; unpacked
	File    string `yaml:"file"`    // file beside the recipe
	Version string `yaml:"version"` // of NPM or Go
	// Hash is what must come: of NPM the registry's integrity ("sha512-..."), of Go the module's sum
	// ("h1:..."). Empty: what the host's program has checked is believed.
	Hash string `yaml:"hash"`
	To   string `yaml:"to"`   // absolute path of the directory, of File the file; of PyPI empty: the guest's own Python
	Exec bool   `yaml:"exec"` // File is a program
}

// Start is a program that runs on in the template and so in every machine made of it. Exactly one of
// Command and Context is set.
type Start struct {
	Name    string            `yaml:"name"`
	Command string            `yaml:"command"` // shell command, the program itself and not a service in the background
	Context string            `yaml:"context"` // language of a context for cells of code, such as "python"
	User    string            `yaml:"user"`    // empty: the recipe's
	Dir     string            `yaml:"dir"`     // empty: the recipe's Workdir
	Env     map[string]string `yaml:"env"`
}

// MaxBytes is the largest recipe file that is read.
const MaxBytes = 64 << 10

// Parse reads a recipe, fills in defaults and checks it.
func Parse(data []byte) (Recipe, error) {
	if len(data) > MaxBytes {
		return Recipe{}, fmt.Errorf("recipe has %d bytes; at most %d are read", len(data), MaxBytes)
	}
	r := Recipe{
		VCPUs: 1, MemoryMiB: 512, DiskMiB: 4096, User: "user",
		Distribution: Distribution{Variant: "minbase", Components: []string{"main"}},
	}
	if err := yaml.Load(data, &r, yaml.WithKnownFields()); err != nil {
		return Recipe{}, fmt.Errorf("recipe: %w", err)
	}
	if r.Workdir == "" {
		r.Workdir = r.Home()
	}
	for i := range r.Start {
		s := &r.Start[i]
		s.User, s.Dir = cmp.Or(s.User, r.User), cmp.Or(s.Dir, r.Workdir)
	}
	if err := r.check(); err != nil {
		return Recipe{}, err
	}
	return r, nil
}

// Home is the home directory of the recipe's user in the guest.
func (r Recipe) Home() string {
	if r.User == "root" {
		return "/root"
	}
	return "/home/" + r.User
}

// Base names what the template starts from, for people.
func (r Recipe) Base() string {
	if r.Distribution.Suite == "" {
		return "debian"
	}
	return "debian " + r.Distribution.Suite
}

// imageFormat counts the ways in which the same recipe was built into something different: what is baked
// already is baked again when it changes.
const imageFormat = 3

// Digest changes whenever anything does that the baked result depends on: name, description, aliases
// and tools are only shown. Hexadecimal.
func (r Recipe) Digest() string {
	r.Name, r.Description, r.Aliases, r.Tools, r.Hidden, r.Params, r.Needs, r.Missing = "", "", nil, nil, false, nil, nil, nil
	data, err := json.Marshal(r)
	if err != nil { // a struct of strings and numbers always marshals
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", imageFormat, data))
	return hex.EncodeToString(sum[:])
}
