package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/image/apt"
	"github.com/pandastack/pandastack/internal/image/kernel"
	"github.com/pandastack/pandastack/internal/lib/command"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/os/disk"
)

// backportsFile is the package source that setup may add.
const backportsFile = "/etc/apt/sources.list.d/pandastack-backports.sources"

// Report holds the callbacks of Apply. Each may be nil.
type Report struct {
	Begin func(i, n int, s Step) // step i of n, from 1
	Line  command.Log            // a line of a program's output
	End   func(s Step, took time.Duration, err error)
}

// Apply carries out a plan. It stops at the first step that fails; that step leaves nothing incomplete, and the steps
// before it remain done.
func Apply(ctx context.Context, c Config, steps []Step, r Report) error {
	for i, s := range steps {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if r.Begin != nil {
			r.Begin(i+1, len(steps), s)
		}
		began := time.Now()
		err := runStep(ctx, c, s, r.Line)
		if r.End != nil {
			r.End(s, time.Since(began), err)
		}
		if err != nil {
			return fmt.Errorf("setup: %s: %w", s.Text, err)
		}
	}
	return nil
}

func runStep(ctx context.Context, c Config, s Step, log command.Log) error {
	switch s.Kind {
	case AddBackports:
		return addBackports(ctx, log)
	case UpdateLists:
		return apt.Update(ctx, log)
	case Packages:
		return apt.Install(ctx, log, "", s.Packages...)
	case InstallQEMU:
		return installQEMU(ctx, log)
	case MakeDirectory:
		return os.MkdirAll(c.DataDir, 0o755)
	case MakeImage:
		return disk.CreateDataDir(ctx, c.DataDir, int64(c.ImageGiB)<<30)
	case MountImage:
		_, err := disk.EnsureDataDir(ctx, c.DataDir)
		return err
	case InstallKernel, BuildKernel:
		return provideKernel(ctx, filepath.Join(c.DataDir, "kernel"), s.Kind, log)
	}
	return fmt.Errorf("unknown step %q", s.Kind)
}

// provideKernel provides a guest kernel. The plan may have been made while the data directory was not mounted, so a
// kernel that exists is kept.
func provideKernel(ctx context.Context, dir string, kind Kind, log command.Log) error {
	_, tuned := kernel.Installed(dir)
	if tuned != "" {
		log.Printf("the tuned guest kernel %s exists", tuned)
		return nil
	}
	if kind == BuildKernel {
		return kernel.Build(ctx, dir, log)
	}
	return kernel.Install(ctx, dir, log)
}

// addBackports writes a source for the release's backports, with the mirror and key of the release itself. If the
// mirror has none it removes the file, and setup uses the release's own packages.
func addBackports(ctx context.Context, log command.Log) error {
	host, err := apt.ReadDistribution("/")
	if err != nil {
		return err
	}
	sources, err := apt.Sources("/")
	if err != nil {
		return err
	}
	text, err := backports(host.Codename, sources)
	if err != nil {
		return err
	}
	if err := durable.WriteFile(backportsFile, []byte(text), 0o644); err != nil {
		return err
	}
	if err := apt.Update(ctx, log); err != nil {
		if gone := os.Remove(backportsFile); gone != nil || ctx.Err() != nil {
			return errors.Join(err, gone)
		}
		log.Printf("the mirror has no backports (%v); using the release's own QEMU", err)
	}
	return nil
}

// backports returns the content of the file for a release.
func backports(codename string, sources []apt.Source) (string, error) {
	i := slices.IndexFunc(sources, func(s apt.Source) bool { return s.Suite == codename })
	if i < 0 {
		return "", fmt.Errorf("the package sources do not contain %s; add its backports by hand", codename)
	}
	s := sources[i]
	var b strings.Builder
	fmt.Fprintf(&b, "# Made by `pandastack setup` for a newer QEMU; `pandastack setup --remove` removes it.\n")
	fmt.Fprintf(&b, "Types: deb\nURIs: %s\nSuites: %s-backports\nComponents: main\n", s.URI, codename)
	if s.SignedBy != "" {
		fmt.Fprintf(&b, "Signed-By: %s\n", s.SignedBy)
	}
	return b.String(), nil
}

// installQEMU installs the newest available QEMU, from backports only if the release itself does not have it.
func installQEMU(ctx context.Context, log command.Log) error {
	pkg := qemuPackage()
	offers, err := apt.Versions(ctx, pkg)
	if err != nil {
		return err
	}
	if len(offers) == 0 {
		return fmt.Errorf("the package sources offer no %s; run `apt-get update` or add a source", pkg)
	}
	best := slices.MaxFunc(offers, func(a, b apt.Version) int { return apt.Compare(a.Version, b.Version) })
	suite := ""
	if strings.HasSuffix(best.Suite, "-backports") {
		suite = best.Suite
	}
	return apt.Install(ctx, log, suite, pkg)
}

// Remove removes the data directory's image, the guest kernels, and the package source.
//
// Packages stay. A data directory that is not on an image made by setup keeps everything except the kernels. Remove
// fails, and keeps the image, while a node uses it.
func Remove(ctx context.Context, c Config, log command.Log) error {
	if os.Geteuid() != 0 {
		return &NotRootError{Steps: 1}
	}
	_, err := os.Stat(disk.ImagePath(c.DataDir))
	image := err == nil
	if image {
		log.Printf("removing %s and its image", c.DataDir)
		err = disk.RemoveDataDir(c.DataDir)
	} else {
		log.Printf("removing the guest kernels; everything else in %s stays", c.DataDir)
		if err = kernel.Remove(filepath.Join(c.DataDir, "kernel")); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("setup: remove: %w", err)
	}
	err = os.Remove(backportsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("setup: remove: %w", err)
	}
	log.Printf("removed %s", backportsFile)
	return apt.Update(ctx, log)
}
