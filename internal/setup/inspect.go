package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"

	"github.com/pandastack/pandastack/internal/image/apt"
	"github.com/pandastack/pandastack/internal/image/kernel"
	"github.com/pandastack/pandastack/internal/lib/command"
	"github.com/pandastack/pandastack/internal/os/disk"
)

// needed are the packages of a node besides QEMU.
var needed = []string{"ca-certificates", "e2fsprogs", "mmdebstrap", "xfsprogs", "xz-utils"}

// registryClient is the program, and its package, that fetches the parts of template base with this machine's
// configuration.
const registryClient = "npm"

// benchNeeds are the packages of the benchmark. Each is also the name of its program.
var benchNeeds = []string{"runc"}

// Inspect collects the facts of this machine. It changes nothing. It judges a data directory that does not exist by a
// directory above it, and briefly mounts one on an image that is not mounted.
func Inspect(ctx context.Context, c Config) (Facts, error) {
	host, err := apt.ReadDistribution("/")
	if err != nil {
		return Facts{}, err
	}
	f := Facts{
		Root: os.Geteuid() == 0, Debian: host.Debian(), Distribution: host.Pretty, Codename: host.Codename,
	}
	f.QEMUMajor = qemuMajor(ctx)
	if err := f.packages(ctx); err != nil {
		return Facts{}, err
	}
	if err := f.data(c.DataDir); err != nil {
		return Facts{}, err
	}
	if f.Root && f.Image && !f.Mounted {
		release, err := disk.EnsureDataDir(ctx, c.DataDir)
		if err != nil {
			return Facts{}, err
		}
		f.Kernel, f.Tuned = kernel.Installed(filepath.Join(c.DataDir, "kernel"))
		return f, release(ctx)
	}
	f.Kernel, f.Tuned = kernel.Installed(filepath.Join(c.DataDir, "kernel"))
	return f, nil
}

var major = regexp.MustCompile(`version (\d+)\.`)

// qemuMajor returns the major version of the installed QEMU, 0 if none runs.
func qemuMajor(ctx context.Context) int {
	name := map[string]string{"amd64": "qemu-system-x86_64", "arm64": "qemu-system-aarch64"}[runtime.GOARCH]
	out, err := command.Output(ctx, command.Options{}, name, "--version")
	m := major.FindStringSubmatch(out)
	if err != nil || m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1]) // digits by the expression
	return n
}

func (f *Facts) packages(ctx context.Context) error {
	if !f.Debian {
		for _, program := range []string{"mkfs.xfs", "mke2fs", "mmdebstrap", "xz", registryClient} {
			if !command.Exists(program) {
				f.Missing = append(f.Missing, program)
			}
		}
		f.BenchMissing = missingPrograms(benchNeeds)
		return nil
	}
	all := append(slices.Clone(needed), kernel.BuildPackages...)
	have, err := apt.Installed(ctx, all...)
	if err != nil {
		return err
	}
	lacks := func(list []string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(p string) bool { return have[p] })
	}
	f.Missing, f.BuildMissing = lacks(needed), lacks(kernel.BuildPackages)
	if !command.Exists(registryClient) { // often installed from another source than a package
		f.Missing = append(f.Missing, registryClient)
	}
	f.BenchMissing = missingPrograms(benchNeeds) // container engines bring a runc in packages of their own
	sources, err := apt.Sources("/")
	if err != nil {
		return err
	}
	f.Backports = slices.ContainsFunc(sources, func(s apt.Source) bool { return s.Suite == f.Codename+"-backports" })
	lists, err := filepath.Glob("/var/lib/apt/lists/*Packages*")
	f.HasLists = len(lists) > 0
	return err
}

// missingPrograms returns the programs of a list that are not installed.
func missingPrograms(list []string) []string {
	return slices.DeleteFunc(slices.Clone(list), command.Exists)
}

func (f *Facts) data(dir string) error {
	_, err := os.Stat(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("data directory: %w", err)
	}
	f.DataExists = err == nil
	if f.Mounted, err = disk.Mounted(dir); err != nil {
		return err
	}
	_, err = os.Stat(disk.ImagePath(dir))
	f.Image = err == nil
	at := dir
	for !exists(at) {
		at = filepath.Dir(at)
	}
	if !f.Root {
		// probing writes; without permission the file system's type decides
		kind, err := disk.Type(at)
		f.Reflink = kind == "xfs" || kind == "btrfs"
		return err
	}
	err = disk.Probe(at)
	var no *disk.NoReflinkError
	if err != nil && !errors.As(err, &no) {
		return err
	}
	f.Reflink = err == nil
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil || path == filepath.Dir(path)
}
