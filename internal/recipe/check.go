package recipe

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Bounds of a recipe. They keep a mistyped number from asking for a whole host.
const (
	maxVCPUs     = 32
	minMemoryMiB = 64
	maxMemoryMiB = 256 << 10
	minDiskMiB   = 128
	maxDiskMiB   = 2 << 20
	maxList      = 500
	maxCommand   = 8 << 10
)

var (
	nameForm    = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
	userForm    = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
	packageForm = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?([=/][A-Za-z0-9.+:~-]+)?$`)
	wordForm    = regexp.MustCompile(`^[a-z0-9][a-z0-9./-]{0,63}$`)
	variants    = []string{"minbase", "essential", "apt", "important", "standard"}
)

// checker collects problems, so that a person mends a recipe once.
type checker struct{ problems []error }

func (c *checker) that(ok bool, field, format string, args ...any) {
	if !ok {
		c.problems = append(c.problems, fmt.Errorf("recipe: %s: %s", field, fmt.Sprintf(format, args...)))
	}
}

func (c *checker) between(n, low, high int, field string) {
	c.that(n >= low && n <= high, field, "is %d; give a number from %d to %d", n, low, high)
}

func (c *checker) commands(list []string, field string) {
	c.that(len(list) <= maxList, field, "has %d entries; at most %d are allowed", len(list), maxList)
	for i, cmd := range list {
		c.command(cmd, fmt.Sprintf("%s[%d]", field, i))
	}
}

func (c *checker) command(cmd, field string) {
	c.that(strings.TrimSpace(cmd) != "", field, "is empty; give a shell command or leave the entry out")
	c.that(len(cmd) <= maxCommand, field, "has %d bytes; at most %d are allowed, put a longer script into a file", len(cmd), maxCommand)
	c.that(!strings.ContainsRune(cmd, 0), field, "holds a NUL byte")
}

func (r Recipe) check() error {
	var c checker
	c.that(nameForm.MatchString(r.Name), "name", "is %q; give lower-case letters, digits, dots and dashes, at most 63", r.Name)
	for i, a := range r.Aliases {
		c.that(nameForm.MatchString(a), fmt.Sprintf("aliases[%d]", i), "is %q; give lower-case letters, digits, dots and dashes, at most 63", a)
	}
	c.that(len(r.Description) <= 500, "description", "has %d bytes; at most 500 are allowed", len(r.Description))
	c.that(len(r.Aliases) <= 20 && len(r.Tools) <= 100, "aliases, tools", "have too many entries; at most 20 and 100 are allowed")
	c.between(r.VCPUs, 1, maxVCPUs, "vcpus")
	c.between(r.MemoryMiB, minMemoryMiB, maxMemoryMiB, "memory_mib")
	c.between(r.DiskMiB, minDiskMiB, maxDiskMiB, "disk_mib")
	c.that(userForm.MatchString(r.User), "user", "is %q; give a Unix user name such as user, or root", r.User)
	c.that(path.IsAbs(r.Workdir) && path.Clean(r.Workdir) == r.Workdir && len(r.Workdir) < 1024,
		"workdir", "is %q; give an absolute path without . and ..", r.Workdir)
	r.Distribution.check(&c)
	c.commands(r.Setup, "setup")
	c.commands(r.Warm, "warm")
	if r.Ready != "" {
		c.command(r.Ready, "ready")
	}
	return errors.Join(c.problems...)
}

func (d Distribution) check(c *checker) {
	c.that(d.Suite == "" || wordForm.MatchString(d.Suite), "distribution.suite", "is %q; give a suite such as bookworm, or leave it out", d.Suite)
	if d.Mirror != "" {
		u, err := url.Parse(d.Mirror)
		ok := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && !strings.ContainsAny(d.Mirror, " \t\n[]")
		c.that(ok, "distribution.mirror", "is %q; give an http or https address, or leave it out", d.Mirror)
		c.that(d.Suite != "", "distribution.suite", "is empty; a mirror needs a suite")
	}
	c.that(slices.Contains(variants, d.Variant), "distribution.variant", "is %q; give one of %s", d.Variant, strings.Join(variants, ", "))
	c.that(len(d.Components) > 0 && len(d.Components) <= 10, "distribution.components", "has %d entries; give one to ten, such as main", len(d.Components))
	for i, w := range d.Components {
		c.that(wordForm.MatchString(w), fmt.Sprintf("distribution.components[%d]", i), "is %q; give a word such as main", w)
	}
	c.that(len(d.Packages) <= maxList, "distribution.packages", "has %d entries; at most %d are allowed", len(d.Packages), maxList)
	for i, p := range d.Packages {
		c.that(packageForm.MatchString(p), fmt.Sprintf("distribution.packages[%d]", i), "is %q; give the name of a package", p)
	}
}
