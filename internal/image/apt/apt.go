package apt

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/pandastack/pandastack/internal/lib/command"
)

// lockTimeout is how long apt waits, in seconds, for another package manager.
const lockTimeout = "DPkg::Lock::Timeout=300"

// Version is one version of a package that the machine's sources offer.
type Version struct {
	Package string
	Version string
	Suite   string // "bookworm-backports"
}

// Versions lists the available versions of a package, best first as apt orders them. An empty list is not an error:
// the package lists may be out of date, see Update.
func Versions(ctx context.Context, pkg string) ([]Version, error) {
	out, err := command.Output(ctx, command.Options{}, "apt-cache", "madison", pkg)
	if err != nil {
		return nil, fmt.Errorf("versions of package %s: %w", pkg, err)
	}
	return parseMadison(out), nil
}

// parseMadison parses lines of " package | version | uri suite/component arch Packages".
func parseMadison(out string) []Version {
	var list []Version
	for _, line := range strings.Split(out, "\n") {
		fields := strings.Split(line, "|")
		if len(fields) != 3 {
			continue
		}
		where := strings.Fields(fields[2])
		if len(where) < 2 || where[len(where)-1] != "Packages" {
			continue
		}
		suite, _, _ := strings.Cut(where[1], "/")
		list = append(list, Version{strings.TrimSpace(fields[0]), strings.TrimSpace(fields[1]), suite})
	}
	return list
}

// Depends lists the packages that a version of a package depends on. Of alternatives it lists the first.
func Depends(ctx context.Context, v Version) ([]string, error) {
	out, err := command.Output(ctx, command.Options{}, "apt-cache", "show", v.Package+"="+v.Version)
	if err != nil {
		return nil, fmt.Errorf("package %s %s: %w", v.Package, v.Version, err)
	}
	var names []string
	for _, line := range strings.Split(out, "\n") {
		list, ok := strings.CutPrefix(line, "Depends:")
		if !ok {
			continue
		}
		for _, d := range strings.Split(list, ",") {
			if f := strings.Fields(d); len(f) > 0 {
				names = append(names, f[0])
			}
		}
	}
	return names, nil
}

// Download fetches packages ("name" or "name=version") into dir without installing them. It returns the paths of the
// files.
func Download(ctx context.Context, log command.Log, dir string, pkgs ...string) ([]string, error) {
	args := append([]string{"-q", "-o", "APT::Sandbox::User=root", "download"}, pkgs...)
	if err := command.Run(ctx, command.Options{Dir: dir, Log: log}, "apt-get", args...); err != nil {
		return nil, fmt.Errorf("download packages %s: %w", strings.Join(pkgs, " "), err)
	}
	return filepath.Glob(filepath.Join(dir, "*.deb"))
}

// Unpack extracts the files of a package into dir. It runs none of the package's scripts.
func Unpack(ctx context.Context, deb, dir string) error {
	return command.Run(ctx, command.Options{}, "dpkg-deb", "-x", deb, dir)
}

// Update fetches the lists of the machine's sources.
func Update(ctx context.Context, log command.Log) error {
	return command.Run(ctx, command.Options{Log: log}, "apt-get", "-q", "-o", lockTimeout, "update")
}

// Install installs packages without their recommendations. suite is the suite to install from, empty for apt's own
// choice.
func Install(ctx context.Context, log command.Log, suite string, pkgs ...string) error {
	args := []string{"-q", "-y", "--no-install-recommends", "-o", lockTimeout, "-o", "Dpkg::Options::=--force-confold"}
	if suite != "" {
		args = append(args, "-t", suite)
	}
	args = append(append(args, "install"), pkgs...)
	if err := command.Run(ctx, command.Options{Log: log}, "apt-get", args...); err != nil {
		return fmt.Errorf("install packages %s: %w", strings.Join(pkgs, " "), err)
	}
	return nil
}

// Installed reports for each package whether it is installed.
func Installed(ctx context.Context, pkgs ...string) (map[string]bool, error) {
	have := map[string]bool{}
	out, err := command.Output(ctx, command.Options{}, "dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n")
	if err != nil {
		return nil, fmt.Errorf("installed packages: %w", err)
	}
	for _, line := range strings.Split(out, "\n") {
		if name, status, _ := strings.Cut(line, " "); status == "installed" {
			have[name] = true
		}
	}
	got := map[string]bool{}
	for _, p := range pkgs {
		got[p] = have[p]
	}
	return got, nil
}
