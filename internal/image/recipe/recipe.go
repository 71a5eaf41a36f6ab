// Package recipe describes the content of a template in a small YAML file.
//
// It owns the format: every field, its limits and its default, the parameters of a recipe file and its variants. It
// builds nothing. Load refuses fields that it does not know and reports every problem at once, with field and remedy.
// Recipes are values that do not change after loading.
package recipe

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v4"
)

// Recipe describes the content of a template.
type Recipe struct {
	Name        string   `yaml:"name"` // lower-case letters, digits, dots and dashes
	Description string   `yaml:"description"`
	Aliases     []string `yaml:"aliases"` // other names of this template
	Hidden      bool     `yaml:"hidden"`  // not listed to users, but usable by name
	VCPUs       int      `yaml:"vcpus"`
	MemoryMiB   int      `yaml:"memory_mib"`
	DiskMiB     int      `yaml:"disk_mib"` // size as the guest sees it; space is allocated on use
	// Disks are the data disks, /dev/vdb and on. Their content is that of the mount point after Setup.
	Disks   []Disk   `yaml:"disks" json:",omitempty"`
	Limits  Limits   `yaml:"limits" json:"-"` // of its sandboxes; a change needs no new image
	User    string   `yaml:"user"`            // default user of commands; made with uid 1000 unless it is root
	Workdir string   `yaml:"workdir"`         // default working directory of commands
	Tools   []string `yaml:"tools"`           // tools that a user finds in it, for lists

	Distribution Distribution `yaml:"distribution"`
	// Parts are added to the root file system in order, after its packages and before Setup.
	Parts []Part `yaml:"parts"`
	// Setup holds shell commands, run in order as root in the new root file system, without a network.
	Setup []string `yaml:"setup"`
	// Start holds programs that stay running in the template, started in order in the booted guest.
	Start []Start `yaml:"start"`
	// Ready is a shell command, run as root in the booted guest, that succeeds once the guest is usable.
	Ready string   `yaml:"ready"`
	Warm  []string `yaml:"warm"` // shell commands run as User before the capture; they must succeed

	// Needs are the names of parameters without a default value; Missing lists those without any value.
	Needs []string `yaml:"needs"`
	// Missing are the parameters in Needs that have no value. The template cannot be built while it is not empty.
	Missing []string `yaml:"-"`
	// Params are the names of the recipe file's parameters, in order. Load fills them in.
	Params []string `yaml:"-"`
	// Files are the files beside the recipe that it may use, by name. Load fills them in. CheckFile among them is the
	// template's own test.
	Files map[string][]byte `yaml:"-"`
}

// Limits limit the I/O of a sandbox per second, and its connections; 0 is the node's limit.
type Limits struct {
	DiskMiB        int `yaml:"disk_mib"` // of each disk
	DiskOps        int `yaml:"disk_ops"` // of each disk
	NetworkInMbit  int `yaml:"network_in_mbit"`
	NetworkOutMbit int `yaml:"network_out_mbit"`
	Connections    int `yaml:"connections"` // at once
	NewConnections int `yaml:"new_connections"`
}

// CheckFile is the name of the script beside a recipe that tests the template inside a guest.
const (
	CheckFile = "check"
	CheckPath = "/usr/local/lib/pandastack/check"
)

// Distribution describes the packages of the root file system, and their source.
type Distribution struct {
	Suite  string `yaml:"suite"`  // "bookworm"; empty: the host's own
	Mirror string `yaml:"mirror"` // http(s) address; empty: the host's own sources of that suite
	// File on the host with the keys that sign Mirror; empty: those the host trusts.
	Keyring    string   `yaml:"keyring"`
	Variant    string   `yaml:"variant"` // of mmdebstrap: minbase, essential, apt, important, standard
	Components []string `yaml:"components"`
	Packages   []string `yaml:"packages"`
	Extra      []Source `yaml:"extra"` // package sources in addition to those of Suite
}

// Source is a package source of a project other than the distribution.
type Source struct {
	Mirror     string   `yaml:"mirror"` // http(s) address
	Suite      string   `yaml:"suite"`
	Components []string `yaml:"components"`
	Keyring    string   `yaml:"keyring"` // file on the host with the keys that sign it; empty: those the host trusts
}

// Disk is a data disk: an ext4 file system of its own in every machine of the template.
type Disk struct {
	Name    string   `yaml:"name"`     // a lower-case letter, then lower-case letters and digits, at most 16
	SizeMiB int      `yaml:"size_mib"` // size as the guest sees it; space is allocated on use
	Mount   string   `yaml:"mount"`    // absolute path of its mount point in the guest
	Options []string `yaml:"options"`  // mount options, such as noatime
	Owner   string   `yaml:"owner"`    // user[:group] of its root directory; empty: as Setup leaves it
}

// Part is content from outside the distribution's packages. Exactly one of NPM, PyPI, Go and File is set. Content of
// a registry comes through the host's own npm, pip or go, with their configuration.
type Part struct {
	NPM     string `yaml:"npm"`     // package, such as "@scope/name"; unpacked, none of its scripts run
	PyPI    string `yaml:"pypi"`    // file beside the recipe with pinned wheels and their hashes, for pip
	Go      string `yaml:"go"`      // module, such as "golang.org/toolchain"; unpacked
	File    string `yaml:"file"`    // file beside the recipe
	Version string `yaml:"version"` // of NPM or Go
	// Hash is the expected hash: for NPM the registry's integrity ("sha512-..."), for Go the module's sum ("h1:...").
	// If it is empty, the check by the host's program has to suffice.
	Hash string `yaml:"hash"`
	// To is the absolute path of the directory, or of the file for File. For PyPI, empty means the guest's own Python.
	To   string `yaml:"to"`
	Exec bool   `yaml:"exec"` // File is a program
}

// Start is a program that stays running in the template and so in every machine made of it. Exactly one of Command
// and Context is set.
type Start struct {
	Name    string `yaml:"name"`
	Command string `yaml:"command"` // shell command: the program itself, not a service in the background
	Context string `yaml:"context"` // language of a context for code cells, such as "python"
	// Fork is true for the process that runs each cell without a context in a copy of itself. Context is python then.
	Fork bool              `yaml:"fork"`
	User string            `yaml:"user"` // empty: the recipe's
	Dir  string            `yaml:"dir"`  // empty: the recipe's Workdir
	Env  map[string]string `yaml:"env"`
}

// MaxBytes is the maximum size of a recipe file.
const MaxBytes = 64 << 10

// Parse parses a recipe, fills in defaults and validates it.
func Parse(data []byte) (Recipe, error) {
	if len(data) > MaxBytes {
		return Recipe{}, fmt.Errorf("recipe has %d bytes, at most %d are allowed", len(data), MaxBytes)
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

// Home returns the home directory of the recipe's user in the guest.
func (r Recipe) Home() string {
	if r.User == "root" {
		return "/root"
	}
	return "/home/" + r.User
}

// Base returns the name of the distribution that the template starts from, for display.
func (r Recipe) Base() string {
	if r.Distribution.Suite == "" {
		return "debian"
	}
	return "debian " + r.Distribution.Suite
}

// imageFormat is the version of the build. It is increased when the same recipe builds into something different, so
// that templates are baked again.
const imageFormat = 3

// Digest returns the digest, in hexadecimal, of all fields that the baked result depends on.
//
// It does not cover name, description, aliases and tools, which are only displayed.
func (r Recipe) Digest() string {
	r.Name, r.Description, r.Aliases, r.Tools, r.Hidden = "", "", nil, nil, false
	r.Params, r.Needs, r.Missing = nil, nil, nil
	data, err := json.Marshal(r)
	if err != nil { // a struct of strings and numbers always marshals
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", imageFormat, data))
	return hex.EncodeToString(sum[:])
}
