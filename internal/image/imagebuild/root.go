package imagebuild

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pandastack/pandastack/internal/image/apt"
	"github.com/pandastack/pandastack/internal/image/recipe"
	"github.com/pandastack/pandastack/internal/lib/command"
)

// Root makes the root file system of a recipe in the directory work/root. cache is a directory of packages and parts
// that is read and added to; empty means none. The caller removes work, also after an error: no mounts are left below
// it.
func Root(ctx context.Context, r recipe.Recipe, work, cache string, log command.Log) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("build root file system: files of other users need root; run as root")
	}
	if len(r.Missing) > 0 {
		return fmt.Errorf(
			"build root file system: template %s needs values from this machine: set them in templates.params: %s",
			r.Name,
			r.Name+"."+strings.Join(r.Missing, ", "+r.Name+"."),
		)
	}
	suite, sources, err := packageSources(r)
	if err != nil {
		return err
	}
	keep := filepath.Join(work, "parts")
	var hooks []string
	if cache != "" {
		release, err := lockCache(ctx, cache)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, release()) }()
		hooks, keep = cacheHooks(cache), filepath.Join(cache, partsDir)
	}
	opt := command.Options{
		Log:   log,
		Stdin: strings.Join(sources, "\n") + "\n",
		Env:   []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR=" + work},
		// Mounts and processes are in namespaces of their own: whatever happens to mmdebstrap, no mount or process of
		// it remains after its end.
		Attr: &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Cloneflags: syscall.CLONE_NEWPID},
		Kill: true,
	}
	args := append(arguments(r), hooks...)
	args = append(args, suite, filepath.Join(work, "root"), "-")
	err = withTimeout(
		ctx,
		packagesLimit,
		"the packages did not come",
		func(ctx context.Context) error { return command.Run(ctx, opt, "mmdebstrap", args...) },
	)
	if err != nil {
		return fmt.Errorf(
			"build root file system of template %s from suite %s: %w; %s",
			r.Name,
			suite,
			err,
			mirrorHint(r, sources),
		)
	}
	houses, err := addParts(ctx, r, filepath.Join(work, "root"), work, keep, log)
	if err == nil {
		err = finish(ctx, r, houses, work, log)
	}
	if err != nil {
		return fmt.Errorf("build root file system of template %s: %w", r.Name, err)
	}
	return nil
}

// packagesLimit is how long fetching and unpacking all packages of a root file system may take.
const packagesLimit = time.Hour

// withTimeout runs do with a time limit; late names the delayed work in the error.
func withTimeout(ctx context.Context, limit time.Duration, late string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s within %s", late, limit))
	defer cancel()
	return do(ctx)
}

// mirrorHint describes the sources of the packages, and how to change them.
func mirrorHint(r recipe.Recipe, sources []string) string {
	var params []string
	for _, p := range r.Params {
		if strings.HasSuffix("_"+p, "_mirror") || strings.HasSuffix("_"+p, "_keyring") {
			params = append(params, r.Name+"."+p)
		}
	}
	remedy := "distribution.mirror and distribution.keyring in the recipe name another place and its keys"
	if len(params) > 0 {
		remedy = "the setting templates.params names another place and its keys: " + strings.Join(params, ", ")
	}
	return "the packages come from: " + strings.Join(sources, ", ") + "; " + remedy
}

func arguments(r recipe.Recipe) []string {
	args := []string{
		"--mode=root", "--format=directory", "--variant=" + r.Distribution.Variant,
		// After a source sends nothing for some minutes, apt fails.
		"--aptopt=Acquire::Retries \"2\"",
		"--aptopt=Acquire::http::Timeout \"30\"",
		"--aptopt=Acquire::https::Timeout \"30\"",
		"--aptopt=Acquire::Languages \"none\"",
		"--aptopt=APT::Install-Recommends \"false\"",
		// mmdebstrap empties the lists by an update without sources, which must never run with the host's sources.
		"--skip=cleanup/apt/lists",
		// The tree is discarded on any error, so it need not be durable file by file.
		"--dpkgopt=force-unsafe-io",
		"--dpkgopt=path-exclude=/usr/share/man/*",
		"--dpkgopt=path-exclude=/usr/share/info/*",
		"--dpkgopt=path-exclude=/usr/share/locale/*",
		"--dpkgopt=path-exclude=/usr/share/doc/*",
		"--dpkgopt=path-include=/usr/share/doc/*/copyright",
	}
	if len(r.Distribution.Packages) > 0 {
		args = append(args, "--include="+strings.Join(r.Distribution.Packages, ","))
	}
	return args
}

// packageSources returns the suite and the source lines of the packages: those of the recipe's mirror, otherwise
// those that the machine itself uses for the suite.
func packageSources(r recipe.Recipe) (suite string, lines []string, err error) {
	host, err := apt.ReadDistribution("/")
	if err != nil {
		return "", nil, err
	}
	known, err := apt.Sources("/")
	if err != nil {
		return "", nil, err
	}
	return choosePackageSources(r.Distribution, host, known)
}

// choosePackageSources is packageSources for a given host and its sources.
func choosePackageSources(
	d recipe.Distribution,
	host apt.Distribution,
	known []apt.Source,
) (suite string, lines []string, err error) {
	suite, lines, err = chooseMainSources(d, host, known)
	if err != nil {
		return "", nil, err
	}
	for _, e := range d.Extra {
		lines = append(
			lines,
			sourceLine(apt.Source{URI: e.Mirror, Suite: e.Suite, SignedBy: e.Keyring}, strings.Join(e.Components, " ")),
		)
	}
	return suite, lines, nil
}

// chooseMainSources is choosePackageSources without the sources of other projects.
func chooseMainSources(
	d recipe.Distribution,
	host apt.Distribution,
	known []apt.Source,
) (suite string, lines []string, err error) {
	suite = d.Suite
	if suite == "" {
		suite = host.Codename
	}
	if suite == "" {
		return "", nil, errors.New(
			"build root file system: the release of this machine is unknown; set distribution.suite in the recipe",
		)
	}
	components := strings.Join(d.Components, " ")
	if d.Mirror != "" {
		return suite, []string{
			sourceLine(apt.Source{URI: d.Mirror, Suite: suite, SignedBy: d.Keyring}, components),
		}, nil
	}
	base := apt.Source{}
	seen := map[string]bool{}
	for _, s := range known {
		switch s.Suite {
		case suite, suite + "-updates", suite + "-security":
			line := sourceLine(s, components)
			if !seen[line] {
				lines = append(lines, line)
			}
			seen[line] = true
		}
		if s.Suite == host.Codename && base.URI == "" {
			base = s
		}
	}
	if len(lines) == 0 && base.URI != "" {
		// A release other than the host's is on the same mirror.
		base.Suite = suite
		lines = []string{sourceLine(base, components)}
	}
	if len(lines) == 0 {
		return "", nil, fmt.Errorf(
			"build root file system: this machine has no package source for %s; "+
				"add one to apt, or set distribution.mirror in the recipe",
			suite,
		)
	}
	return suite, lines, nil
}

func sourceLine(s apt.Source, components string) string {
	option := ""
	if s.SignedBy != "" {
		option = "[signed-by=" + s.SignedBy + "] "
	}
	return fmt.Sprintf("deb %s%s %s %s", option, s.URI, s.Suite, components)
}

// uuid derives an identifier from a text.
func uuid(seed string) string {
	b := sha256.Sum256([]byte(seed))
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
