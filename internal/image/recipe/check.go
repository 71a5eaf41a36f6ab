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

// Limits of a recipe. They keep a mistyped number from claiming a whole host.
const (
	maxVCPUs     = 32
	minMemoryMiB = 64
	maxMemoryMiB = 256 << 10
	minDiskMiB   = 128
	minDataMiB   = 32 // room for the journal
	maxDiskMiB   = 2 << 20
	maxLimit     = 1_000_000
	maxList      = 500
	maxCommand   = 8 << 10
	maxStart     = 20
	maxDisks     = 8
)

var (
	nameForm    = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
	userForm    = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
	packageForm = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?([=/][A-Za-z0-9.+:~-]+)?$`)
	wordForm    = regexp.MustCompile(`^[a-z0-9][a-z0-9./-]{0,63}$`)
	npmForm     = regexp.MustCompile(`^(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*$`)
	moduleForm  = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)+$`)
	versionForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.+_-]{0,99}$`)
	fileForm    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
	diskForm    = regexp.MustCompile(`^[a-z][a-z0-9]{0,15}$`)
	optionForm  = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}(=[a-z0-9_-]{1,32})?$`)
	ownerForm   = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}(:[a-z_][a-z0-9_-]{0,31})?$`)
	envForm     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,99}$`)
	variants    = []string{"minbase", "essential", "apt", "important", "standard"}
)

// checker collects problems, so that a person sees all of them at once.
type checker struct{ problems []error }

func (c *checker) require(ok bool, field, format string, args ...any) {
	if !ok {
		c.problems = append(c.problems, fmt.Errorf("recipe: %s: %s", field, fmt.Sprintf(format, args...)))
	}
}

func (c *checker) between(n, low, high int, field string) {
	c.require(n >= low && n <= high, field, "is %d; give a number from %d to %d", n, low, high)
}

func (c *checker) commands(list []string, field string) {
	c.require(len(list) <= maxList, field, "has %d entries; at most %d are allowed", len(list), maxList)
	for i, cmd := range list {
		c.command(cmd, fmt.Sprintf("%s[%d]", field, i))
	}
}

func (c *checker) command(cmd, field string) {
	c.require(strings.TrimSpace(cmd) != "", field, "is empty; give a shell command or leave the entry out")
	c.require(
		len(cmd) <= maxCommand,
		field,
		"has %d bytes; at most %d are allowed, put a longer script into a file",
		len(cmd),
		maxCommand,
	)
	c.require(!strings.ContainsRune(cmd, 0), field, "holds a NUL byte")
}

func (c *checker) mirror(text, field string) {
	u, err := url.Parse(text)
	ok := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" &&
		!strings.ContainsAny(text, " \t\n[]")
	c.require(text == "" || ok, field, "is %q; give an http or https address, or leave it out", text)
}

func (c *checker) keyring(path, field string) {
	ok := strings.HasPrefix(path, "/") && !strings.ContainsAny(path, " \t\n[]")
	c.require(path == "" || ok, field, "is %q; give an absolute path, or leave it out", path)
}

func (r Recipe) check() error {
	var c checker
	c.require(
		nameForm.MatchString(r.Name),
		"name",
		"is %q; give lower-case letters, digits, dots and dashes, at most 63",
		r.Name,
	)
	for i, a := range r.Aliases {
		c.require(
			nameForm.MatchString(a),
			fmt.Sprintf("aliases[%d]", i),
			"is %q; give lower-case letters, digits, dots and dashes, at most 63",
			a,
		)
	}
	c.require(len(r.Description) <= 500, "description", "has %d bytes; at most 500 are allowed", len(r.Description))
	c.require(
		len(r.Aliases) <= 20 && len(r.Tools) <= 100,
		"aliases, tools",
		"have too many entries; at most 20 and 100 are allowed",
	)
	c.between(r.VCPUs, 1, maxVCPUs, "vcpus")
	c.between(r.MemoryMiB, minMemoryMiB, maxMemoryMiB, "memory_mib")
	c.between(r.DiskMiB, minDiskMiB, maxDiskMiB, "disk_mib")
	c.require(userForm.MatchString(r.User), "user", "is %q; give a Unix user name such as user, or root", r.User)
	c.require(path.IsAbs(r.Workdir) && path.Clean(r.Workdir) == r.Workdir && len(r.Workdir) < 1024,
		"workdir", "is %q; give an absolute path without . and ..", r.Workdir)
	c.between(r.Limits.DiskMiB, 0, maxLimit, "limits.disk_mib")
	c.between(r.Limits.DiskOps, 0, maxLimit, "limits.disk_ops")
	c.between(r.Limits.NetworkInMbit, 0, maxLimit, "limits.network_in_mbit")
	c.between(r.Limits.NetworkOutMbit, 0, maxLimit, "limits.network_out_mbit")
	c.between(r.Limits.Connections, 0, maxLimit, "limits.connections")
	c.between(r.Limits.NewConnections, 0, maxLimit, "limits.new_connections")
	r.checkDisks(&c)
	r.Distribution.check(&c)
	c.require(
		len(r.Parts) <= maxList && len(r.Start) <= maxStart,
		"parts, start",
		"have too many entries; at most %d and %d are allowed",
		maxList,
		maxStart,
	)
	for i, p := range r.Parts {
		p.check(&c, fmt.Sprintf("parts[%d]", i))
	}
	for i, s := range r.Start {
		s.check(&c, fmt.Sprintf("start[%d]", i))
	}
	c.commands(r.Setup, "setup")
	c.commands(r.Warm, "warm")
	if r.Ready != "" {
		c.command(r.Ready, "ready")
	}
	return errors.Join(c.problems...)
}

func (d Distribution) check(c *checker) {
	c.require(
		d.Suite == "" || wordForm.MatchString(d.Suite),
		"distribution.suite",
		"is %q; give a suite such as bookworm, or leave it out",
		d.Suite,
	)
	c.mirror(d.Mirror, "distribution.mirror")
	c.require(d.Mirror == "" || d.Suite != "", "distribution.suite", "is empty; a mirror needs a suite")
	c.keyring(d.Keyring, "distribution.keyring")
	for i, e := range d.Extra {
		field := fmt.Sprintf("distribution.extra[%d]", i)
		c.mirror(e.Mirror, field+".mirror")
		c.keyring(e.Keyring, field+".keyring")
		c.require(e.Suite == "" || wordForm.MatchString(e.Suite), field+".suite", "is %q; give a suite", e.Suite)
		for _, w := range e.Components {
			c.require(wordForm.MatchString(w), field+".components", "has %q; give words such as main", w)
		}
	}
	c.require(
		slices.Contains(variants, d.Variant),
		"distribution.variant",
		"is %q; give one of %s",
		d.Variant,
		strings.Join(variants, ", "),
	)
	c.require(
		len(d.Components) > 0 && len(d.Components) <= 10,
		"distribution.components",
		"has %d entries; give one to ten, such as main",
		len(d.Components),
	)
	for i, w := range d.Components {
		c.require(
			wordForm.MatchString(w),
			fmt.Sprintf("distribution.components[%d]", i),
			"is %q; give a word such as main",
			w,
		)
	}
	c.require(
		len(d.Packages) <= maxList,
		"distribution.packages",
		"has %d entries; at most %d are allowed",
		len(d.Packages),
		maxList,
	)
	for i, p := range d.Packages {
		c.require(
			packageForm.MatchString(p),
			fmt.Sprintf("distribution.packages[%d]", i),
			"is %q; give the name of a package",
			p,
		)
	}
}

func (r Recipe) checkDisks(c *checker) {
	c.require(len(r.Disks) <= maxDisks, "disks", "has %d entries; at most %d are allowed", len(r.Disks), maxDisks)
	for i, d := range r.Disks {
		field := fmt.Sprintf("disks[%d]", i)
		c.require(
			diskForm.MatchString(d.Name),
			field+".name",
			"is %q; give a lower-case letter, then those and digits, at most 16",
			d.Name,
		)
		c.between(d.SizeMiB, minDataMiB, maxDiskMiB, field+".size_mib")
		ok := path.IsAbs(d.Mount) && path.Clean(d.Mount) == d.Mount && d.Mount != "/" && len(d.Mount) < 1024 &&
			!strings.ContainsAny(d.Mount, " \t\n\\")
		c.require(ok, field+".mount", "is %q; give an absolute path without . and .. and spaces", d.Mount)
		for _, o := range d.Options {
			c.require(optionForm.MatchString(o), field+".options", "has %q; give words such as noatime or commit=30", o)
		}
		c.require(
			d.Owner == "" || ownerForm.MatchString(d.Owner),
			field+".owner",
			"is %q; give user or user:group, or leave it out",
			d.Owner,
		)
		for _, o := range r.Disks[:i] {
			c.require(o.Name != d.Name, field+".name", "is %q, as another's; give each its own", d.Name)
			c.require(
				!within(o.Mount, d.Mount) && !within(d.Mount, o.Mount),
				field+".mount",
				"is %q, which is in another's or holds it",
				d.Mount,
			)
		}
	}
}

// within reports whether path a is b or below it.
func within(a, b string) bool { return strings.HasPrefix(a+"/", b+"/") }

func (p Part) check(c *checker, field string) {
	kinds := 0
	for _, k := range []string{p.NPM, p.PyPI, p.Go, p.File} {
		if k != "" {
			kinds++
		}
	}
	c.require(kinds == 1, field, "says %d of npm, pypi, go and file; give one", kinds)
	absolute := path.IsAbs(p.To) && path.Clean(p.To) == p.To && p.To != "/" && len(p.To) < 1024
	c.require(absolute || p.To == "" && p.PyPI != "", field+".to", "is %q; give an absolute path without . and ..",
		p.To)
	c.require(p.NPM == "" || npmForm.MatchString(p.NPM), field+".npm", "is %q; give the name of a package", p.NPM)
	c.require(p.Go == "" || moduleForm.MatchString(p.Go), field+".go", "is %q; give the path of a module", p.Go)
	c.require(
		p.NPM == "" && p.Go == "" || versionForm.MatchString(p.Version),
		field+".version",
		"is %q; give the one version to take",
		p.Version,
	)
	prefix := map[bool]string{true: "sha512-", false: "h1:"}[p.NPM != ""]
	c.require(
		p.Hash == "" || p.NPM+p.Go != "" && strings.HasPrefix(p.Hash, prefix),
		field+".hash",
		"is %q; give %s..., or leave it out",
		p.Hash,
		prefix,
	)
	for _, name := range []string{p.PyPI, p.File} {
		c.require(
			name == "" || fileForm.MatchString(name),
			field,
			"is %q; give the name of a file beside the recipe",
			name,
		)
	}
}

func (s Start) check(c *checker, field string) {
	c.require(fileForm.MatchString(s.Name), field+".name", "is %q; give letters, digits, dots and dashes", s.Name)
	c.require((s.Command == "") != (s.Context == ""), field, "says both or none of command and context; give one")
	if s.Command != "" {
		c.command(s.Command, field+".command")
	}
	c.require(
		s.Context == "" || wordForm.MatchString(s.Context),
		field+".context",
		"is %q; give a language such as python",
		s.Context,
	)
	c.require(!s.Fork || s.Context == "python", field+".fork", "needs the context python")
	c.require(userForm.MatchString(s.User), field+".user", "is %q; give a Unix user name such as user, or root", s.User)
	c.require(path.IsAbs(s.Dir), field+".dir", "is %q; give an absolute path", s.Dir)
	for name, value := range s.Env {
		c.require(
			envForm.MatchString(name) && !strings.ContainsRune(value, 0),
			field+".env",
			"has %q; give names of letters, digits and underscores",
			name,
		)
	}
}

// checkFiles checks that every file named by the recipe exists.
func (r Recipe) checkFiles() error {
	var c checker
	for i, p := range r.Parts {
		for _, name := range []string{p.PyPI, p.File} {
			_, ok := r.Files[name]
			c.require(name == "" || ok, fmt.Sprintf("parts[%d]", i), "file %q is not in the recipe's directory", name)
		}
	}
	return errors.Join(c.problems...)
}
