// Package recipe says what a template is made of, in a small YAML file.
//
// It owns the format: every field, its bounds and its default. It builds nothing. Parse refuses what it
// does not fully understand and names every problem at once, with field and remedy. Recipes are values;
// nobody changes one after it was parsed.
package recipe

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"

	"github.com/pandastack/pandastack/templates"
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
	User        string   `yaml:"user"`     // whom commands run as by default; made with uid 1000 unless it is root
	Workdir     string   `yaml:"workdir"`  // where they run
	Tools       []string `yaml:"tools"`    // what a user finds in it, for lists

	Distribution Distribution `yaml:"distribution"`
	Setup        []string     `yaml:"setup"` // shell commands, run in order as root in the new root file system
	Ready        string       `yaml:"ready"` // shell command in the booted guest that succeeds once it can be used
	Warm         []string     `yaml:"warm"`  // shell commands run as User before the capture; they must succeed
}

// Distribution says which packages make the root file system, and from where.
type Distribution struct {
	Suite      string   `yaml:"suite"`   // "bookworm"; empty: the host's own
	Mirror     string   `yaml:"mirror"`  // http(s) address; empty: the host's own sources of that suite
	Variant    string   `yaml:"variant"` // of mmdebstrap: minbase, essential, apt, important, standard
	Components []string `yaml:"components"`
	Packages   []string `yaml:"packages"`
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
const imageFormat = 2

// Digest changes whenever anything does that the baked result depends on: name, description, aliases
// and tools are only shown. Hexadecimal.
func (r Recipe) Digest() string {
	r.Name, r.Description, r.Aliases, r.Tools, r.Hidden = "", "", nil, nil, false
	data, err := json.Marshal(r)
	if err != nil { // a struct of strings and numbers always marshals
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", imageFormat, data))
	return hex.EncodeToString(sum[:])
}

// Builtin gives the recipes that come with the program, by name.
func Builtin() (map[string]Recipe, error) { return Load(templates.Files) }

// Load reads <name>/recipe.yaml of every directory of a file system and checks that names and aliases
// mean one template each.
func Load(files fs.FS) (map[string]Recipe, error) {
	paths, err := fs.Glob(files, "*/recipe.yaml")
	if err != nil {
		return nil, err
	}
	all := map[string]Recipe{}
	var problems error
	for _, p := range paths {
		data, err := fs.ReadFile(files, p)
		if err == nil {
			var r Recipe
			if r, err = Parse(data); err == nil && r.Name != path.Dir(p) {
				err = fmt.Errorf("recipe %s names itself %q; name and directory must be the same", p, r.Name)
			}
			all[path.Dir(p)] = r
		}
		if err != nil {
			problems = errors.Join(problems, fmt.Errorf("%s: %w", p, err))
		}
	}
	if problems == nil {
		problems = unique(all)
	}
	if problems != nil {
		return nil, problems
	}
	return all, nil
}

func unique(all map[string]Recipe) error {
	owner := map[string]string{}
	var problems error
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, n := range append([]string{name}, all[name].Aliases...) {
			if o, taken := owner[n]; taken {
				problems = errors.Join(problems, fmt.Errorf("%q names both template %s and template %s; remove one of them from aliases", n, o, name))
			}
			owner[n] = name
		}
	}
	return problems
}

// Resolve finds a recipe by name or alias.
func Resolve(all map[string]Recipe, name string) (Recipe, bool) {
	if r, ok := all[name]; ok {
		return r, true
	}
	for _, r := range all {
		if slices.Contains(r.Aliases, name) {
			return r, true
		}
	}
	return Recipe{}, false
}
